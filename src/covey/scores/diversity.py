"""How differently the members answer, and whether they fail together."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError


def disagreement(logits: Tensor) -> Tensor:
    """Share of samples where members i and j answer differently, (M, M)."""
    _check_members(logits)
    answers = logits.argmax(-1)
    # Row by row: all pairs at once would need M x M x N values.
    return torch.stack([(answers != answer).double().mean(-1) for answer in answers])


def normalised_disagreement(logits: Tensor, labels: Tensor) -> Tensor:
    """Disagreement of members i and j over the error rate of member i, (M, M).

    Members that fail independently come near 1 and above, copies give 0. The row of a member without any
    error is nan.
    """
    differ = disagreement(logits)
    error_rate = _errors(logits, labels).mean(-1)[:, None]
    return torch.where(error_rate > 0, differ / error_rate, torch.nan)


def error_correlation(logits: Tensor, labels: Tensor) -> Tensor:
    """Pearson correlation of the members' errors, (M, M); nan for a member that is always or never right."""
    _check_members(logits)
    return torch.corrcoef(_errors(logits, labels))


def ambiguity(prediction: Prediction) -> float:
    """Mean squared distance of members' probabilities to their mean.

    It is the mean Brier score of the members minus the ensemble's (Krogh and Vedelsby, 1995).
    """
    mean = prediction.probs
    total = 0.0
    for log_probs in prediction.member_log_probs:  # one by one, to keep a single (N, C) difference in memory
        squared_distance = (log_probs.exp() - mean).square().sum(-1)
        total += float(squared_distance.double().mean())
    return total / len(prediction.logits)


def mean_of_pairs(matrix: Tensor) -> float | None:
    """Mean over pairs of different members; None if any pair is not defined."""
    same = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    mean = float(matrix[~same].mean())
    return None if math.isnan(mean) else mean


def diversity_scores(prediction: Prediction, labels: Tensor, ood: Mapping[str, Prediction]) -> dict:
    """All diversity scores. With one member there are no pairs: pairwise scores are None, the others 0."""
    information = {}
    for name, found in {"test": prediction, **ood}.items():
        information[name] = float(found.mutual_information.mean())
    scores: dict = {
        "mutual_information": information,
        "ambiguity": ambiguity(prediction),
        "disagreement": None,
        "disagreement_matrix": None,
        "normalised_disagreement": None,
        "normalised_disagreement_matrix": None,
        "error_correlation": None,
    }
    if len(prediction.logits) > 1:
        differ = disagreement(prediction.logits)
        normalised = normalised_disagreement(prediction.logits, labels)
        correlation = error_correlation(prediction.logits, labels)
        scores["disagreement"] = mean_of_pairs(differ)
        scores["disagreement_matrix"] = _without_nan(differ)
        scores["normalised_disagreement"] = mean_of_pairs(normalised)
        scores["normalised_disagreement_matrix"] = _without_nan(normalised)
        scores["error_correlation"] = mean_of_pairs(correlation)
    return scores


def _errors(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where a member is wrong, else 0, (M, N)."""
    return (logits.argmax(-1) != labels).double()


def _without_nan(matrix: Tensor) -> list[list[float | None]]:
    """JSON knows no nan."""
    rows: list[list[float | None]] = []
    for row in matrix.tolist():
        rows.append([None if math.isnan(value) else value for value in row])
    return rows


def _check_members(logits: Tensor) -> None:
    if len(logits) < 2:
        raise EvaluationError(f"diversity compares pairs of members, got {len(logits)} member")
