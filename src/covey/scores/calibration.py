"""Fit calibrations on validation data: temperatures and conformal sets.

Guo et al. (2017): divide logits by T > 0 that minimises validation NLL.
Rahaman and Thiery (2021): for ensembles, scale the pooled prediction, because pooling makes it less sure.
Romano, Sesia, Candes (2020): adaptive prediction sets (APS); Sadinle, Lei, Wasserman (2019): threshold
sets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.calibration import Conformal, Temperature, class_scores, mean_log_probs
from covey.errors import EvaluationError

LOWEST, HIGHEST = 0.02, 50.0
"""Temperatures end here: on validation data without any error the best one would be 0."""


def fit_temperature(logits: Tensor, labels: Tensor, *, kind: str = "pooled") -> Temperature:
    """The temperatures of least NLL on validation logits (M, N, C) and labels (N,), 0.02 to 50."""
    if kind == "pooled":
        return Temperature("pooled", (_best(mean_log_probs(logits), labels),))
    if kind == "members":
        return Temperature("members", tuple(_best(member, labels) for member in logits))
    raise EvaluationError(f"kind: expected 'pooled' or 'members', got {kind!r}")


def fit_conformal(probs: Tensor, labels: Tensor, *, alpha: float = 0.1, kind: str = "aps") -> Conformal:
    """Conformal sets from validation probabilities (N, C) and labels (N,)."""
    if kind not in ("threshold", "aps"):
        raise EvaluationError(f"kind: expected 'threshold' or 'aps', got {kind!r}")
    if not 0 < alpha < 1:
        raise EvaluationError(f"alpha: expected between 0 and 1, got {alpha}")
    samples = len(labels)
    rank = math.ceil((samples + 1) * (1 - alpha) - 1e-9)
    if rank > samples:
        least = math.ceil(1 / alpha - 1e-9) - 1
        raise EvaluationError(
            f"conformal sets with alpha {alpha} need {least} validation samples or more, got {samples}"
        )
    scores = class_scores(probs.double(), kind).gather(-1, labels[:, None]).squeeze(-1)
    return Conformal(kind, alpha, float(scores.sort().values[rank - 1]))  # type: ignore[arg-type]


def conformal_scores(conformal: Conformal, probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Coverage and mean size of the sets on test probabilities (N, C) and labels (N,)."""
    sets = conformal.sets(probs)
    covered = sets.gather(-1, labels[:, None]).double().mean()
    return {"coverage": float(covered), "size": float(sets.sum(-1).double().mean())}


def _best(logits: Tensor, labels: Tensor) -> float:
    """NLL is convex in 1 / T, so a search in one dimension finds its least value."""
    from scipy.optimize import minimize_scalar

    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits * math.exp(-log_temperature), labels))

    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return math.exp(found.x)
