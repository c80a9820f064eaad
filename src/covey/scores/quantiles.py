"""Scores of an ensemble that answers with quantiles: pinball loss, coverage and width."""

from __future__ import annotations

from torch import Tensor

from covey.quantiles import QuantileAnswer

from .metrics import mean_scores
from .regression import mae, rmse


def answer_scores(answer: QuantileAnswer, targets: Tensor) -> dict[str, float | None]:
    """All scores of one answer; RMSE and MAE are those of the level nearest to the median."""
    below = levels_below(answer, targets)
    scores: dict[str, float | None] = dict(answer.scores(targets))
    scores["level_error"] = sum(abs(x - y) for x, y in zip(*below.values(), strict=True)) / len(
        below["expected"]
    )
    if len(answer.asked.levels) == 1:
        scores |= dict.fromkeys(("nominal", "coverage", "width"))  # one level is no interval
    return {**scores, "rmse": rmse(answer.centre, targets), "mae": mae(answer.centre, targets)}


def levels_below(answer: QuantileAnswer, targets: Tensor) -> dict[str, list[float]]:
    """Each level, and the share of targets that are not above its quantile."""
    below = targets[..., None] <= answer.quantiles
    return {"expected": list(answer.asked.levels), "observed": below.double().flatten(0, -2).mean(0).tolist()}


def quantile_scores(answer: QuantileAnswer, targets: Tensor) -> dict:
    """Scores of the ensemble, of each member, their mean, and the ambiguity (variance of members' quantiles)."""
    members = []
    for own in answer.members:
        members.append(answer_scores(QuantileAnswer(own[None], answer.asked), targets))
    return {
        "ensemble": answer_scores(answer, targets),
        "member_mean": mean_scores(members),
        "members": members,
        "diversity": {"ambiguity": float(answer.epistemic.double().mean())},
    }
