"""Held-out data from any source, in the one form that an evaluation works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from covey.data import Data, Split
from covey.data.container import Normalisation
from covey.errors import EvaluationError

from .record import TASKS

Pair = tuple[Tensor, Tensor]


def _unchanged(inputs: Tensor) -> Tensor:
    return inputs


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Test data with all that belongs to them. `held_out` makes it from what a user gives.

    Args:
        inputs: of the test set, (N, ...), before `prepare`.
        targets: of the test set, (N, ...).
        task: "classification", "language" or "regression"; None where the data do not say.
        validation: inputs and targets for calibration.
        ood: out-of-distribution inputs by the name of their set.
        classes: the classes' names.
        prepare: makes of raw inputs what a network takes, batch by batch.
        target_unit: leads standardised regression targets back to their own unit.
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    task: str | None = None
    validation: Pair | None = field(default=None, repr=False)
    ood: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    classes: tuple[str, ...] = ()
    prepare: Callable[[Tensor], Tensor] = _unchanged
    target_unit: Normalisation | None = None


def held_out(
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    validation: Any = None,
    task: str | None = None,
    limit: int | None = None,
) -> HeldOut:
    """Read test, validation and out-of-distribution data, once, before anything is evaluated.

    Args:
        data: a `covey.data.Data`, a pair (inputs, targets) of tensors or NumPy arrays, a map-style `Dataset` of such
            pairs, or a `DataLoader` of batches of them.
        ood: more sets of inputs by name: tensors, arrays, data sets or loaders, whose targets are not used.
        validation: as `data`; by default the validation split of a `covey.data.Data`.
        task: what is predicted, where the data do not say.
        limit: read at most this many samples of each set, the first ones.
    """
    if limit is not None and limit < 1:
        raise EvaluationError(f"limit: expected 1 sample or more, got {limit}")
    if task is not None and task not in TASKS:
        raise EvaluationError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    if isinstance(data, Data):
        found = _from_container(data, limit)
    else:
        inputs, targets = _pair(data, "data", limit)
        found = HeldOut(inputs, targets)
    if task is not None:
        found = replace(found, task=task)
    if validation is not None:
        found = replace(found, validation=_pair(validation, "validation", limit))
    if ood:
        sets = dict(found.ood)
        for name, given in ood.items():
            sets[name] = _inputs(given, f"the OOD set {name!r}", limit)
        found = replace(found, ood=sets)
    return found


def _from_container(data: Data, limit: int | None) -> HeldOut:
    inputs, targets = _pair(data.test, "data", limit)
    # A container without validation data holds an empty split.
    validation = _pair(data.validation, "validation", limit) if len(data.validation) else None
    ood = {}
    for name, given in data.ood.items():
        ood[name] = _inputs(given, f"the OOD set {name!r}", limit)
    return HeldOut(
        inputs,
        targets,
        task=data.task,
        validation=validation,
        ood=ood,
        classes=data.classes,
        prepare=data.prepare,
        target_unit=data.target_normalisation,
    )


def _pair(given: Any, what: str, limit: int | None) -> Pair:
    """Inputs (N, ...) and targets (N, ...) of at least one sample."""
    if isinstance(given, (Dataset, DataLoader)):
        inputs, targets = _columns(given, what, limit, with_targets=True)
    elif isinstance(given, Split):
        inputs, targets = given.inputs, given.targets
    elif isinstance(given, (tuple, list)) and len(given) == 2:
        inputs = _tensor(given[0], f"{what}: inputs")
        targets = _tensor(given[1], f"{what}: targets")
    else:
        raise EvaluationError(
            f"{what}: expected a data set of covey, a pair of tensors or arrays (inputs, targets), a torch Dataset or "
            f"a DataLoader, got {type(given).__name__}"
        )
    if inputs.ndim == 0 or targets.ndim == 0:
        raise EvaluationError(f"{what}: expected inputs (N, ...) and targets (N, ...), got a single number")
    if len(inputs) != len(targets):
        raise EvaluationError(f"{what}: {len(inputs)} inputs but {len(targets)} targets")
    if not len(inputs):
        raise EvaluationError(f"{what}: no samples to evaluate on, the set is empty")
    return inputs[:limit], targets[:limit]


def _inputs(given: Any, what: str, limit: int | None) -> Tensor:
    """Inputs (N, ...) of at least one sample; targets, where there are some, are left aside."""
    if isinstance(given, (Dataset, DataLoader)):
        (inputs,) = _columns(given, what, limit, with_targets=False)
    elif isinstance(given, Split):
        inputs = given.inputs
    else:
        inputs = _tensor(given, what)
    if inputs.ndim == 0 or not len(inputs):
        raise EvaluationError(f"{what} is empty: leave it out or give samples")
    return inputs[:limit]


def _columns(
    source: Dataset | DataLoader, what: str, limit: int | None, *, with_targets: bool
) -> list[Tensor]:
    """The inputs, and the targets if they are wanted, of a data set's samples or a loader's batches."""
    in_batches = isinstance(source, DataLoader)
    columns: list[list[Tensor]] = [[], []] if with_targets else [[]]
    found = 0
    for where, item in _items(source, what):
        parts = _parts(item, where, with_targets)
        for column, value in zip(columns, parts, strict=True):
            column.append(_tensor(value, where))
        newest = columns[0][-1]
        found += len(newest) if in_batches else 1
        if limit is not None and found >= limit:
            break
    if not found:
        raise EvaluationError(f"{what}: no samples to evaluate on, the set is empty")
    join = torch.cat if in_batches else torch.stack
    try:
        return [join(column) for column in columns]
    except RuntimeError as problem:
        raise EvaluationError(
            f"{what}: samples differ in shape and cannot become one tensor ({problem})"
        ) from problem


def _items(source: Dataset | DataLoader, what: str) -> Iterator[tuple[str, Any]]:
    """Samples or batches, each with words that say which it is."""
    if isinstance(source, IterableDataset):
        raise EvaluationError(f"{what}: an IterableDataset has no known end; give a DataLoader of it")
    if isinstance(source, DataLoader):
        for number, batch in enumerate(source):
            yield f"{what}, batch {number}", batch
        return
    # By number, because iterating over a Dataset without an end of its own would never stop.
    for number in range(len(source)):  # type: ignore[arg-type]
        yield f"{what}, sample {number}", source[number]


def _parts(item: Any, where: str, with_targets: bool) -> tuple[Any, ...]:
    """Inputs and targets of a sample or batch, or its inputs alone."""
    is_sequence = isinstance(item, (tuple, list))
    if not with_targets:
        return (item[0] if is_sequence else item,)
    if is_sequence and len(item) == 2:
        return tuple(item)
    if isinstance(item, Mapping):
        raise EvaluationError(_no_mappings(where))
    raise EvaluationError(f"{where}: expected (inputs, targets), got {type(item).__name__}")


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        raise EvaluationError(_no_mappings(where))
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return _from_numpy(np.asarray(value), where)
    raise EvaluationError(f"{where}: expected a tensor or a NumPy array, got {type(value).__name__}")


def _from_numpy(array: np.ndarray, where: str) -> Tensor:
    # torch shares the array's memory, so it takes neither read-only nor mirrored arrays.
    is_mirrored = min(array.strides, default=0) < 0
    if is_mirrored or not array.flags.writeable:
        array = array.copy()
    try:
        tensor = torch.from_numpy(array)
    except TypeError as problem:
        raise EvaluationError(f"{where}: an array of {array.dtype} cannot become a tensor") from problem
    # NumPy's floats are float64 unless one says otherwise, torch's networks float32.
    if tensor.dtype == torch.float64:
        return tensor.to(torch.get_default_dtype())
    return tensor


def _no_mappings(where: str) -> str:
    return f"{where}: inputs of several named tensors (a dict) cannot be evaluated yet; give one tensor"
