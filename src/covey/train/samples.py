"""What can be wrong with the samples: labels that are no classes, and numbers that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from covey.data import Data, Split
from covey.errors import DataError, OptionError
from covey.train.recipe import Recipe

_LARGE = 1e6  # of an input that should be about 1; above it, the learning rate is not to blame alone
_NAMED = 5  # row numbers in a message


def check_labels(data: Data, recipe: Recipe) -> None:
    """Refuse labels that are no classes of the data, unless the recipe ignores them."""
    if recipe.ignore_index is not None and data.task in ("regression", "multilabel"):
        raise OptionError(f"ignore_index names a class, and the data are for {data.task}; leave it out.")
    if recipe.ignore_index is not None and (recipe.augment.mixup or recipe.augment.cutmix):
        raise OptionError(
            "mixup and cutmix make probabilities of labels, which ignore_index cannot mark; switch them off, or remove "
            "the samples that are to be ignored."
        )
    if data.task == "multilabel":
        for part, split in (("training", data.train), ("validation", data.validation)):
            _check_truths(split, part, len(data.classes))
    if data.task == "regression" or not data.classes:
        return
    for part, split in (("training", data.train), ("validation", data.validation)):
        if split.in_memory:
            check_targets(split.targets, part, len(data.classes), recipe.ignore_index)


def check_targets(targets: Tensor, part: str, classes: int, ignore_index: int | None) -> None:
    """Refuse labels that are no classes, unless they are those to ignore."""
    if not len(targets) or targets.is_floating_point():  # probabilities are no labels
        return
    if targets.dtype == torch.uint8 and classes == 256:  # text, of which every byte is a class
        return
    counts = torch.ones_like(targets, dtype=torch.bool)
    if ignore_index is not None:
        counts = targets != ignore_index
        if not counts.any():
            raise DataError(
                f"all {part} labels are {ignore_index}, which ignore_index leaves out: nothing would be left."
            )
    outside = counts & ((targets < 0) | (targets >= classes))
    if not outside.any():
        return
    place = outside.nonzero()[0].tolist()
    value = int(targets[tuple(place)])
    raise DataError(
        f"the {part} labels reach beyond the classes: {int(outside.sum())} of {targets.numel()}, the first is {value} "
        f"in row {place[0]}, and {classes} classes are numbered 0 to {classes - 1}. Correct them, or give "
        f"ignore_index={value} if samples with this label are not to count."
    )


def _check_truths(split: Split, part: str, labels: int) -> None:
    """Labels of which several may be true have a column each, of 0 and 1 or shares between."""
    targets = split.targets
    if not split.in_memory or not len(targets):
        return
    if targets.shape != (len(split), labels) or not targets.is_floating_point():
        raise DataError(
            f"the {part} targets are {targets.dtype} of shape {tuple(targets.shape)}; several labels may be true, so "
            f"they should be floats of shape ({len(split)}, {labels}), 1 where a label is true and 0 where it is not."
        )
    outside = ~((targets >= 0) & (targets <= 1)).all(1)  # NaN too
    if outside.any():
        row = int(outside.nonzero()[0])
        raise DataError(f"the {part} targets are not between 0 and 1 in {_rows(torch.tensor([row]))}.")


def check_read(targets: Tensor, part: str, data: Data, recipe: Recipe) -> None:
    """The same for labels that were read just now."""
    if data.task == "classification" and data.classes:
        check_targets(targets, part, len(data.classes), recipe.ignore_index)


def fault(split: Split, rows: Tensor, part: str) -> str | None:
    """What is wrong with samples whose loss is not finite, in a sentence; None if they look well.

    Args:
        split: where the samples are from.
        rows: their numbers, in any shape.
        part: what to call the split.
    """
    rows = rows.flatten().unique()
    inputs, targets = split.read(rows)
    shown = split.shown(rows)
    part = part if split.by_number else f"present batch of the {part}"
    parts = [("inputs", leaf) for leaf in tree_leaves(inputs)] + [("targets", targets)]
    for what, values in parts:
        if not isinstance(values, Tensor) or not values.is_floating_point() or not values.ndim:
            continue
        flat = values.reshape(len(values), -1)
        bad = shown[~flat.isfinite().all(1)]
        if len(bad):
            return (
                f"the {what} of {_rows(bad)} of the {part} data are NaN or infinite. Remove these samples, or fill "
                "in what is missing."
            )
        largest = flat.abs().amax(1)
        if what == "inputs" and largest.max() > _LARGE:
            return (
                f"the inputs of {_rows(shown[largest > _LARGE])} of the {part} data reach {float(largest.max()):.3g}, "
                "which is too large for a network. Standardise them."
            )
    return None


def _rows(rows: Tensor) -> str:
    """Row numbers in words: "row 3", "rows 3, 5", "rows 1, 2, 3, 4, 5 and 7 more"."""
    named = ", ".join(map(str, rows[:_NAMED].tolist()))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"row{'s' if len(rows) > 1 else ''} {named}{more}"
