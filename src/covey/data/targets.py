"""What is to be predicted: which task the targets are for, and how each task has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from covey.data.container import IGNORED, Split, Task
from covey.errors import DataError

_FEW = 20  # distinct whole numbers, at most, that could be classes written as floats
_NO_CLASS = -100  # what torch's losses ignore by default


def task_of(parts: dict[str, Split], names: tuple[str, ...], asked: Task | None) -> tuple[Task, str]:
    """What is to be predicted, and why that is thought."""
    if asked is not None:
        return asked, "as asked for"
    if names:
        return "classification", "since the classes have names"
    part = next(iter(parts.values()))
    targets = _some_targets(part)
    if targets.dtype.is_complex:
        raise DataError(f"targets are {targets.dtype}, which is neither a class nor a number.")
    if not targets.is_floating_point():
        images = part.inputs if part.in_memory else None
        if isinstance(images, Tensor) and images.ndim == 4 and targets.ndim == 3:
            return "segmentation", "since there is a class for each pixel"
        return "classification", f"since targets are {str(targets.dtype).removeprefix('torch.')}"
    if part.in_memory and bool((targets == targets.round()).all()) and len(targets.unique()) <= _FEW:
        found = f"targets are floats, but all of them whole ({targets.unique().tolist()[:5]} ...)"
        if targets.ndim == 2 and targets.shape[1] > 1:
            raise DataError(
                f"{found}, {targets.shape[1]} for each sample: labels of which several may be true, or numbers to "
                "regress on? Say which: covey.data.adapt(data, task='multilabel') or task='regression'."
            )
        raise DataError(
            f"{found}: classes, or numbers to regress on? Say which: covey.data.adapt(data, task='classification') or "
            "task='regression'."
        )
    return "regression", f"since targets are {str(targets.dtype).removeprefix('torch.')}"


def _some_targets(part: Split) -> Tensor:
    """Targets to judge by: all that are in memory, else a few."""
    if part.in_memory or not part.by_number:
        return part.targets  # an empty tensor of the first batch's type for a stream
    return part.read(torch.arange(min(2, len(part))))[1]


def _numbers_of(part: Split, name: str) -> Split:
    """The part with one number, or several, for each sample."""
    targets = _some_targets(part)
    if targets.ndim not in (1, 2):
        raise DataError(
            f"the {name} data: targets of a regression are one number for each sample, (N,), or several, (N, D); got "
            f"{tuple(targets.shape)}."
        )
    return part if targets.is_floating_point() or not part.in_memory else Split(part.inputs, targets.float())


def _classes_of(part: Split, name: str) -> Split:
    """The part with class numbers."""
    targets = _some_targets(part)
    if targets.is_floating_point():
        if targets.ndim > 1 or not part.in_memory or bool((targets != targets.round()).any()):
            raise DataError(
                f"the {name} data: labels of classes are whole numbers, (N,); got {targets.dtype} of shape "
                f"{tuple(targets.shape)}. Give the number of each sample's class, such as probabilities.argmax(-1)."
            )
        return Split(part.inputs, targets.long())
    return Split(part.inputs, targets.long()) if part.in_memory else part


def _pixels_of(part: Split, name: str) -> Split:
    """The part with a class for each pixel."""
    targets = _some_targets(part)
    if targets.is_floating_point() or (part.in_memory and targets.ndim != 3):
        raise DataError(
            f"the {name} data: classes of pixels are whole numbers, (N, H, W); got {targets.dtype} of shape "
            f"{tuple(targets.shape)}."
        )
    return part


def _truths_of(part: Split, name: str) -> Split:
    """The part with 0 or 1 for each label of each sample."""
    targets = _some_targets(part)
    if targets.ndim != 2:
        raise DataError(
            f"the {name} data: labels of which several may be true have a column each, (N, L); got "
            f"{tuple(targets.shape)}."
        )
    return part if targets.is_floating_point() or not part.in_memory else Split(part.inputs, targets.float())


TARGETS: dict[str, Callable[[Split, str], Split]] = {
    "classification": _classes_of,
    "regression": _numbers_of,
    "segmentation": _pixels_of,
    "multilabel": _truths_of,
}
"""How each task has its targets."""


def _counted_pixels(parts: dict[str, Split]) -> tuple[str, ...]:
    """As many classes as the pixels have, without those that do not count."""
    counted = {}
    for name, part in parts.items():
        counted[name] = Split(part.inputs, part.targets.flatten()[part.targets.flatten() != IGNORED])
    if not all(part.in_memory and len(part.targets) for part in counted.values()):
        raise DataError("the classes of pixels are not in memory, or none counts: say classes=[...].")
    return _counted_classes(counted)


def _counted_labels(parts: dict[str, Split]) -> tuple[str, ...]:
    """A name for each column of labels."""
    labels = next(iter(parts.values())).targets.shape[1]
    return tuple(f"label {k}" for k in range(labels))


def _counted_classes(parts: dict[str, Split]) -> tuple[str, ...]:
    """As many classes as the labels in memory have; none where labels are read later."""
    if not all(part.in_memory for part in parts.values()):
        return ()
    largest = max(int(part.targets.max()) for part in parts.values())
    lowest = min(int(part.targets.min()) for part in parts.values())
    if lowest < 0 and (lowest != _NO_CLASS or largest < 0):
        raise DataError(
            f"labels go from {lowest} to {largest}; expected class numbers from 0 on, or {_NO_CLASS} for "
            "samples that do not count (Recipe(ignore_index=-100)). If they are numbers to regress on, say "
            "task='regression'."
        )
    return tuple(map(str, range(largest + 1)))


COUNTED: dict[str, Callable[[dict[str, Split]], tuple[str, ...]]] = {
    "classification": _counted_classes,
    "segmentation": _counted_pixels,
    "multilabel": _counted_labels,
}
"""How many classes or labels there are, where nobody names them."""
