"""Fit calibrations on validation data: temperatures, conformal sets and conformal intervals.

Guo et al. (2017): divide logits by T > 0 that minimises validation NLL.
Rahaman and Thiery (2021): for ensembles, scale the pooled prediction, because pooling makes it less sure.
Romano, Sesia, Candes (2020): adaptive prediction sets (APS); Sadinle, Lei, Wasserman (2019): threshold
sets. Lei et al. (2018): split conformal intervals, plain and normalised by a deviation. Romano, Patterson, Candes
(2019): a margin for quantiles.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor

from covey.calibration import Conformal, Intervals, Margin, Temperature, class_scores, mean_log_probs
from covey.combine import Regression
from covey.errors import EvaluationError
from covey.extras import load
from covey.quantiles import ROUNDING, QuantileAnswer

LOWEST, HIGHEST = 0.02, 50.0
"""Temperatures end here: on validation data without any error the best one would be 0."""

LEAST_FOR_CONFORMAL = 9
"""Conformal sets at 90 % can promise nothing with fewer validation samples."""


def fit_temperature(logits: Tensor, labels: Tensor, *, kind: str = "pooled") -> Temperature:
    """The temperatures of least NLL on validation logits (M, N, C) and labels (N,), 0.02 to 50.

    Args:
        logits: members' logits on validation data.
        labels: of the validation data.
        kind: "pooled" for one temperature of the pooled prediction, "members" for one per member.
    """
    if kind == "pooled":
        return Temperature("pooled", (_best_temperature(mean_log_probs(logits), labels),))
    if kind == "members":
        each = [_best_temperature(member, labels) for member in logits]
        return Temperature("members", tuple(each))
    raise EvaluationError(f"kind: expected 'pooled' or 'members', got {kind!r}")


def fit_conformal(probs: Tensor, labels: Tensor, *, alpha: float = 0.1, kind: str = "aps") -> Conformal:
    """Sets of classes that hold the true one with probability 1 - alpha, from validation data.

    Args:
        probs: probabilities on validation data, (N, C), as they will be when the sets are used.
        labels: of the validation data, (N,).
        alpha: the share of misses allowed.
        kind: "aps" for sets that grow where the ensemble is less sure, "threshold" for the smallest sets on average.
    """
    if kind not in ("threshold", "aps"):
        raise EvaluationError(f"kind: expected 'threshold' or 'aps', got {kind!r}")
    rank = _rank(len(labels), alpha, "sets")
    every_class = class_scores(probs.double(), kind)
    true_class = every_class.gather(-1, labels[:, None]).squeeze(-1)
    quantile = float(true_class.sort().values[rank - 1])
    return Conformal(cast(Literal["threshold", "aps"], kind), alpha, quantile)


def fit_intervals(
    prediction: Regression, targets: Tensor, *, alpha: float = 0.1, kind: str = "normalised"
) -> Intervals:
    """Intervals that hold the true number with probability 1 - alpha, from validation data (split conformal).

    Args:
        prediction: the ensemble's answer on validation data, (N,) or (N, D), as it will be when intervals are used.
        targets: the true numbers, of the same shape.
        alpha: the share of misses allowed.
        kind: "normalised" for intervals of as many of the ensemble's standard deviations everywhere, so that they
            follow its uncertainty; "absolute" for equally wide ones.
    """
    if kind not in ("absolute", "normalised"):
        raise EvaluationError(f"kind: expected 'absolute' or 'normalised', got {kind!r}")
    mean, std = prediction.mean.double(), prediction.std.double()
    if targets.numel() != mean.numel():
        raise EvaluationError(f"targets: expected shape {tuple(mean.shape)}, got {tuple(targets.shape)}")
    errors = (mean - targets.reshape(mean.shape)).abs()
    if not errors.isfinite().all():
        raise EvaluationError(
            "intervals are fitted on finite numbers; some targets or answers are NaN or infinite"
        )
    if kind == "normalised":
        if not (std > 0).all():
            raise EvaluationError(
                "the ensemble's deviation is 0 somewhere, so intervals cannot be normalised by it: use "
                "kind='absolute', or members that give variances"
            )
        errors = errors / std
    by_output = errors.reshape(len(errors), -1).sort(0).values
    rank = _rank(len(errors), alpha, "intervals")
    quantiles = tuple(by_output[rank - 1].tolist())
    return Intervals(cast(Literal["absolute", "normalised"], kind), alpha, quantiles)


def interval_scores(intervals: Intervals, prediction: Regression, targets: Tensor) -> dict[str, float]:
    """Coverage, mean width and mean interval score on test data; see `scores_between`."""
    low, high = intervals.around(prediction.mean.double(), prediction.std.double())
    return scores_between(low, high, targets, intervals.alpha)


def margin_scores(margin: Margin, answer: QuantileAnswer, targets: Tensor) -> dict[str, float]:
    """Coverage, mean width and mean interval score on test data; see `scores_between`."""
    widened = QuantileAnswer(answer.members, answer.asked, margin.margin)
    return scores_between(widened.low.double(), widened.high.double(), targets, margin.alpha)


def scores_between(low: Tensor, high: Tensor, targets: Tensor, alpha: float) -> dict[str, float]:
    """Coverage, mean width and mean interval score of intervals that should miss a share `alpha` of the targets.

    The interval score (Gneiting and Raftery, 2007) is the width plus 2 / alpha times the distance of what is missed;
    lower is better.
    """
    below = (low - targets).clamp_min(0)
    above = (targets - high).clamp_min(0)
    width = high - low
    covered = (below == 0) & (above == 0)
    score = width + 2 / alpha * (below + above)
    return {
        "coverage": float(covered.double().mean()),
        "width": float(width.mean()),
        "interval_score": float(score.mean()),
    }


def fit_margin(answer: QuantileAnswer, targets: Tensor, *, alpha: float = 0.1) -> Margin:
    """The margin with which the outermost quantiles hold the true number with probability 1 - alpha.

    Args:
        answer: the ensemble's answer on validation data, (N, Q) or (N, D, Q), without a margin.
        targets: the true numbers, (N,) or (N, D); each of D targets has its own margin.
        alpha: the share of misses allowed.
    """
    return Margin(alpha, answer.fitted_margin(targets, alpha))


def _rank(samples: int, alpha: float, what: str) -> int:
    """Which of the sorted validation scores is the conformal quantile, counted from 1."""
    if not 0 < alpha < 1:
        raise EvaluationError(f"alpha: expected between 0 and 1, got {alpha}")
    rank = math.ceil((samples + 1) * (1 - alpha) - ROUNDING)
    if rank > samples:
        least = math.ceil(1 / alpha - ROUNDING) - 1
        raise EvaluationError(
            f"conformal {what} with alpha {alpha} need {least} validation samples or more, got {samples}"
        )
    return rank


def conformal_scores(conformal: Conformal, probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Coverage and mean size of the sets on test probabilities (N, C) and labels (N,)."""
    sets = conformal.sets(probs)
    covered = sets.gather(-1, labels[:, None]).double()
    sizes = sets.sum(-1).double()
    return {"coverage": float(covered.mean()), "size": float(sizes.mean())}


def _best_temperature(logits: Tensor, labels: Tensor) -> float:
    """NLL is convex in 1 / T, so a search in one dimension finds its least value."""
    minimize_scalar = load("scipy.optimize").minimize_scalar

    logits = logits.double()

    def nll(log_temperature: float) -> float:
        return float(F.cross_entropy(logits * math.exp(-log_temperature), labels))

    bounds = math.log(LOWEST), math.log(HIGHEST)
    found = minimize_scalar(nll, bounds=bounds, method="bounded")
    return math.exp(found.x)
