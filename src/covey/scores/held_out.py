"""Held-out data from any source, in the one form that an evaluation works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from covey.data import Data, Split, adapt
from covey.data.adapt import PART_NAMES, samples
from covey.data.container import Normalisation
from covey.data.fields import LABELS, Columns, tensors
from covey.errors import EvaluationError
from covey.tensors import rows_of

from .record import TASKS


def _unchanged(inputs: Any) -> Any:
    return inputs


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Test data with all that belongs to them. `held_out` makes it from what a user gives.

    Args:
        test: the test set, before `prepare`; in memory, or read batch by batch when it is asked for.
        task: one of `TASKS`; None where the data do not say.
        validation: samples for calibration.
        ood: out-of-distribution samples by the name of their set; their targets mean nothing.
        classes: the classes' names.
        prepare: makes of raw inputs what a network takes, batch by batch.
        target_unit: leads standardised regression targets back to their own unit.
        limit: how many samples of each set are used, the first ones; None for all.
        ignore_index: the label of what does not count; None where the task alone says it.
    """

    test: Split = field(repr=False)
    task: str | None = None
    validation: Split | None = field(default=None, repr=False)
    ood: Mapping[str, Split] = field(default_factory=dict, repr=False)
    classes: tuple[str, ...] = ()
    prepare: Callable[[Any], Any] = _unchanged
    target_unit: Normalisation | None = None
    limit: int | None = None
    ignore_index: int | None = None

    @property
    def images(self) -> Tensor | None:
        """The test inputs as one tensor, where they are one and in memory."""
        if not self.test.in_memory or not isinstance(self.test.inputs, Tensor):
            return None
        return self.test.inputs[: self.limit]

    @property
    def ood_inputs(self) -> dict[str, Tensor]:
        """The out-of-distribution inputs of the sets that are one tensor in memory."""
        found = {}
        for name, part in self.ood.items():
            if part.in_memory and isinstance(part.inputs, Tensor):
                found[name] = part.inputs[: self.limit]
        return found

    def batches(self, part: Split, size: int) -> Iterator[tuple[Any, Tensor]]:
        """Inputs, prepared, and targets of a set, in batches."""
        left = self.limit
        for inputs, targets in part.in_order(size):
            if left is not None and left < len(targets):
                rows = torch.arange(left)
                inputs, targets = rows_of(inputs, rows), targets[rows]
            yield self.prepare(inputs), targets
            if left is not None:
                left -= len(targets)
                if left <= 0:
                    return


def held_out(
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    validation: Any = None,
    task: str | None = None,
    limit: int | None = None,
    ignore_index: int | None = None,
) -> HeldOut:
    """Test, validation and out-of-distribution data of any kind, in one form.

    Args:
        data: what `covey.evaluate` takes.
        ood: more sets of inputs by name, likewise; their targets, if they have some, are not used.
        validation: as `data`; by default the validation part of `data`, where it has parts.
        task: what is predicted, where the data do not say.
        limit: use at most this many samples of each set, the first ones.
        ignore_index: the label of what does not count.
    """
    if limit is not None and limit < 1:
        raise EvaluationError(f"limit: expected 1 sample or more, got {limit}")
    if task is not None and task not in TASKS:
        raise EvaluationError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    if isinstance(data, str) or (isinstance(data, Mapping) and any(name in PART_NAMES for name in data)):
        asked = task if task != "language" else None
        data = adapt(data, task=asked, validation=0)  # type: ignore[arg-type]
    if isinstance(data, Data):
        found = _from_container(data)
    else:
        found = HeldOut(_checked(samples(data, "data"), "data"))
    found = replace(found, limit=limit, ignore_index=ignore_index)
    if task is not None:
        found = replace(found, task=task)
    if validation is not None:
        found = replace(found, validation=_checked(samples(validation, "validation"), "validation"))
    if ood is not None and not isinstance(ood, Mapping):
        raise EvaluationError(
            f"ood: expected a dict of inputs by the names of their sets, such as {{'far': X}}, got {type(ood).__name__}"
        )
    if ood:
        sets = dict(found.ood)
        for name, given in ood.items():
            sets[name] = _inputs(given, f"the OOD set {name!r}")
        found = replace(found, ood=sets)
    return found


def _from_container(data: Data) -> HeldOut:
    # A container without validation data holds an empty split.
    no_validation = data.validation.by_number and not len(data.validation)
    return HeldOut(
        _checked(data.test, "data"),
        task=data.task,
        validation=None if no_validation else data.validation,
        ood={name: _inputs(given, f"the OOD set {name!r}") for name, given in data.ood.items()},
        classes=data.classes,
        prepare=data.prepare,
        target_unit=data.target_normalisation,
    )


def _checked(part: Split, what: str) -> Split:
    if part.by_number and not len(part):
        raise EvaluationError(f"{what}: no samples to evaluate on, the set is empty")
    return part


def _inputs(given: Any, what: str) -> Split:
    """Samples without answers; targets, where there are some, are left aside."""
    if isinstance(given, Split):
        return _checked(given, what)
    if not isinstance(given, tuple | list | Mapping) and not _is_array(given):
        return _checked(samples(given, what, columns=_InputsOnly()), what)
    inputs = tensors(given, what)
    length = next((len(leaf) for leaf in _leaves(inputs) if leaf.ndim), 0)
    if not length:
        raise EvaluationError(f"{what} is empty: leave it out or give samples")
    return Split(inputs, torch.zeros(length, dtype=torch.long))


def _is_array(given: Any) -> bool:
    return isinstance(given, Tensor) or type(given).__module__.partition(".")[0] == "numpy"


def _leaves(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return [leaf for leaf in values if isinstance(leaf, Tensor)]


class _InputsOnly(Columns):
    """Samples of which only the inputs count."""

    def parts(self, batch: Any, where: str) -> tuple[Any, Tensor]:
        """The inputs, and zeros for targets."""
        if isinstance(batch, Mapping):
            labels = [name for name in LABELS if name in batch]
            batch = {name: column for name, column in batch.items() if name not in labels}
        inputs = tensors(batch[0] if isinstance(batch, tuple | list) else batch, where)
        return inputs, torch.zeros(len(_leaves(inputs)[0]), dtype=torch.long)
