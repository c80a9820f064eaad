"""Fit calibrations on validation data: temperatures and conformal sets.

Guo et al. (2017): divide logits by T > 0 that minimises validation NLL.
Rahaman and Thiery (2021): for ensembles, scale the pooled prediction, because pooling makes it less sure.
Romano, Sesia, Candes (2020): adaptive prediction sets (APS); Sadinle, Lei, Wasserman (2019): threshold
sets.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor

from covey.calibration import Conformal, Temperature, class_scores, mean_log_probs
from covey.errors import EvaluationError
from covey.extras import load

LOWEST, HIGHEST = 0.02, 50.0
"""Temperatures end here: on validation data without any error the best one would be 0."""

ROUNDING = 1e-9
"""Keeps products such as 0.9 * 10 = 9.000000000000002 from being rounded up to the next integer."""


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
    if not 0 < alpha < 1:
        raise EvaluationError(f"alpha: expected between 0 and 1, got {alpha}")
    samples = len(labels)
    rank = math.ceil((samples + 1) * (1 - alpha) - ROUNDING)
    if rank > samples:
        least = math.ceil(1 / alpha - ROUNDING) - 1
        raise EvaluationError(
            f"conformal sets with alpha {alpha} need {least} validation samples or more, got {samples}"
        )
    every_class = class_scores(probs.double(), kind)
    true_class = every_class.gather(-1, labels[:, None]).squeeze(-1)
    quantile = float(true_class.sort().values[rank - 1])
    return Conformal(cast(Literal["threshold", "aps"], kind), alpha, quantile)


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
