"""Learning rates as pure functions of the epoch, which is counted in minibatches consumed and so has a fraction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from covey.errors import OptionError
from covey.options import check_above, check_least

Kind = Literal["constant", "multistep", "linear", "cosine", "cyclic", "triangular"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate changes over training.

    Args:
        kind: "constant"; "multistep", times `factor` at each milestone; "linear", from `start` to `end` down to
            `final` and constant before and after; "cosine", to `final` at the end; "cyclic", a cosine from the
            top to 0 that restarts every `cycle` epochs; "triangular", down to `final` and up again in `cycle`
            epochs.
        milestones: epochs at which "multistep" multiplies.
        factor: what it multiplies by.
        start: epoch at which "linear" begins to fall, and before which "cyclic" and "triangular" are constant.
        end: epoch at which "linear" reaches `final`; the end of training if not given.
        final: the learning rate at the end of "linear" and "cosine", the lowest one of "triangular".
        cycle: epochs of a cycle.
        warmup: epochs in which the learning rate first rises linearly from 0.
    """

    kind: Kind = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.2
    start: float = 0.0
    end: float | None = None
    final: float = 0.0
    cycle: float = 1.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in SHAPES:
            raise OptionError(f"schedule.kind is one of {', '.join(SHAPES)}; got {self.kind!r}.")
        for milestone in self.milestones:
            check_least("schedule.milestones", milestone, 0)
        if list(self.milestones) != sorted(self.milestones):
            raise OptionError(
                f"schedule.milestones are epochs in rising order; got {', '.join(map(str, self.milestones))}."
            )
        if self.kind == "multistep" and not self.milestones:
            raise OptionError("schedule.kind 'multistep' needs schedule.milestones, the epochs of its drops.")
        for name in ("factor", "cycle"):
            check_above(f"schedule.{name}", getattr(self, name))
        for name in ("start", "final", "warmup"):
            check_least(f"schedule.{name}", getattr(self, name), 0)
        if self.end is None:
            return
        check_above("schedule.end", self.end)
        if self.end <= self.start:
            raise OptionError(f"schedule.end comes after schedule.start; got {self.end} and {self.start}.")

    def at(self, epoch: float, *, lr: float, epochs: float) -> float:
        """The learning rate `epoch` epochs into a training of `epochs`, which starts at `lr`.

        >>> round(Schedule(kind="multistep", milestones=(60, 120)).at(60, lr=0.1, epochs=200), 6)
        0.02
        >>> round(Schedule(kind="linear", start=80, end=160, final=0.05).at(120, lr=0.1, epochs=200), 6)
        0.075
        """
        rate = SHAPES[self.kind](self, epoch, lr, epochs)
        return rate * min(1.0, epoch / self.warmup) if self.warmup else rate

    def scaled(self, by: float) -> Schedule:
        """The same schedule for a training that is `by` times as long."""
        return replace(
            self,
            milestones=tuple(m * by for m in self.milestones),
            start=self.start * by,
            end=None if self.end is None else self.end * by,
            cycle=self.cycle * by,
            warmup=self.warmup * by,
        )


def _constant(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    return lr


def _multistep(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    return lr * s.factor ** sum(epoch >= m for m in s.milestones)


def _linear(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    end = epochs if s.end is None else s.end
    done = min(max((epoch - s.start) / (end - s.start), 0.0), 1.0)
    return lr + (s.final - lr) * done


def _cosine(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    done = min(max((epoch - s.warmup) / max(epochs - s.warmup, 1e-9), 0.0), 1.0)
    return s.final + (lr - s.final) * (1 + math.cos(math.pi * done)) / 2


def _cyclic(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    place = max(epoch - s.start, 0.0) / s.cycle % 1.0
    return lr / 2 * (math.cos(math.pi * place) + 1)


def _triangular(s: Schedule, epoch: float, lr: float, epochs: float) -> float:
    place = max(epoch - s.start, 0.0) / s.cycle % 1.0
    return lr + (s.final - lr) * (1 - abs(2 * place - 1))


def epoch_of(when: float, epochs: int) -> int:
    """A moment of training as an epoch: a share of all epochs if below 1, else the epoch itself.

    >>> epoch_of(0.6, 200), epoch_of(50, 200)
    (120, 50)
    """
    return round(when * epochs) if when < 1 else round(when)


SHAPES: dict[str, Callable[[Schedule, float, float, float], float]] = {
    "constant": _constant,
    "multistep": _multistep,
    "linear": _linear,
    "cosine": _cosine,
    "cyclic": _cyclic,
    "triangular": _triangular,
}
