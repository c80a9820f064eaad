"""Quantile regression: a network with an output for each level of each target, the pinball loss, and what members say.

    loss(q, y) = max(tau (y - q), (tau - 1) (y - q))        its minimum is the tau-quantile of y (Koenker, Bassett 1978)

Outputs for D targets at Q levels are (B, D Q), all levels of a target side by side; for one target (B, Q).

An ensemble's quantile is the mean of its members'. Levels that cross are put in order, which never makes the pinball
loss larger (Chernozhukov et al., 2010). `conformal` widens the outermost pair so that it holds a share of new targets
whatever the network is worth (Romano et al., 2019).

As the task of an ensemble, levels are written `quantiles(0.05, 0.5, 0.95)`, and so whatever knows its task knows them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from covey.answer_table import SHOWN, AnswerTable, PrintsAsTable, places
from covey.errors import OptionError
from covey.tables import counted, number

Reach = float | tuple[float, ...]
"""A margin: one number, or one for each target."""

KIND = "quantiles"
"""What the tasks of all levels have in common."""

ROUNDING = 1e-9
"""Keeps products such as 10 * (1 - 0.7) = 3.0000000000000004 from being rounded up to the next integer."""


@dataclass(frozen=True)
class Quantiles:
    """Quantile regression at some levels, with one output of the network for each, or for each target and level.

    Give it to `covey.fit(loss=...)` or `covey.convert(task=...)`: it is the task of an ensemble. Called with outputs
    and targets, it gives their pinball loss.

    Args:
        levels: between 0 and 1, rising, at least one.

    >>> pinball = Quantiles((0.1, 0.9))
    >>> float(pinball(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0]])))
    0.5
    >>> str(pinball)
    'quantiles(0.1, 0.9)'
    """

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(map(float, self.levels)))
        inside = all(0 < level < 1 for level in self.levels)
        rising = all(low < high for low, high in zip(self.levels, self.levels[1:], strict=False))
        if not self.levels or not inside or not rising:
            given = " ".join(map(str, self.levels)) or "none"
            raise OptionError(
                f"quantiles are levels between 0 and 1 and rise, such as 0.05 0.5 0.95; got {given}.",
                setting="quantiles",
            )

    def __str__(self) -> str:
        return f"{KIND}({', '.join(map(str, self.levels))})"

    @staticmethod
    def of(task: str) -> Quantiles | None:
        """The levels of a task that is written as `str` writes them; None for another task."""
        if kind_of(task) != KIND:
            return None
        try:
            levels = [float(level) for level in task[len(KIND) + 1 : -1].split(",")]
        except ValueError:
            raise OptionError(
                f"a task of quantiles is written such as 'quantiles(0.05, 0.95)'; got {task!r}."
            ) from None
        return Quantiles(tuple(levels))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean pinball loss of outputs (..., Q) for targets (..., 1) or (...), or (..., D Q) for D targets."""
        return self.losses(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean pinball loss of each sample, (B,)."""
        return self.losses(outputs, targets).flatten(1).mean(1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The pinball loss of each output, (..., Q), or (..., D, Q) for D targets."""
        outputs = self.apart(outputs)
        if targets.ndim < outputs.ndim:
            targets = targets.unsqueeze(-1)
        if targets.shape != (*outputs.shape[:-1], 1):
            raise OptionError(
                f"targets have shape {tuple(targets.shape)}; expected one number for each set of quantiles, "
                f"{(*outputs.shape[:-1], 1)}."
            )
        levels = torch.tensor(self.levels, dtype=outputs.dtype, device=outputs.device)
        error = targets - outputs
        return torch.maximum(levels * error, (levels - 1) * error)

    def apart(self, outputs: Tensor) -> Tensor:
        """Outputs (..., D Q) of D targets as (..., D, Q); those of one target, (..., Q), as they are."""
        levels, size = len(self.levels), outputs.shape[-1] if outputs.ndim else 0
        if size == levels:
            return outputs
        if size == 0 or size % levels:
            raise OptionError(
                f"the network gives outputs of shape {tuple(outputs.shape)}; {counted(levels, 'quantile')} need as "
                "many on the last axis, or as many for each target."
            )
        return outputs.unflatten(-1, (size // levels, levels))

    def centre(self, outputs: Tensor) -> Tensor:
        """The level nearest to the median, or the mean of the two that are equally near, (..., 1)."""
        away = [round(abs(level - 0.5), 9) for level in self.levels]
        nearest = [place for place, distance in enumerate(away) if distance == min(away)]
        return outputs[..., nearest].mean(-1, keepdim=True)

    def answer(self, outputs: Tensor, margin: Reach | None = None) -> QuantileAnswer:
        """Members' outputs, (M, B, Q) or (M, B, D Q), as one answer, with a margin that was fitted before."""
        if outputs.ndim < 3 or outputs.shape[-1] % len(self.levels):
            raise OptionError(
                f"expected members' outputs (M, B, {len(self.levels)}), as ensemble(x) gives them, or as many for each "
                f"target; got {tuple(outputs.shape)}."
            )
        return QuantileAnswer(self.apart(outputs), self, margin)


def kind_of(task: str) -> str:
    """A task without its levels: "quantiles" for quantiles of any levels, and every other task as it is."""
    return KIND if re.fullmatch(rf"{KIND}\(.*\)", task) else task


@dataclass(frozen=True)
class QuantileAnswer(PrintsAsTable):
    """The combined answer of an ensemble that predicts quantiles: the mean over members of each quantile.

    Args:
        members: their outputs, (M, B, Q), or for D targets (M, B, D, Q).
        asked: the levels of the quantiles.
        margin: added at both ends of the outermost pair, by `conformal`: a number, or one for each target; None where
            none was fitted.
    """

    members: Tensor
    asked: Quantiles
    margin: Reach | None = None

    def __repr__(self) -> str:
        members, *batch, _ = self.members.shape
        return f"QuantileAnswer(members={members}, batch={tuple(batch)}, levels={self.asked.levels})"

    def _table(self) -> AnswerTable:
        members, *batch, levels = self.members.shape
        samples = math.prod(batch)
        first = QuantileAnswer(self.members.detach().reshape(members, samples, levels)[:, :SHOWN], self.asked)
        spread = self.asked.centre(first.epistemic)
        rows = []
        for place, values in zip(
            places(batch), torch.cat((first.quantiles, spread), -1).tolist(), strict=False
        ):
            rows.append((place, *map(number, values)))
        return AnswerTable(
            f"Quantiles of {counted(members, 'member')} for a batch {tuple(batch)}",
            ("sample", *map(str, self.asked.levels), "epistemic variance"),
            rows,
            samples,
        )

    @property
    def decisive(self) -> Tensor:
        """What is finite only if the whole answer is."""
        return self.members

    @property
    def answered(self) -> Tensor:
        """What must be finite for a sample's answer to be one, (B, ...)."""
        return self.quantiles

    @cached_property
    def quantiles(self) -> Tensor:
        """The mean over members, in order, (B, ..., Q)."""
        return self.members.mean(0).sort(-1).values

    @cached_property
    def centre(self) -> Tensor:
        """The level nearest to the median, (B, ...)."""
        return self.asked.centre(self.quantiles)[..., 0]

    @property
    def guaranteed(self) -> bool:
        """Whether `low` to `high` has a conformal margin; else they are the outermost quantiles."""
        return self.margin is not None

    @property
    def low(self) -> Tensor:
        """The lowest quantile, less the margin, (B, ...)."""
        return self.quantiles[..., 0] - self._added

    @property
    def high(self) -> Tensor:
        """The highest quantile and the margin, (B, ...)."""
        return self.quantiles[..., -1] + self._added

    @property
    def _added(self) -> Tensor:
        """The margin, (B, ...); a negative one never makes the ends pass each other."""
        half = (self.quantiles[..., -1] - self.quantiles[..., 0]) / 2
        if not isinstance(self.margin, tuple):
            return torch.maximum(torch.full_like(half, self.margin or 0.0), -half)
        if half.shape[1:].numel() != len(self.margin):
            raise OptionError(
                f"the margin was fitted for {counted(len(self.margin), 'target')}, and the answer is for "
                f"{half.shape[1:].numel()}."
            )
        each = torch.tensor(self.margin, dtype=half.dtype, device=half.device)
        return torch.maximum(each.reshape(half.shape[1:]), -half)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance over members of each quantile: what they do not agree on, (B, ..., Q)."""
        return self.members.var(0, correction=0)

    @cached_property
    def crossing(self) -> float:
        """Share of samples whose mean quantiles were not in order before they were sorted."""
        steps = self.members.mean(0).diff(dim=-1)
        return float((steps < 0).any(-1).double().mean())

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Mean pinball loss, coverage and width of the outermost pair, its nominal coverage, and the crossing share."""
        targets = self._flat(targets)
        inside = (self.low <= targets) & (targets <= self.high)
        return {
            "pinball": float(self.asked.losses(self.quantiles.double(), targets.double()[..., None]).mean()),
            "nominal": self.asked.levels[-1] - self.asked.levels[0],
            "coverage": float(inside.double().mean()),
            "width": float((self.high - self.low).double().mean()),
            "crossing": self.crossing,
        }

    def conformal(self, validation: QuantileAnswer, targets: Tensor, alpha: float = 0.1) -> QuantileAnswer:
        """The same answer with a margin, so that `low` to `high` holds a new target with probability 1 - alpha or more.

        The guarantee is on average over draws of validation and test data that are exchangeable.

        Args:
            validation: the answer on samples that were not trained on.
            targets: theirs.
            alpha: the share of misses allowed.
        """
        if validation.asked != self.asked or validation.margin is not None:
            raise OptionError("validation is an answer with the same levels, and without a margin.")
        return QuantileAnswer(self.members, self.asked, validation.fitted_margin(targets, alpha))

    def fitted_margin(self, targets: Tensor, alpha: float = 0.1) -> Reach:
        """The margin that these targets, which were not trained on, ask for; of several, each for itself."""
        if not 0 < alpha < 1:
            raise OptionError(f"alpha is between 0 and 1; got {alpha}.")
        targets = self._flat(targets)
        lowest, highest = self.quantiles[..., 0], self.quantiles[..., -1]
        outside = torch.maximum(lowest - targets, targets - highest).double()
        if not outside.isfinite().all():
            raise OptionError(
                "a margin is fitted on finite numbers; some targets or quantiles are NaN or infinite."
            )
        place = math.ceil((len(outside) + 1) * (1 - alpha) - ROUNDING)
        if place > len(outside):
            least = math.ceil(1 / alpha - ROUNDING) - 1
            raise OptionError(
                f"{len(outside)} validation samples are too few for alpha={alpha:g}; it takes {least}."
            )
        found = outside.sort(0).values[place - 1]
        return float(found) if found.ndim == 0 else tuple(found.flatten().tolist())

    def _flat(self, targets: Tensor) -> Tensor:
        """Targets as the batch is shaped, (B, ...)."""
        batch = self.members.shape[1:-1]
        if targets.numel() != batch.numel():
            raise OptionError(
                f"targets have shape {tuple(targets.shape)}; the answer is for {tuple(batch)} samples."
            )
        return targets.reshape(batch).to(self.members)
