"""Scores where several labels may be true: each label is a detector of its own, and the headline is their mean.

Every function takes log-odds or probabilities of one answer, the ensemble's or a member's, and targets of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.combine import MultiLabel

from .metrics import BINS, Scores, mean_scores, torchmetrics_functions

PER_LABEL = ("auroc", "ap", "brier", "ece")
"""Scores of each label."""


def calibration_error(probs: Tensor, targets: Tensor, *, bins: int = BINS) -> float | None:
    """Mean distance between a label's probability (N,) and how often it is true, over bins of equal width.

    None for fewer samples than bins.
    """
    if len(probs) < bins:
        return None
    curve = reliability(probs, targets, bins=bins)
    total = 0.0
    for share, claimed, held in zip(curve["share"], curve["confidence"], curve["accuracy"], strict=True):
        total += share * abs(claimed - held)
    return total


def reliability(probs: Tensor, targets: Tensor, *, bins: int = BINS) -> dict[str, list[float]]:
    """How often labels are true, their mean probability and their share, in each bin of equal width that has some."""
    flat, true = probs.double().flatten(), targets.double().flatten()
    bin_of = (flat * bins).long().clamp(max=bins - 1)
    every_count = torch.bincount(bin_of, minlength=bins)
    filled = every_count > 0
    count = every_count[filled]
    left_edges = torch.arange(bins)[filled] / bins
    return {
        "left": left_edges.tolist(),
        "confidence": (torch.bincount(bin_of, flat, bins)[filled] / count).tolist(),
        "accuracy": (torch.bincount(bin_of, true, bins)[filled] / count).tolist(),
        "share": (count / len(flat)).tolist(),
    }


def label_scores(log_odds: Tensor, targets: Tensor) -> dict[str, list[float | None]]:
    """AUROC, average precision, Brier score and ECE of each label, and how often it is true.

    AUROC and average precision are None for a label that is always or never true.
    """
    functions = torchmetrics_functions()
    probs = log_odds.sigmoid()
    found: dict[str, list[float | None]] = {name: [] for name in ("samples", *PER_LABEL)}
    for odds, prob, true in zip(log_odds.T, probs.T, targets.T, strict=True):
        positives = int(true.sum())
        auroc = ap = None
        if 0 < positives < len(true):
            ranks = _ranks(odds)
            auroc = float(functions.binary_auroc(ranks, true.long(), validate_args=False))
            ap = float(functions.binary_average_precision(ranks, true.long(), validate_args=False))
        found["samples"].append(positives)
        found["auroc"].append(auroc)
        found["ap"].append(ap)
        found["brier"].append(float((prob.double() - true).square().mean()))
        found["ece"].append(calibration_error(prob, true))
    return found


def answer_scores(log_odds: Tensor, targets: Tensor) -> Scores:
    """All scores of one answer from log-odds (N, L): means over labels, and over all labels of all samples."""
    each = label_scores(log_odds, targets)
    probs, true = log_odds.sigmoid(), targets > 0.5
    said = log_odds > 0
    right = said == true
    hits = int((said & true).sum())
    answered = int(said.sum()) + int(true.sum())
    nll = F.binary_cross_entropy_with_logits(log_odds.double(), targets.double())
    return {
        "mean_ap": _mean(each["ap"]),
        "mean_auroc": _mean(each["auroc"]),
        "f1": 2 * hits / answered if answered else None,
        "accuracy": float(right.double().mean()),
        "exact": float(right.all(-1).double().mean()),
        "nll": float(nll),
        "brier": float((probs.double() - targets).square().mean()),
        "ece": calibration_error(probs.flatten(), targets.flatten()),
    }


def multilabel_scores(prediction: MultiLabel, targets: Tensor) -> dict[str, Any]:
    """Scores of the ensemble, of each member, of each label, and how much the members differ."""
    members = [answer_scores(logits, targets) for logits in prediction.logits]
    differences = (prediction.member_probs - prediction.probs).square()
    several = len(prediction.logits) > 1
    return {
        "ensemble": answer_scores(prediction.log_odds, targets),
        "member_mean": mean_scores(members),
        "members": members,
        "per_label": label_scores(prediction.log_odds, targets),
        "diversity": {
            "mutual_information": {"test": float(prediction.mutual_information.mean())},
            "ambiguity": float(differences.double().mean()),
            "disagreement": _disagreement(prediction.logits > 0) if several else None,
        },
    }


def _disagreement(said: Tensor) -> float:
    """Share of labels that two members answer differently, mean over pairs, from answers (M, N, L)."""
    members = len(said)
    votes = said.double().sum(0)
    return float((2 * votes * (members - votes)).mean()) / (members * (members - 1))


def _ranks(values: Tensor) -> Tensor:
    """Values as ranks from 0 to 1; torchmetrics would squash log-odds, which merges large ones."""
    _, ranks = torch.unique(values, return_inverse=True)
    return ranks.double() / max(1, int(ranks.max()))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
