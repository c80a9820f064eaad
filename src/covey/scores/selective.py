"""Answering only where the ensemble is sure: risk against coverage.

Samples are taken from the surest on; coverage is the share taken, risk the share of errors among them.
Samples of equal confidence count with the mean error of their group, so that the order of the data does not
matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.errors import EvaluationError

COVERAGES = (0.5, 0.8, 0.9, 0.95)


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage (N,) from 1/N to 1 and risk (N,) at it, from confidences (N,) and correctness (N,)."""
    if confidence.shape != correct.shape or confidence.ndim != 1 or not len(confidence):
        raise EvaluationError(
            "risk_coverage: expected confidence and correct of one shape (N,), "
            f"got {tuple(confidence.shape)} and {tuple(correct.shape)}"
        )
    # Groups of equal confidence, numbered from the surest on.
    _, group = torch.unique(-confidence, return_inverse=True)
    errors = 1 - correct.double()
    size = torch.bincount(group)
    group_error = torch.bincount(group, errors) / size
    expected_errors = torch.repeat_interleave(group_error, size).cumsum(0)
    samples = len(confidence)
    taken = torch.arange(1, samples + 1, dtype=torch.float64, device=confidence.device)
    return taken / samples, expected_errors / taken


def selective_scores(confidence: Tensor, correct: Tensor) -> dict[str, float]:
    """Area under the risk-coverage curve (mean risk over 1/N to 1), and accuracy at some coverages."""
    coverage, risk = risk_coverage(confidence, correct)
    scores = {"aurc": float(risk.mean())}
    for wanted in COVERAGES:
        # A hair less, because a coverage such as 19/20 is not exactly 0.95.
        reached = torch.tensor(wanted - 1e-9, dtype=torch.float64, device=coverage.device)
        at = int(torch.searchsorted(coverage, reached))
        percent = round(100 * wanted)
        scores[f"accuracy_at_{percent}"] = float(1 - risk[at])
    return scores


def thinned(confidence: Tensor, correct: Tensor, *, points: int = 200) -> dict[str, list[float]]:
    """The risk-coverage curve at about `points` coverages, for a figure."""
    coverage, risk = risk_coverage(confidence, correct)
    shown = min(points, len(risk))
    at = torch.linspace(0, len(risk) - 1, shown).long()
    return {"coverage": coverage[at].tolist(), "risk": risk[at].tolist()}
