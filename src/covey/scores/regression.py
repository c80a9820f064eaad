"""Scores of a regression ensemble: errors, likelihood, and whether its intervals hold what they promise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.combine import Regression
from covey.errors import EvaluationError

from .metrics import mean_scores

LEVELS = tuple(percent / 100 for percent in range(5, 100, 5))
"""Interval probabilities at which calibration is checked, 5 % to 95 %."""

SHOWN_LEVELS = (0.5, 0.9, 0.95)
"""Those of which the coverage is a score of its own."""

DISTRIBUTION_SCORES = (
    "gaussian_nll",
    "coverage_50",
    "coverage_90",
    "coverage_95",
    "interval_error",
    "sharpness",
)
"""Scores that need a variance."""


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error over samples and outputs."""
    squared_error = (mean.double() - targets).square()
    return math.sqrt(float(squared_error.mean()))


def mae(mean: Tensor, targets: Tensor) -> float:
    """Mean absolute error."""
    return float((mean.double() - targets).abs().mean())


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """Mean negative log-density of the targets under N(mean, variance) in nats, constant included."""
    _check_variance(variance)
    variance = variance.double()
    squared_error = (mean.double() - targets).square()
    constant = math.log(2 * math.pi)
    nll = 0.5 * (constant + variance.log() + squared_error / variance)
    return float(nll.mean())


def coverage(mean: Tensor, variance: Tensor, targets: Tensor, *, level: float) -> float:
    """Share of targets inside the central interval that should hold a share `level` of them."""
    if not 0 < level < 1:
        raise EvaluationError(f"level: expected between 0 and 1, got {level}")
    _check_variance(variance)
    half_width = math.sqrt(2) * torch.special.erfinv(torch.tensor(level, dtype=torch.float64))
    deviations = (mean.double() - targets).abs() / variance.double().sqrt()
    return float((deviations <= half_width).double().mean())


def interval_calibration(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Expected and observed coverage at LEVELS."""
    observed = [coverage(mean, variance, targets, level=level) for level in LEVELS]
    return {"expected": list(LEVELS), "observed": observed}


def interval_error(curve: dict[str, list[float]]) -> float:
    """Mean absolute difference between expected and observed coverage."""
    total = 0.0
    for expected, observed in zip(curve["expected"], curve["observed"], strict=True):
        total += abs(expected - observed)
    return total / len(curve["expected"])


def answer_scores(mean: Tensor, variance: Tensor | None, targets: Tensor) -> dict[str, float | None]:
    """All scores of one answer; those of the distribution are None where a variance is missing or 0."""
    scores: dict[str, float | None] = {"rmse": rmse(mean, targets), "mae": mae(mean, targets)}
    if variance is None or not (variance > 0).all():
        scores.update(dict.fromkeys(DISTRIBUTION_SCORES))
        return scores
    scores["gaussian_nll"] = gaussian_nll(mean, variance, targets)
    for level in SHOWN_LEVELS:
        percent = round(100 * level)
        scores[f"coverage_{percent}"] = coverage(mean, variance, targets, level=level)
    curve = interval_calibration(mean, variance, targets)
    scores["interval_error"] = interval_error(curve)
    scores["sharpness"] = float(variance.double().sqrt().mean())
    return scores


def regression_scores(prediction: Regression, targets: Tensor) -> dict:
    """Scores of the ensemble, of each member, their mean, and the ambiguity (variance of members' means).

    Ambiguity is the mean squared error of the members minus the ensemble's (Krogh and Vedelsby, 1995).
    """
    members = []
    for k, mean in enumerate(prediction.member_mean):
        variances = prediction.member_variance
        variance = None if variances is None else variances[k]
        members.append(answer_scores(mean, variance, targets))
    return {
        "ensemble": answer_scores(prediction.mean, prediction.variance, targets),
        "member_mean": mean_scores(members),
        "members": members,
        "diversity": {"ambiguity": float(prediction.epistemic.double().mean())},
    }


def _check_variance(variance: Tensor) -> None:
    if not (variance > 0).all():
        raise EvaluationError(
            f"variance: expected positive values, got {float(variance.min()):.3g}; one member without a "
            "variance of its own, or members that agree entirely, give no distribution"
        )
