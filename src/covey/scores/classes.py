"""How well each class is answered, and which classes are taken for which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_CLASSES = 50
"""The confusion of more classes is not stored whole: nobody can read such a matrix."""

MOST_PAIRS = 12
"""How many of the most confused pairs of classes are stored."""


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many samples of each class (row) were answered with each class (column), (C, C) int64.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    cells = labels.long() * classes + predicted.long()
    return torch.bincount(cells.flatten(), minlength=classes * classes).view(classes, classes)


def per_class(counts: Tensor) -> dict[str, list[Any]]:
    """Samples, recall, precision and F1 of each class from a confusion matrix; None where nothing divides.

    Recall is the share of a class's samples that are answered with it, precision the share of such answers that are
    right, F1 their harmonic mean.
    """
    right = counts.diagonal().double()
    samples, answers = counts.sum(1), counts.sum(0)
    return {
        "samples": samples.tolist(),
        "recall": _shares(right, samples),
        "precision": _shares(right, answers),
        "f1": _shares(2 * right, samples + answers),
    }


def most_confused(counts: Tensor, most: int = MOST_PAIRS) -> list[dict[str, int]]:
    """The pairs of classes that are mistaken most often: label, answer and how many samples."""
    wrong = counts.clone()
    wrong.fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:most]
    found = []
    for cell in order.tolist():
        label, predicted = divmod(cell, len(wrong))
        count = int(wrong[label, predicted])
        if count:
            found.append({"label": label, "predicted": predicted, "count": count})
    return found


def class_scores(predicted: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    """Scores of each class, the most confused pairs, and the whole confusion where the classes are few."""
    counts = confusion(predicted, labels, classes)
    found: dict[str, Any] = {"per_class": per_class(counts), "confused": most_confused(counts)}
    if classes <= MOST_CLASSES:
        found["confusion"] = counts.tolist()
    return found


def _shares(part: Tensor, whole: Tensor) -> list[float | None]:
    found: list[float | None] = []
    for above, below in zip(part.tolist(), whole.tolist(), strict=True):
        found.append(above / below if below else None)
    return found
