"""Calibrations that an ensemble carries: temperatures, conformal sets, intervals and margins, as small frozen records.

`to_dict` gives plain JSON to store with the ensemble, `from_dict` makes the record again, and `apply` (temperature),
`sets` (conformal) or `around` (intervals) uses it. `covey.scores.calibration` fits them on validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from covey.errors import EvaluationError
from covey.schema import Either, Kinds, Many, Number, Record, Word

SPEC = Kinds(
    "calibration",
    {
        "temperature": Record({"kind": Word(("pooled", "members")), "values": Many(Number(1e-30), least=1)}),
        "conformal": Record(
            {"kind": Word(("threshold", "aps")), "alpha": Number(0, 1), "quantile": Number()}
        ),
        "intervals": Record(
            {
                "kind": Word(("absolute", "normalised")),
                "alpha": Number(0, 1),
                "quantiles": Many(Number(0), least=1),
            }
        ),
        "margin": Record({"alpha": Number(0, 1), "margin": Either((Number(), Many(Number(), least=1)))}),
    },
)
"""What a stored calibration looks like."""


@dataclass(frozen=True)
class Temperature:
    """Divides log-probabilities by a temperature: the pooled prediction's, or each member's own.

    Args:
        kind: "pooled" scales the mean probability, "members" each member before pooling.
        values: one temperature, or one per member.
    """

    kind: Literal["pooled", "members"]
    values: tuple[float, ...]

    def apply(self, logits: Tensor) -> Tensor:
        """Members' logits (M, B, ..., C) to calibrated logits, for `Prediction`.

        "members" gives (M, B, ..., C); "pooled" gives the one answer (1, B, ..., C), so uncertainty
        between members is to be read from the logits that came in.
        """
        if self.kind == "pooled":
            return (mean_log_probs(logits) / self.values[0])[None]
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
        inside = class_scores(probs.double(), self.kind) <= self.quantile
        return inside.scatter(-1, probs.argmax(-1, keepdim=True), True)

    def to_dict(self) -> dict:
        """Plain JSON, which `from_dict` reads."""
        return {"calibration": "conformal", **asdict(self)}


@dataclass(frozen=True)
class Intervals:
    """Intervals around a regression's mean that hold the true number with probability of at least 1 - alpha.

    The guarantee is for each output on its own, on average over draws of validation and test data that are
    exchangeable. It holds for any network, also where the ensemble's own deviation is wrong.

    Args:
        kind: "absolute" is as wide everywhere; "normalised" is as many of the ensemble's standard deviations wide
            everywhere, so that intervals are wider where the ensemble is less sure.
        alpha: the share of misses allowed.
        quantiles: half the width for each output, in the targets' unit or in standard deviations.
    """

    kind: Literal["absolute", "normalised"]
    alpha: float
    quantiles: tuple[float, ...]

    def around(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, each like the mean (B, ..., D), whose last axis holds the outputs."""
        outputs = mean.shape[-1] if len(self.quantiles) > 1 else 1
        if outputs != len(self.quantiles):
            raise EvaluationError(
                f"intervals were fitted for {len(self.quantiles)} outputs, and there are {outputs}"
            )
        reach = torch.tensor(self.quantiles, dtype=mean.dtype, device=mean.device)
        if self.kind == "normalised":
            reach = reach * std
        return mean - reach, mean + reach

    def to_dict(self) -> dict:
        """Plain JSON, which `from_dict` reads."""
        return {"calibration": "intervals", **asdict(self), "quantiles": list(self.quantiles)}

    def standardised(self, scales: Sequence[float] | None) -> Intervals:
        """Those for an ensemble whose numbers are the targets over `scales`, one for each output; None: as they are."""
        if scales is None or self.kind == "normalised":
            return self
        return replace(self, quantiles=tuple(q / s for q, s in zip(self.quantiles, scales, strict=True)))


@dataclass(frozen=True)
class Margin:
    """What makes the outermost pair of quantiles hold the true number with probability of at least 1 - alpha.

    The guarantee is for each target on its own, on average over draws of validation and test data that are
    exchangeable.

    Args:
        alpha: the share of misses allowed.
        margin: added at both ends, in the targets' unit; below 0 where the quantiles held more than they had to. A
            number, or one for each of several targets.
    """

    alpha: float
    margin: float | tuple[float, ...]

    def to_dict(self) -> dict:
        """Plain JSON, which `from_dict` reads."""
        each = list(self.margin) if isinstance(self.margin, tuple) else self.margin
        return {"calibration": "margin", "alpha": self.alpha, "margin": each}

    def standardised(self, scales: Sequence[float] | None) -> Margin:
        """That for an ensemble whose numbers are the targets over `scales`, one for each; None: as it is."""
        if scales is None:
            return self
        if isinstance(self.margin, tuple):
            return replace(self, margin=tuple(m / s for m, s in zip(self.margin, scales, strict=True)))
        return replace(self, margin=self.margin / scales[0])


Calibration = Temperature | Conformal | Intervals | Margin


def _temperature(fields: dict) -> Calibration:
    return Temperature(kind=fields["kind"], values=tuple(float(v) for v in fields["values"]))


def _conformal(fields: dict) -> Calibration:
    return Conformal(fields["kind"], float(fields["alpha"]), float(fields["quantile"]))


def _intervals(fields: dict) -> Calibration:
    return Intervals(fields["kind"], float(fields["alpha"]), tuple(float(v) for v in fields["quantiles"]))


def _margin(fields: dict) -> Calibration:
    margin = fields["margin"]
    each = tuple(float(m) for m in margin) if isinstance(margin, list | tuple) else float(margin)
    return Margin(float(fields["alpha"]), each)


_READERS: dict[str, Callable[[dict], Calibration]] = {
    "temperature": _temperature,
    "conformal": _conformal,
    "intervals": _intervals,
    "margin": _margin,
}


def from_dict(stored: dict) -> Calibration:
    """A calibration from what `to_dict` gave."""
    name = stored.get("calibration")
    if name not in _READERS:
        known = ", ".join(map(repr, _READERS))
        raise EvaluationError(f"calibration: expected one of {known}, got {name!r}")
    try:
        return _READERS[name](stored)
    except (KeyError, TypeError, ValueError) as problem:
        raise EvaluationError(f"calibration {stored!r} is not complete: {problem!r}") from problem


def class_scores(probs: Tensor, kind: str) -> Tensor:
    """The conformal score of each class, (..., C): how unusual it would be as the label."""
    if kind == "threshold":
        return 1 - probs
    ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    return torch.zeros_like(probs).scatter(-1, order, ordered.cumsum(-1))


def mean_log_probs(logits: Tensor) -> Tensor:
    """Log of the members' mean probability, (B, ..., C), from their logits (M, B, ..., C)."""
    return torch.logsumexp(logits.log_softmax(-1), 0) - math.log(len(logits))
