"""Calibration after training: temperatures and conformal sets, fitted on validation data.

A fitted calibration is a small frozen record: `to_dict` gives plain JSON to store with the ensemble,
`from_dict` makes it again, and `apply` (temperature) or `sets` (conformal) uses it.

    Guo et al. (2017): divide logits by T > 0 that minimises validation NLL.
    Rahaman and Thiery (2021): for ensembles, scale the pooled prediction, because pooling makes it less sure.
    Romano, Sesia, Candes (2020): adaptive prediction sets (APS); Sadinle, Lei, Wasserman (2019): threshold
    sets.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError

LOWEST, HIGHEST = 0.02, 50.0
"""Temperatures end here: on validation data without any error the best one would be 0."""


@dataclass(frozen=True)
class Temperature:
    """Divides log-probabilities by a temperature: the pooled prediction's, or each member's own.

    Args:
        kind: "pooled" scales the mean probability, "members" each member before pooling.
        values: one temperature, or one a member.
    """

    kind: Literal["pooled", "members"]
    values: tuple[float, ...]

    def apply(self, logits: Tensor) -> Tensor:
        """Members' logits (M, B, ..., C) to calibrated logits, for `Prediction`.

        "members" gives (M, B, ..., C); "pooled" gives the one answer (1, B, ..., C), so uncertainty
        between members is to be read from the logits that came in.
        """
        if self.kind == "pooled":
            return (Prediction(logits).log_probs / self.values[0])[None]
        if len(self.values) != len(logits):
            raise EvaluationError(
                f"calibration has temperatures for {len(self.values)} members, the logits {len(logits)} "
                "members"
            )
        scale = torch.tensor(self.values, dtype=logits.dtype, device=logits.device)
        return logits / scale.view(-1, *[1] * (logits.ndim - 1))

    def to_dict(self) -> dict:
        """Plain JSON, which `from_dict` reads."""
        return {"calibration": "temperature", **asdict(self), "values": list(self.values)}


@dataclass(frozen=True)
class Conformal:
    """Sets of classes that hold the true one with probability of at least 1 - alpha.

    The guarantee is on average over draws of validation and test data that are exchangeable.

    Args:
        kind: "threshold" takes each class of probability at least 1 - quantile; "aps" takes the most
            probable classes until they reach the quantile, so that sets are larger where the ensemble is
            less sure.
        alpha: the share of misses allowed.
        quantile: of the validation scores.
    """

    kind: Literal["threshold", "aps"]
    alpha: float
    quantile: float

    def sets(self, probs: Tensor) -> Tensor:
        """Which classes are in the set, bool (B, ..., C), from probabilities (B, ..., C). Never empty."""
        # float64, because scores near a cumulative probability of 1 differ in the last digits of float32.
        inside = _conformal_scores(probs.double(), self.kind) <= self.quantile
        return inside.scatter(-1, probs.argmax(-1, keepdim=True), True)

    def to_dict(self) -> dict:
        """Plain JSON, which `from_dict` reads."""
        return {"calibration": "conformal", **asdict(self)}


def from_dict(stored: dict) -> Temperature | Conformal:
    """A calibration from what `to_dict` gave."""
    fields = dict(stored)
    name = fields.pop("calibration", None)
    try:
        if name == "temperature":
            return Temperature(kind=fields["kind"], values=tuple(float(v) for v in fields["values"]))
        if name == "conformal":
            return Conformal(fields["kind"], float(fields["alpha"]), float(fields["quantile"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise EvaluationError(f"calibration {stored!r} is not complete: {problem!r}") from problem
    raise EvaluationError(f"calibration: expected 'temperature' or 'conformal', got {name!r}")


def fit_temperature(logits: Tensor, labels: Tensor, *, kind: str = "pooled") -> Temperature:
    """The temperatures of least NLL on validation logits (M, N, C) and labels (N,), 0.02 to 50."""
    if kind == "pooled":
        return Temperature("pooled", (_best(Prediction(logits).log_probs, labels),))
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
    scores = _conformal_scores(probs.double(), kind).gather(-1, labels[:, None]).squeeze(-1)
    return Conformal(kind, alpha, float(scores.sort().values[rank - 1]))  # type: ignore[arg-type]


def conformal_scores(conformal: Conformal, probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Coverage and mean size of the sets on test probabilities (N, C) and labels (N,)."""
    sets = conformal.sets(probs)
    covered = sets.gather(-1, labels[:, None]).double().mean()
    return {"coverage": float(covered), "size": float(sets.sum(-1).double().mean())}


def _conformal_scores(probs: Tensor, kind: str) -> Tensor:
    """How strange each class would be as the label, (..., C)."""
    if kind == "threshold":
        return 1 - probs
    ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    return torch.zeros_like(probs).scatter(-1, order, ordered.cumsum(-1))


def _best(logits: Tensor, labels: Tensor) -> float:
    """NLL is convex in 1 / T, so a search in one dimension finds its least value."""
    from scipy.optimize import minimize_scalar

    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits * math.exp(-log_temperature), labels))

    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    return math.exp(found.x)
