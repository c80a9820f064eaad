"""An ensemble that a stored file describes, tried without memory before memory is asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from covey import tensor_files
from covey.ensemble import Ensemble
from covey.errors import ConversionError, StoreError
from covey.networks.anatomy import listing

_TRIED = 128  # members that are made on trial


class Bounded(TorchDispatchMode):
    """Stops a build that goes on and on, because a number in config.json was made very large.

    Args:
        operations: of torch that the build may take, far more than it needs.
        elements: of the largest tensor that it may make; any number if not given.
    """

    def __init__(self, operations: int, elements: int | None = None) -> None:
        super().__init__()
        self.left = operations
        self.elements = elements

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ConversionError(
                "it would have far more tensors than were stored; a number in it was changed."
            )
        made = func(*args, **(kwargs or {}))
        # A tensor that is too large is found before memory is: what was never written to takes none.
        if self.elements is not None and isinstance(made, torch.Tensor) and made.numel() > self.elements:
            raise ConversionError("it would be far larger than what was stored; a number in it was changed.")
        return made


def check_fits(ensemble: Ensemble, found: Mapping[str, list], path: Path) -> None:
    """Refuse tensors that are not those of the ensemble, before memory is asked for."""
    expected = tensor_files.listing(ensemble.state_dict())
    for name in [*expected, *found]:
        ours, theirs = _described(expected.get(name)), _described(found.get(name))
        if ours != theirs:
            raise StoreError(f"{path} does not fit: {name!r} should be {ours} and is {theirs}.")


def check_members(ensemble: Ensemble) -> None:
    """Refuse a layout from which members cannot be made, by making them without memory."""
    trial = copy.deepcopy(ensemble).to("meta")  # a copy, because parts may keep what they have generated
    step = max(1, ensemble.members // _TRIED)
    for k in range(0, ensemble.members, step):
        buffers, row = trial.buffers_of(k)
        with torch.no_grad():
            made = {**trial.tensors(k), **buffers.member(row)}
        record = trial.records[trial.network_of(k)]
        for name in (*record.get("rewrites", ()), *record.get("differentiated", ())):
            if name not in made:
                raise ConversionError(
                    f"the network is said to change or differentiate {name!r}, which it does not have."
                )
        for name, wanted in listing(trial.skeleton(k)).items():
            if name not in made or list(made[name].shape) != wanted[0]:
                found = tuple(made[name].shape) if name in made else "no such tensor"
                raise ConversionError(
                    f"member {k}'s {name!r} should have shape {tuple(wanted[0])} and comes out as {found}."
                )


def _described(entry: list | None) -> str:
    """A tensor's shape and whether it holds fractions; an ensemble may be stored in another precision."""
    if entry is None:
        return "no such tensor"
    shape, dtype = entry
    kind = "floating point" if getattr(torch, dtype).is_floating_point else dtype
    return f"{tuple(shape)} of {kind}"
