"""Scores of a classifier's probabilities: accuracy, likelihood, calibration.

Every function takes log-probabilities (N, C) of one answer, the ensemble's or a member's, and labels (N,).
Logarithms are natural. `torchmetrics` computes what it has; the rest is a line or two of tensors.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError

BINS = 15


def torchmetrics_functions() -> ModuleType:
    """`torchmetrics.functional.classification`, loaded at first use because that takes seconds."""
    try:
        return importlib.import_module("torchmetrics.functional.classification")
    except RuntimeError as problem:
        if "torchvision::" not in str(problem):
            raise
    # torchmetrics imports torchvision if that is installed, and one of another build than torch's (the usual case on
    # machines without a GPU) fails for want of its compiled operators. No score needs them: declare them and go on.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep_alive.append(library)
    return importlib.import_module("torchmetrics.functional.classification")


_keep_alive: list[torch.library.Library] = []
"""A library's operators vanish with it."""


def accuracy(log_probs: Tensor, labels: Tensor, *, top: int = 1) -> float:
    """Share of samples whose label is among the `top` most probable classes."""
    classes = log_probs.shape[-1]
    function = torchmetrics_functions().multiclass_accuracy
    return float(function(log_probs, labels, classes, average="micro", top_k=top, validate_args=False))


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the labels in nats."""
    return -float(log_probs.gather(-1, labels[:, None]).double().mean())


def bits_per_character(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the next symbol in bits."""
    return nll(log_probs, labels) / math.log(2)


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Mean over samples of the squared distance between probabilities and the one-hot label, 0 to 2."""
    probs = log_probs.exp()
    # |p - e_y|^2 = |p|^2 - 2 p_y + 1, which needs no one-hot matrix.
    squared = probs.square().sum(-1) - 2 * probs.gather(-1, labels[:, None]).squeeze(-1) + 1
    return float(squared.double().mean())


def ece(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class, with `bins` bins of equal width."""
    _check_bins(len(labels), bins)
    function = torchmetrics_functions().multiclass_calibration_error
    probs = log_probs.exp()
    return float(function(probs, labels, probs.shape[-1], n_bins=bins, norm="l1", validate_args=False))


def adaptive_ece(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> float:
    """Expected calibration error with bins that hold equally many samples, as equal as N allows."""
    _check_bins(len(labels), bins)
    confidence, correct = _confidence(log_probs, labels)
    order = confidence.argsort(stable=True)
    gap = correct[order] - confidence[order]
    parts = torch.tensor_split(gap, bins)
    return float(sum(part.sum().abs() for part in parts) / len(labels))


def reliability(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> dict[str, list[float]]:
    """Accuracy, mean confidence and share of the samples in each bin of equal width that has samples."""
    confidence, correct = _confidence(log_probs, labels)
    which = torch.clamp((confidence * bins).long(), max=bins - 1)
    count = torch.bincount(which, minlength=bins)
    full = count > 0
    mean_confidence = torch.bincount(which, confidence, bins)[full] / count[full]
    mean_correct = torch.bincount(which, correct, bins)[full] / count[full]
    edges = torch.arange(bins)[full] / bins
    return {
        "left": edges.tolist(),
        "confidence": mean_confidence.tolist(),
        "accuracy": mean_correct.tolist(),
        "share": (count[full] / len(labels)).tolist(),
    }


def answer_scores(log_probs: Tensor, labels: Tensor, *, language: bool = False) -> dict[str, float | None]:
    """All scores of one answer; None for ECE of fewer samples than bins and top-5 of 5 classes or fewer."""
    enough = len(labels) >= BINS
    scores: dict[str, float | None] = {
        "accuracy": accuracy(log_probs, labels),
        "top5": accuracy(log_probs, labels, top=5) if log_probs.shape[-1] > 5 else None,
        "nll": nll(log_probs, labels),
        "brier": brier(log_probs, labels),
        "ece": ece(log_probs, labels) if enough else None,
        "adaptive_ece": adaptive_ece(log_probs, labels) if enough else None,
    }
    if language:
        scores["bits_per_character"] = bits_per_character(log_probs, labels)
    return scores


def classification_scores(prediction: Prediction, labels: Tensor, *, language: bool = False) -> dict:
    """Scores of the ensemble, of each member, and the mean of the members' scores."""
    members = [answer_scores(p, labels, language=language) for p in prediction.member_log_probs]
    return {
        "ensemble": answer_scores(prediction.log_probs, labels, language=language),
        "member_mean": mean_scores(members),
        "members": members,
    }


def mean_scores(rows: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Mean of each score over rows, None where a row has none."""
    result: dict[str, float | None] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        known = [v for v in values if v is not None]
        result[name] = sum(known) / len(known) if len(known) == len(values) else None
    return result


def _confidence(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    confidence, label = log_probs.max(-1)
    return confidence.double().exp(), (label == labels).double()


def _check_bins(samples: int, bins: int) -> None:
    if bins < 1:
        raise EvaluationError(f"bins: expected 1 or more, got {bins}")
    if samples < bins:
        raise EvaluationError(
            f"calibration error with {bins} bins needs as many samples or more, got {samples}: "
            f"give more samples or fewer bins, bins={max(1, samples // 10)}"
        )
