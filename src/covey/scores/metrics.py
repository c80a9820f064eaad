"""Scores of a classifier's probabilities: accuracy, likelihood, calibration.

Every function takes log-probabilities (N, C) of one answer, the ensemble's or a member's, and labels (N,).
Logarithms are natural. `torchmetrics` computes what it has; the rest is a line or two of tensors.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.extras import explained

BINS = 15

Scores = dict[str, float | None]
"""Scores by name; None is one that is not defined."""


def torchmetrics_functions() -> ModuleType:
    """`torchmetrics.functional.classification`, loaded at first use because that takes seconds."""
    try:
        return importlib.import_module("torchmetrics.functional.classification")
    except ModuleNotFoundError as error:
        raise explained(error) from None
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
    multiclass_accuracy = torchmetrics_functions().multiclass_accuracy
    share = multiclass_accuracy(
        log_probs,
        labels,
        num_classes=log_probs.shape[-1],
        average="micro",
        top_k=top,
        validate_args=False,
    )
    return float(share)


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the labels in nats."""
    of_label = log_probs.gather(-1, labels[:, None])
    return -float(of_label.double().mean())


def bits_per_character(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the next symbol in bits."""
    return nll(log_probs, labels) / math.log(2)


def perplexity(log_probs: Tensor, labels: Tensor) -> float | None:
    """Exponential of the mean negative log-likelihood; None above 1e30, which says only that training failed."""
    exponent = nll(log_probs, labels)
    return math.exp(exponent) if exponent < math.log(1e30) else None


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Mean over samples of the squared distance between probabilities and the one-hot label, 0 to 2."""
    probs = log_probs.exp()
    # |p - e_y|^2 = |p|^2 - 2 p_y + 1, which needs no one-hot matrix.
    of_label = probs.gather(-1, labels[:, None]).squeeze(-1)
    squared_distance = probs.square().sum(-1) - 2 * of_label + 1
    return float(squared_distance.double().mean())


def ece(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class, with `bins` bins of equal width."""
    _check_bins(len(labels), bins)
    multiclass_calibration_error = torchmetrics_functions().multiclass_calibration_error
    error = multiclass_calibration_error(
        log_probs.exp(),
        labels,
        num_classes=log_probs.shape[-1],
        n_bins=bins,
        norm="l1",
        validate_args=False,
    )
    return float(error)


def adaptive_ece(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> float:
    """Expected calibration error with bins that hold equally many samples, as equal as N allows."""
    _check_bins(len(labels), bins)
    confidence, correct = _confidence(log_probs, labels)
    order = confidence.argsort(stable=True)
    gaps = correct[order] - confidence[order]
    total = 0.0
    for bin_gaps in torch.tensor_split(gaps, bins):
        total += abs(float(bin_gaps.sum()))
    return total / len(labels)


def reliability(log_probs: Tensor, labels: Tensor, *, bins: int = BINS) -> dict[str, list[float]]:
    """Accuracy, mean confidence and share of the samples in each bin of equal width that has samples."""
    confidence, correct = _confidence(log_probs, labels)
    bin_of = (confidence * bins).long().clamp(max=bins - 1)  # a confidence of 1 belongs to the last bin
    every_count = torch.bincount(bin_of, minlength=bins)
    filled = every_count > 0
    count = every_count[filled]
    confidence_sums = torch.bincount(bin_of, confidence, bins)[filled]
    correct_sums = torch.bincount(bin_of, correct, bins)[filled]
    left_edges = torch.arange(bins, device=filled.device)[filled] / bins
    return {
        "left": left_edges.tolist(),
        "confidence": (confidence_sums / count).tolist(),
        "accuracy": (correct_sums / count).tolist(),
        "share": (count / len(labels)).tolist(),
    }


def answer_scores(log_probs: Tensor, labels: Tensor, *, language: bool = False) -> Scores:
    """All scores of one answer; None for ECE of fewer samples than bins and top-5 of 5 classes or fewer."""
    enough = len(labels) >= BINS
    many_classes = log_probs.shape[-1] > 5
    scores: Scores = {
        "accuracy": accuracy(log_probs, labels),
        "top5": accuracy(log_probs, labels, top=5) if many_classes else None,
        "nll": nll(log_probs, labels),
        "brier": brier(log_probs, labels),
        "ece": ece(log_probs, labels) if enough else None,
        "adaptive_ece": adaptive_ece(log_probs, labels) if enough else None,
    }
    if language:
        scores["bits_per_character"] = bits_per_character(log_probs, labels)
        scores["perplexity"] = perplexity(log_probs, labels)
    return scores


def classification_scores(prediction: Prediction, labels: Tensor, *, language: bool = False) -> dict:
    """Scores of the ensemble, of each member, and the mean of the members' scores."""
    members = []
    for log_probs in prediction.member_log_probs:
        members.append(answer_scores(log_probs, labels, language=language))
    return {
        "ensemble": answer_scores(prediction.log_probs, labels, language=language),
        "member_mean": mean_scores(members),
        "members": members,
    }


def mean_scores(rows: Sequence[Scores]) -> Scores:
    """Mean of each score over rows, None where it is not defined in a row."""
    means: Scores = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        defined = [value for value in values if value is not None]
        means[name] = sum(defined) / len(values) if len(defined) == len(values) else None
    return means


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
