"""Tensors that a network keeps in Python and reads: caches, which it makes again, and constants, which it cannot.

Both are there before an ensemble is made and are no part of it. A cache made from the network's weights would go on
giving every member the original's, so it is dropped. A constant is the same for all members, which is right; but it is
not stored, so `load` compares the network that it is given with a few numbers that were.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from covey.networks.calls import Arguments
from covey.networks.copies import duplicate
from covey.networks.held import Held, held
from covey.seeds import random_state_kept

FREQUENCIES = (0.0, 0.7, 1.9)
LARGEST = 1e30  # what infinities, as masks have them, count for
TOLERANCE = 1e-4  # of a constant's length: another machine may round otherwise

Print = list[float]


def kept_tensors(network: nn.Module) -> dict[str, Held]:
    """Tensors that the network's attributes lead to and torch does not know, by path."""
    return {found.path: found for found in held(network) if isinstance(found.value, Tensor)}


def drop_caches(network: nn.Module, paths: Iterable[str], given: Arguments) -> list[str]:
    """Remove those of the tensors at these paths that the network makes again when it runs, and name them."""
    dropped = []
    for path in paths:
        if any(_comes_back(network, path, given, mode) for mode in (False, True)):
            _remove(kept_tensors(network)[path])
            dropped.append(path)
    return dropped


def _comes_back(network: nn.Module, path: str, given: Arguments, mode: bool) -> bool:
    """Whether a tensor that is removed is there again, with the same values, after a forward pass."""
    twin = duplicate(network).train(mode)
    before = kept_tensors(twin).get(path)
    if before is None or not _remove(before):
        return False
    args, kwargs = copy.deepcopy(given)
    try:
        with torch.no_grad(), random_state_kept(twin):
            twin(*args, **kwargs)
    except Exception:  # it cannot do without
        return False
    after = kept_tensors(twin).get(path)
    return after is not None and _alike(print_of(before.value), print_of(after.value))


def _remove(found: Held) -> bool:
    """Take a tensor out of what holds it; False where that cannot be done."""
    if isinstance(found.holder, dict):
        del found.holder[found.key]
    elif isinstance(found.holder, list):
        found.holder[found.key] = None
    elif found.holder is not None and hasattr(found.holder, "__dict__") and found.key in vars(found.holder):
        # None rather than nothing: most ask `if self.cache is None`
        vars(found.holder)[found.key] = None
    else:
        return False
    return True


# --- fingerprints -----------------------------------------------------------------------------------------------------


def prints(network: nn.Module, paths: Iterable[str]) -> dict[str, Print]:
    """A few numbers of each of the tensors at these paths, by which others are told from them."""
    found = kept_tensors(network)
    return {path: print_of(found[path].value) for path in paths if path in found}


def print_of(tensor: Any) -> Print:
    """A tensor's number of elements, its length, and its products with a few waves."""
    if tensor.device.type == "meta":
        return []
    flat = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    flat = flat.double().flatten().nan_to_num().clamp(-LARGEST, LARGEST).cpu()
    places = torch.arange(len(flat), dtype=torch.float64)
    products = [float(flat @ torch.cos(frequency * places)) for frequency in FREQUENCIES]
    return [float(len(flat)), float(flat.norm()), *products]


def first_other(stored: Mapping[str, Print], network: nn.Module) -> str | None:
    """The path of a constant that is another in this network than in the one that the prints were taken of.

    One that is missing, or of another size, is none: the network may make it when it runs.
    """
    for path, now in prints(network, stored).items():
        was = stored[path]
        if was and now and was[0] == now[0] and not _alike(was, now):
            return path
    return None


def _alike(one: Print, other: Print) -> bool:
    """Whether two prints are of tensors that are equal but for rounding."""
    if not one or not other:
        return one == other
    scale = max(one[1], other[1]) * max(one[0], 1.0) ** 0.5 + 1e-12
    return one[0] == other[0] and all(
        abs(a - b) <= TOLERANCE * scale for a, b in zip(one[1:], other[1:], strict=True)
    )
