"""Scores of a regression ensemble: errors, likelihood, and whether its intervals hold what they promise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.combine import Regression
from covey.errors import EvaluationError

LEVELS = tuple(i / 20 for i in range(1, 20))
"""Interval probabilities at which calibration is checked, 5 % to 95 %."""


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error over samples and outputs."""
    return math.sqrt(float((mean.double() - targets).square().mean()))


def mae(mean: Tensor, targets: Tensor) -> float:
    """Mean absolute error."""
    return float((mean.double() - targets).abs().mean())


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """Mean negative log-density of the targets under N(mean, variance) in nats, constant included."""
    _check_variance(variance)
    variance = variance.double()
    squared = (mean.double() - targets).square()
    return float((0.5 * (math.log(2 * math.pi) + variance.log() + squared / variance)).mean())


def coverage(mean: Tensor, variance: Tensor, targets: Tensor, *, level: float) -> float:
    """Share of targets inside the central interval that should hold a share `level` of them."""
    if not 0 < level < 1:
        raise EvaluationError(f"level: expected between 0 and 1, got {level}")
    _check_variance(variance)
    half_width = math.sqrt(2) * torch.special.erfinv(torch.tensor(level, dtype=torch.float64))
    distance = (mean.double() - targets).abs() / variance.double().sqrt()
    return float((distance <= half_width).double().mean())


def interval_calibration(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Expected and observed coverage at LEVELS."""
    observed = [coverage(mean, variance, targets, level=level) for level in LEVELS]
    return {"expected": list(LEVELS), "observed": observed}


def interval_error(curve: dict[str, list[float]]) -> float:
    """Mean absolute difference between expected and observed coverage."""
    pairs = list(zip(curve["expected"], curve["observed"], strict=True))
    return sum(abs(e - o) for e, o in pairs) / len(pairs)


def answer_scores(mean: Tensor, variance: Tensor | None, targets: Tensor) -> dict[str, float | None]:
    """All scores of one answer; those of the distribution are None where a variance is missing or 0."""
    scores: dict[str, float | None] = {"rmse": rmse(mean, targets), "mae": mae(mean, targets)}
    if variance is None or not (variance > 0).all():
        names = ("gaussian_nll", "coverage_50", "coverage_90", "coverage_95", "interval_error", "sharpness")
        return scores | dict.fromkeys(names)
    scores["gaussian_nll"] = gaussian_nll(mean, variance, targets)
    for level in (0.5, 0.9, 0.95):
        scores[f"coverage_{round(100 * level)}"] = coverage(mean, variance, targets, level=level)
    scores["interval_error"] = interval_error(interval_calibration(mean, variance, targets))
    scores["sharpness"] = float(variance.double().sqrt().mean())
    return scores


def regression_scores(prediction: Regression, targets: Tensor) -> dict:
    """Scores of the ensemble, of each member, their mean, and the ambiguity (variance of members' means).

    Ambiguity is the mean squared error of the members minus the ensemble's (Krogh and Vedelsby, 1995).
    """
    from .metrics import mean_scores

    means, variances = prediction.member_mean, prediction.member_variance
    members = [
        answer_scores(mean, None if variances is None else variances[k], targets)
        for k, mean in enumerate(means)
    ]
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
