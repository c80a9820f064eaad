"""Out-of-distribution detection: telling inputs from elsewhere by the ensemble's uncertainty.

A criterion gives each input a value that is high out of distribution. Detection scores compare its values on the
test set and on an out-of-distribution (OOD) set:

    auroc       probability that an OOD input has a higher value than a test input (ties count half)
    aupr_out    average precision with OOD inputs as positives
    aupr_in     average precision with test inputs as positives
    fpr95       share of OOD inputs taken for test inputs when 95 % of the test inputs are let through
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError

from .metrics import torchmetrics_functions

CRITERIA: dict[str, Callable[[Prediction], Tensor]] = {
    "msp": lambda prediction: -prediction.max_prob,
    "max_logit": lambda prediction: -prediction.max_logit,
    "entropy": lambda prediction: prediction.entropy,
    "mutual_information": lambda prediction: prediction.mutual_information,
    "variation_ratio": lambda prediction: prediction.variation_ratio,
    "energy": lambda prediction: prediction.energy,
}

DETECTION = ("auroc", "aupr_out", "aupr_in", "fpr95")


def detection(test: Tensor, ood: Tensor) -> dict[str, float]:
    """AUROC, AUPR of both sides and FPR at 95 % TPR of a criterion's values (N,) and (N',)."""
    if test.numel() == 0 or ood.numel() == 0:
        raise EvaluationError(
            f"detection needs both sets, got {test.numel()} test and {ood.numel()} OOD values"
        )
    functions = torchmetrics_functions()
    values = torch.cat((test, ood))
    # torchmetrics squashes values outside [0, 1] by a sigmoid, which merges large ones. All of these scores
    # depend on the order alone, so give it ranks; equal values keep equal ranks.
    _, ranks = torch.unique(values, return_inverse=True)
    ranks = ranks.double() / max(1, int(ranks.max()))
    is_ood = torch.zeros(len(values), dtype=torch.long, device=values.device)
    is_ood[len(test) :] = 1
    precision = functions.binary_average_precision
    return {
        "auroc": float(functions.binary_auroc(ranks, is_ood, validate_args=False)),
        "aupr_out": float(precision(ranks, is_ood, validate_args=False)),
        "aupr_in": float(precision(1 - ranks, 1 - is_ood, validate_args=False)),
        "fpr95": fpr_at_tpr(test, ood),
    }


def fpr_at_tpr(test: Tensor, ood: Tensor, *, tpr: float = 0.95) -> float:
    """Share of OOD values at or below the lowest threshold that lets a share `tpr` of test values in."""
    if not 0 < tpr <= 1:
        raise EvaluationError(f"tpr: expected above 0 and at most 1, got {tpr}")
    # A hair less, because 0.95 * 20 is 19.000000000000004 and must not become 20.
    wanted = math.ceil(len(test) * tpr - 1e-9)
    threshold = test.sort().values[wanted - 1]
    return float((ood <= threshold).double().mean())


def roc(test: Tensor, ood: Tensor, *, points: int = 200) -> dict[str, list[float]]:
    """Rates of OOD inputs found against test inputs lost, thinned to about `points` points."""
    thresholds = torch.unique(torch.cat((test, ood))).flip(0)
    if len(thresholds) > points:
        kept = torch.linspace(0, len(thresholds) - 1, points).long()
        thresholds = thresholds[kept]
    lost = _share_at_least(test, thresholds)
    found = _share_at_least(ood, thresholds)
    return {"lost": [0.0, *lost.tolist()], "found": [0.0, *found.tolist()]}


def ood_scores(prediction: Prediction, ood: Mapping[str, Prediction]) -> dict:
    """Detection scores for each OOD set and criterion, and each criterion's mean over the sets."""
    if not ood:
        return {}
    sets: dict[str, dict] = {name: {} for name in ood}
    mean = {}
    for criterion_name, criterion in CRITERIA.items():
        test_values = criterion(prediction)
        for set_name, outside in ood.items():
            sets[set_name][criterion_name] = detection(test_values, criterion(outside))
        mean[criterion_name] = _mean_over_sets(sets, criterion_name)
    return {"sets": sets, "mean": mean}


def _mean_over_sets(sets: Mapping[str, dict], criterion: str) -> dict[str, float]:
    mean = {}
    for score in DETECTION:
        values = [scores[criterion][score] for scores in sets.values()]
        mean[score] = sum(values) / len(values)
    return mean


def _share_at_least(values: Tensor, thresholds: Tensor) -> Tensor:
    below = torch.searchsorted(values.sort().values, thresholds)
    return 1 - below / len(values)
