"""Members' outputs become one prediction with its uncertainty.

Axes: M members, B batch, C classes or outputs. Whatever further axes a network has (time, height, width)
are kept; the class axis is moved last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from covey.answer_table import SHOWN, AnswerTable, PrintsAsTable, places
from covey.calibration import Conformal, Intervals, Margin, Temperature
from covey.errors import DataError, OptionError
from covey.multilabel import MultiLabel
from covey.quantiles import KIND, QuantileAnswer, Quantiles, kind_of
from covey.tables import counted, number


@dataclass(frozen=True)
class Prediction(PrintsAsTable):
    """The combined answer of a classification ensemble: the mean over members of their probabilities.

    Args:
        logits: members' logits, (M, B, ..., C).
        pooled: log-probabilities of the answer after a calibration of the pooled prediction, (B, ..., C). What
            members do not agree on is still read from their own logits.
        conformal: what gives `sets`, fitted on validation data.

    >>> p = Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
    >>> p.probs
    tensor([[0.5000, 0.5000]])
    >>> [round(v.item(), 4) for v in (p.entropy, p.expected_entropy, p.mutual_information, p.variation_ratio)]
    [0.6931, 0.3653, 0.3278, 0.5]
    """

    logits: Tensor
    pooled: Tensor | None = None
    conformal: Conformal | None = None

    def __repr__(self) -> str:
        members, *batch, classes = self.logits.shape
        return f"Prediction(members={members}, batch={tuple(batch)}, classes={classes})"

    def _table(self) -> AnswerTable:
        members, *batch, classes = self.logits.shape
        samples = math.prod(batch)
        # Only what is shown is computed, however large the batch is.
        logits = self.logits.detach().reshape(members, samples, classes)[:, :SHOWN]
        pooled = None
        if self.pooled is not None:
            pooled = self.pooled.detach().reshape(samples, classes)[:SHOWN]
        first = Prediction(logits, pooled)
        columns = torch.stack((first.max_prob, first.entropy, first.mutual_information), -1)
        rows = []
        for place, label, values in zip(places(batch), first.label.tolist(), columns.tolist(), strict=False):
            # Not `number`: a mutual information of 6e-08 is 0 and rounding.
            decimals = [f"{value:.4f}" for value in values]
            rows.append((place, label, *decimals))
        many, kinds = counted(members, "member"), counted(classes, "class", "classes")
        return AnswerTable(
            f"Prediction of {many} for a batch {tuple(batch)}, {kinds}",
            ("sample", "label", "probability", "entropy", "mutual information"),
            rows,
            samples,
        )

    @property
    def decisive(self) -> Tensor:
        """What is finite only if the whole answer is."""
        return self.logits

    @property
    def answered(self) -> Tensor:
        """What must be finite for a sample's answer to be one, (B, ...)."""
        return self.probs

    @cached_property
    def member_log_probs(self) -> Tensor:
        """Log-probabilities of each member, (M, B, ..., C)."""
        return F.log_softmax(self.logits, -1)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the mean probability, (B, ..., C): logsumexp over members minus log M; calibrated if that is set."""
        return self._mean_log_probs if self.pooled is None else self.pooled

    @cached_property
    def _mean_log_probs(self) -> Tensor:
        return torch.logsumexp(self.member_log_probs, 0) - math.log(len(self.logits))

    @cached_property
    def probs(self) -> Tensor:
        """Mean probability, (B, ..., C)."""
        return self.log_probs.exp()

    @cached_property
    def label(self) -> Tensor:
        """Most probable class, (B, ...)."""
        return self.log_probs.argmax(-1)

    @cached_property
    def max_prob(self) -> Tensor:
        """Probability of the most probable class (MSP), (B, ...)."""
        return self.log_probs.amax(-1).exp()

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mean probability in nats, total uncertainty, (B, ...)."""
        return _entropy(self.log_probs)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """Mean of the members' entropies in nats, uncertainty in the data, (B, ...)."""
        return _entropy(self.member_log_probs).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy, what the members do not agree on, (B, ...). Never below 0."""
        return (_entropy(self._mean_log_probs) - self.expected_entropy).clamp_min(0)

    @cached_property
    def variation_ratio(self) -> Tensor:
        """Share of members that do not vote for the modal class, (B, ...)."""
        votes = F.one_hot(self.logits.argmax(-1), self.logits.shape[-1]).sum(0)
        return 1 - votes.amax(-1) / len(self.logits)

    @cached_property
    def max_logit(self) -> Tensor:
        """Largest mean logit, (B, ...)."""
        return self.logits.mean(0).amax(-1)

    @cached_property
    def energy(self) -> Tensor:
        """Free energy of the mean logits, minus their logsumexp; high out of distribution, (B, ...)."""
        return -torch.logsumexp(self.logits.mean(0), -1)

    @property
    def guaranteed(self) -> bool:
        """Whether there are conformal `sets`."""
        return self.conformal is not None

    @cached_property
    def sets(self) -> Tensor:
        """Which classes are in the conformal set, bool (B, ..., C)."""
        if self.conformal is None:
            raise OptionError(
                "this ensemble has no conformal sets yet: fit them on validation data with "
                "fit_conformal of covey.scores and set ensemble.conformal."
            )
        return self.conformal.sets(self.probs)


@dataclass(frozen=True)
class Regression(PrintsAsTable):
    """The combined answer of a regression ensemble.

    Args:
        member_mean: members' means, (M, B, ...).
        member_variance: members' variances, (M, B, ...), or None where members give a point only.
        conformal: what gives `low` and `high`, fitted on validation data.

    With variances the answer is the moments of the equal mixture of the members' Gaussians.
    """

    member_mean: Tensor
    member_variance: Tensor | None = None
    conformal: Intervals | None = None

    def __repr__(self) -> str:
        members, *batch = self.member_mean.shape
        return f"Regression(members={members}, batch={tuple(batch)})"

    def _table(self) -> AnswerTable:
        members, *batch = self.member_mean.shape
        samples = math.prod(batch)
        means = self.member_mean.detach().reshape(members, samples)[:, :SHOWN]
        variances = None
        if self.member_variance is not None:
            variances = self.member_variance.detach().reshape(members, samples)[:, :SHOWN]
        first = Regression(means, variances)
        columns = torch.stack((first.mean, first.std, first.aleatoric, first.epistemic), -1)
        rows = []
        for place, values in zip(places(batch), columns.tolist(), strict=False):
            if variances is None:
                values[2] = None  # members that give points say nothing about the noise in the data
            rows.append((place, *map(number, values)))
        return AnswerTable(
            f"Regression of {counted(members, 'member')} for a batch {tuple(batch)}",
            ("sample", "mean", "std", "aleatoric variance", "epistemic variance"),
            rows,
            samples,
        )

    @property
    def decisive(self) -> Tensor:
        """What is finite only if the whole answer is: the variance overflows before the mean does."""
        return self.variance

    @property
    def answered(self) -> Tensor:
        """What must be finite for a sample's answer to be one, (B, ...)."""
        return self.variance

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the members' means, (B, ...)."""
        return self.member_mean.mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the members' means: what they do not agree on, (B, ...)."""
        return self.member_mean.var(0, correction=0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of the members' variances: noise in the data, 0 if members give a point only, (B, ...)."""
        if self.member_variance is None:
            return torch.zeros_like(self.mean)
        return self.member_variance.mean(0)

    @cached_property
    def variance(self) -> Tensor:
        """Variance of the mixture, mean(variance + mean^2) - mean(mean)^2, (B, ...)."""
        return self.aleatoric + self.epistemic

    @cached_property
    def std(self) -> Tensor:
        """Standard deviation of the mixture, (B, ...)."""
        return self.variance.sqrt()

    @property
    def guaranteed(self) -> bool:
        """Whether there is a conformal interval, `low` to `high`."""
        return self.conformal is not None

    @cached_property
    def low(self) -> Tensor:
        """Lower end of the conformal interval, (B, ...)."""
        return self._ends[0]

    @cached_property
    def high(self) -> Tensor:
        """Upper end of the conformal interval, (B, ...)."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        if self.conformal is None:
            raise OptionError(
                "this ensemble has no conformal intervals yet: fit them on validation data with fit_intervals of "
                "covey.scores and set ensemble.conformal."
            )
        return self.conformal.around(self.mean, self.std)


Answer = Prediction | Regression | MultiLabel | QuantileAnswer
"""What an ensemble answers, by its task."""


def answer(
    outputs: Tensor,
    task: str,
    class_dim: int | None = None,
    temperature: Temperature | None = None,
    conformal: Conformal | Intervals | Margin | None = None,
) -> Answer:
    """Members' outputs, (M, B, ...), as one answer.

    Args:
        outputs: what the members gave.
        task: "classification"; "multilabel", where several labels may be true; "regression" (points), "gaussian"
            (means and raw variances side by side), or quantiles such as "quantiles(0.05, 0.5, 0.95)".
        class_dim: axis of the classes in one member's output; see `class_axis`.
        temperature: calibrates the probabilities of a classification.
        conformal: gives sets of classes, or intervals of a regression.
    """
    if task != "classification" and temperature is not None:
        raise OptionError(f"a temperature calibrates a classification; the ensemble's task is {task!r}.")
    kind = kind_of(task)
    if conformal is not None and type(conformal) is not CONFORMAL.get(kind):
        raise OptionError(
            f"{type(conformal).__name__} were set as conformal, which the task {task!r} has no use for."
        )
    if kind == KIND:
        return _levels(outputs, task, conformal)
    return ANSWERS[task](outputs, class_dim, temperature, conformal)


def _levels(outputs: Tensor, task: str, conformal: Any) -> QuantileAnswer:
    asked = Quantiles.of(task)
    assert asked is not None
    return asked.answer(outputs, None if conformal is None else conformal.margin)


def _classes(
    outputs: Tensor, class_dim: int | None, temperature: Temperature | None, conformal: Conformal | None
) -> Prediction:
    outputs = outputs.movedim(class_axis(outputs, class_dim), -1)
    if temperature is None:
        return Prediction(outputs, conformal=conformal)
    scaled = temperature.apply(outputs)
    if temperature.kind == "members":
        return Prediction(scaled, conformal=conformal)
    return Prediction(outputs, scaled[0].log_softmax(-1), conformal)


def _labels(
    outputs: Tensor, class_dim: int | None, temperature: Temperature | None, conformal: Conformal | None
) -> MultiLabel:
    return MultiLabel(outputs.movedim(class_axis(outputs, class_dim), -1))


def _points(
    outputs: Tensor, class_dim: int | None, temperature: Temperature | None, conformal: Intervals | None
) -> Regression:
    return Regression(outputs, conformal=conformal)


def _gaussians(
    outputs: Tensor, class_dim: int | None, temperature: Temperature | None, conformal: Intervals | None
) -> Regression:
    return Regression(*gaussian(outputs.movedim(class_axis(outputs, class_dim), -1)), conformal)


CONFORMAL: dict[str, type] = {
    "classification": Conformal,
    "regression": Intervals,
    "gaussian": Intervals,
    KIND: Margin,
}
"""What gives sets or intervals with a guarantee, by task."""

ANSWERS: dict[str, Callable[..., Answer]] = {
    "classification": _classes,
    "multilabel": _labels,
    "regression": _points,
    "gaussian": _gaussians,
}
"""How members' outputs become an answer, by task."""


def check_finite(found: Answer, inputs: Any) -> None:
    """Refuse an answer that holds NaN or infinite numbers, with the samples that have them.

    Args:
        found: the answer.
        inputs: what the members were given, to see whether that is to blame.
    """
    if found.decisive.isfinite().all():
        return
    # A logit of minus infinity is a class that the network rules out, which is fine as long as another one is left.
    numbers = found.answered
    broken = ~numbers.reshape(len(numbers), -1).isfinite().all(1)
    if not broken.any():
        return
    reason = "the inputs are finite, so they are too large or the weights are broken"
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.isfinite().all():
            reason = "the inputs hold NaN or infinite numbers"
    rows = broken.nonzero().flatten().tolist()
    named = ", ".join(map(str, rows[:SHOWN])) + (f" and {len(rows) - SHOWN} more" if rows[SHOWN:] else "")
    raise DataError(
        f"the prediction is NaN or infinite for {counted(len(rows), 'sample')} of {len(numbers)}, in row {named}: "
        f"{reason}. Correct or remove them; predict(..., check=False) returns the answer as it is."
    )


def class_axis(outputs: Tensor, class_dim: int | None = None) -> int:
    """The class axis of (M, B, ...): as set for one member's output, or 2 for images (B, C, H, W), else the last."""
    if class_dim is not None:
        return class_dim % (outputs.ndim - 1) + 1
    return 2 if outputs.ndim > 4 else outputs.ndim - 1


def gaussian(outputs: Tensor, floor: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Split outputs (..., 2 D) into means (..., D) and softplus variances (..., D) of at least `floor`."""
    mean, raw = outputs.chunk(2, -1)
    return mean, F.softplus(raw) + floor


def raw_variance(variance: Tensor, floor: float = 1e-6) -> Tensor:
    """What `gaussian` makes this variance of."""
    above = (variance - floor).clamp_min(torch.finfo(variance.dtype).tiny)
    return above + torch.log(-torch.expm1(-above))


def _entropy(log_probs: Tensor) -> Tensor:
    return torch.special.entr(log_probs.exp()).sum(-1)
