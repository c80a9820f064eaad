"""Factors of the loss: of each class's samples, and of each sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from covey.data.container import Data
from covey.data.fields import tensors
from covey.errors import OptionError


def with_class_weights(data: Data, given: Any) -> Data:
    """The data with a factor for each class: `given` as `adapt` takes it."""
    if given is None:
        return data
    if data.task in ("regression", "multilabel"):
        raise OptionError(f"class_weight is for classes, and the data are for {data.task}; leave it out.")
    if isinstance(given, str):
        return replace(data, class_weights=_balanced(data, given))
    if isinstance(given, Mapping):
        given = _listed(given, len(data.classes))
    weights = torch.as_tensor(given, dtype=torch.get_default_dtype())
    if weights.ndim != 1 or (data.classes and len(weights) != len(data.classes)):
        raise OptionError(
            f"class_weight has shape {tuple(weights.shape)}; expected a number for each of {len(data.classes)} classes."
        )
    _check_weights(weights, "class_weight")
    return replace(data, class_weights=weights)


def _balanced(data: Data, given: str) -> Tensor:
    """Samples / (classes x samples of the class)."""
    if given != "balanced" or not data.train.in_memory:
        raise OptionError(
            "class_weight is 'balanced', where all labels are in memory, or a number for each class; "
            f"got {given!r}."
        )
    counts = torch.bincount(data.train.targets.flatten().clamp_min(0), minlength=len(data.classes))
    return counts.sum() / (len(data.classes) * counts.clamp_min(1))


def _listed(given: Mapping[int, float], classes: int) -> list[float]:
    """A number for each class, of a dict of those that are not 1."""
    for number in given:
        if not isinstance(number, int) or not 0 <= number < classes:
            raise OptionError(
                f"class_weight names class {number!r}; there are 0 to {classes - 1}. Where the number of classes is "
                "not known, give it by classes=[...]."
            )
    return [given.get(number, 1.0) for number in range(classes)]


def with_sample_weights(data: Data, given: Any, total: int, rows: Tensor) -> Data:
    """The data with a factor for each training sample.

    Args:
        data: what is trained on.
        given: a number for each of the samples that were given, or None.
        total: how many were given.
        rows: the numbers of those that are trained on.
    """
    if given is None:
        return data
    if not data.train.by_number:
        raise OptionError(
            "sample_weight needs samples with numbers; a stream of batches has none. Weigh them in a loss."
        )
    weights = tensors(given, "sample_weight")
    if tuple(weights.shape) != (total,):
        raise OptionError(
            f"sample_weight has shape {tuple(weights.shape)}; expected one number for each of {total} training samples."
        )
    _check_weights(weights, "sample_weight")
    weights = weights.to(torch.get_default_dtype())[rows]
    return replace(data, sample_weights=weights / weights.mean())


def _check_weights(weights: Tensor, what: str) -> None:
    if not bool((weights >= 0).all()) or not bool(weights.isfinite().all()) or not bool(weights.sum() > 0):
        raise OptionError(
            f"{what} are at least 0, finite, and not all 0; the smallest is {float(weights.min()):.3g}, the largest "
            f"{float(weights.max()):.3g}."
        )
