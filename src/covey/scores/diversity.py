"""How differently the members answer, and whether they fail together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError


def disagreement(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of samples where members i and j answer differently, over the error rate of member i, (M, M).

    Members that fail independently come near 1 and above, copies give 0. The row of a member without any
    error is nan.
    """
    _check_members(logits)
    answer = logits.argmax(-1)
    differ = torch.stack([(answer != row).double().mean(-1) for row in answer])
    error = (answer != labels).double().mean(-1)
    return torch.where(error[:, None] > 0, differ / error[:, None], torch.nan)


def error_correlation(logits: Tensor, labels: Tensor) -> Tensor:
    """Pearson correlation of the members' errors, (M, M); nan for a member that is always or never right."""
    _check_members(logits)
    errors = (logits.argmax(-1) != labels).double()
    errors = errors - errors.mean(-1, keepdim=True)
    norm = errors.norm(dim=-1)
    correlation = errors @ errors.T / (norm[:, None] * norm)
    defined = (norm > 0)[:, None] & (norm > 0)
    return torch.where(defined, correlation, torch.nan)


def ambiguity(prediction: Prediction) -> float:
    """Mean squared distance of members' probabilities to their mean.

    It is the mean Brier score of the members minus the ensemble's (Krogh and Vedelsby, 1995).
    """
    mean = prediction.probs
    return float(
        sum((p.exp() - mean).square().sum(-1).double().mean() for p in prediction.member_log_probs)
    ) / len(prediction.logits)


def mean_of_pairs(matrix: Tensor) -> float | None:
    """Mean over pairs of different members; None if any pair is not defined."""
    members = len(matrix)
    pairs = matrix[~torch.eye(members, dtype=torch.bool)]
    return None if pairs.isnan().any() else float(pairs.mean())


def diversity_scores(prediction: Prediction, labels: Tensor, ood: Mapping[str, Prediction]) -> dict:
    """All diversity scores. With one member there are no pairs: pairwise scores are None, the others 0."""
    information = {"test": float(prediction.mutual_information.mean())}
    information |= {name: float(strange.mutual_information.mean()) for name, strange in ood.items()}
    scores: dict = {
        "mutual_information": information,
        "ambiguity": ambiguity(prediction),
        "disagreement": None,
        "disagreement_matrix": None,
        "error_correlation": None,
    }
    if len(prediction.logits) > 1:
        matrix = disagreement(prediction.logits, labels)
        scores["disagreement"] = mean_of_pairs(matrix)
        scores["disagreement_matrix"] = [[None if v != v else v for v in row] for row in matrix.tolist()]
        scores["error_correlation"] = mean_of_pairs(error_correlation(prediction.logits, labels))
    return scores


def _check_members(logits: Tensor) -> None:
    if len(logits) < 2:
        raise EvaluationError(f"diversity compares pairs of members, got {len(logits)} member")
