"""Telling strange inputs from known ones by the ensemble's uncertainty.

A criterion gives each input a number that is high for strange inputs. Detection scores compare its values
on the test set (known) and on an OOD set (strange):

    auroc       probability that a strange input scores above a known one (ties count half)
    aupr_out    average precision with strange inputs as positives
    aupr_in     average precision with known inputs as positives
    fpr95       share of strange inputs taken for known when 95 % of the known inputs are let through
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError

from .metrics import torchmetrics_functions

CRITERIA: dict[str, Callable[[Prediction], Tensor]] = {
    "msp": lambda p: -p.max_prob,
    "max_logit": lambda p: -p.max_logit,
    "entropy": lambda p: p.entropy,
    "mutual_information": lambda p: p.mutual_information,
    "variation_ratio": lambda p: p.variation_ratio,
    "energy": lambda p: p.energy,
}


def detection(known: Tensor, strange: Tensor) -> dict[str, float]:
    """AUROC, AUPR of both sides and FPR at 95 % TPR of a criterion's values (N,) and (N',)."""
    if known.numel() == 0 or strange.numel() == 0:
        raise EvaluationError(
            f"detection needs both sets, got {known.numel()} known, {strange.numel()} strange"
        )
    functions = torchmetrics_functions()
    values = torch.cat((known, strange))
    # torchmetrics squashes values outside [0, 1] by a sigmoid, which merges large ones. All of these scores
    # depend on the order alone, so give it ranks; equal values keep equal ranks.
    ranks = torch.unique(values, return_inverse=True)[1].double()
    ranks = ranks / ranks.max().clamp_min(1)
    is_strange = torch.cat((torch.zeros(len(known)), torch.ones(len(strange)))).long()
    return {
        "auroc": float(functions.binary_auroc(ranks, is_strange, validate_args=False)),
        "aupr_out": float(functions.binary_average_precision(ranks, is_strange, validate_args=False)),
        "aupr_in": float(functions.binary_average_precision(1 - ranks, 1 - is_strange, validate_args=False)),
        "fpr95": fpr_at_tpr(known, strange),
    }


def fpr_at_tpr(known: Tensor, strange: Tensor, *, tpr: float = 0.95) -> float:
    """Share of strange inputs at or below the lowest threshold that lets a share `tpr` of known ones in."""
    if not 0 < tpr <= 1:
        raise EvaluationError(f"tpr: expected above 0 and at most 1, got {tpr}")
    # Rounded up, with a hair against 0.95 * 20 = 19.000000000000004.
    wanted = int(-(-(len(known) * tpr - 1e-9) // 1))
    threshold = torch.sort(known).values[wanted - 1]
    return float((strange <= threshold).double().mean())


def roc(known: Tensor, strange: Tensor, *, points: int = 200) -> dict[str, list[float]]:
    """Rates of strange inputs found against known inputs lost, thinned to about `points` points."""
    thresholds = torch.unique(torch.cat((known, strange))).flip(0)
    if len(thresholds) > points:
        thresholds = thresholds[torch.linspace(0, len(thresholds) - 1, points).long()]
    lost, found = (1 - torch.searchsorted(v.sort().values, thresholds) / len(v) for v in (known, strange))
    return {"lost": [0.0, *lost.tolist()], "found": [0.0, *found.tolist()]}


def ood_scores(prediction: Prediction, ood: Mapping[str, Prediction]) -> dict:
    """Detection scores for each OOD set and criterion, and each criterion's mean over the sets."""
    known = {name: criterion(prediction) for name, criterion in CRITERIA.items()}
    sets = {
        set_name: {name: detection(known[name], CRITERIA[name](strange)) for name in CRITERIA}
        for set_name, strange in ood.items()
    }
    if not sets:
        return {}
    measures = ("auroc", "aupr_out", "aupr_in", "fpr95")
    mean = {
        name: {m: sum(s[name][m] for s in sets.values()) / len(sets) for m in measures} for name in CRITERIA
    }
    return {"sets": sets, "mean": mean}
