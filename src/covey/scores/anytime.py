"""Anytime inference: what each subset of members costs and scores, and answers within a budget of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.combine import Prediction, Regression
from covey.ensemble import Ensemble
from covey.errors import EvaluationError
from covey.scores.cost import multiply_adds, timings

MANY = 12  # members above which only a greedy chain of subsets is scored, not all 2^M
By = Literal["milliseconds", "multiply_adds"]


@dataclass(frozen=True)
class Subset:
    """Some members, what they cost and how good their answer is.

    Args:
        members: which, in the order of running.
        multiply_adds: of one sample.
        milliseconds: for a batch of the measured size, members one after another.
        score: of the combined answer; higher is better.
    """

    members: tuple[int, ...]
    multiply_adds: int
    milliseconds: float
    score: float


@dataclass(frozen=True)
class Anytime:
    """Subsets of an ensemble's members with their costs and scores.

    Args:
        ensemble: whose.
        subsets: cheapest first.
        batch: the batch size that times are for.
    """

    ensemble: Ensemble
    subsets: tuple[Subset, ...]
    batch: int

    def front(self, by: By = "milliseconds") -> list[Subset]:
        """The subsets that no other beats: each costs more than the one before and scores better."""
        best: list[Subset] = []
        for subset in sorted(self.subsets, key=lambda s: (getattr(s, by), -s.score)):
            if not best or subset.score > best[-1].score:
                best.append(subset)
        return best

    def best(self, budget_ms: float, samples: int | None = None) -> Subset:
        """The best subset for a time, by what was measured.

        Args:
            budget_ms: milliseconds for the whole answer.
            samples: how many samples the answer is for; above the measured batch size, times grow in proportion.
        """
        factor = max(1.0, (samples or 1) / self.batch)
        front = self.front()
        fit = [subset for subset in front if subset.milliseconds * factor <= budget_ms]
        if not fit:
            raise EvaluationError(
                f"budget_ms is {budget_ms:g}, and the fastest member, {front[0].members[0]}, takes "
                f"{front[0].milliseconds * factor:.3g} ms here. Raise the budget, or answer fewer samples at once."
            )
        return fit[-1]

    def predict(self, x: Any, budget_ms: float) -> Prediction | Regression:
        """The answer of the best subset for a time in milliseconds."""
        samples = len(x) if isinstance(x, Tensor) else None
        return self.ensemble.predict(x, members=self.best(budget_ms, samples).members)

    def refine(
        self, x: Tensor, members: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Prediction | Regression]]:
        """The answer after each member, as (members so far, answer); stop whenever time is up.

        Args:
            x: input, (B, ...).
            members: in which order; by default that of `order()`.
        """
        order = self.order() if members is None else list(members)
        outputs: list[Tensor] = []
        for k in order:
            with self.ensemble.evaluating(), torch.no_grad():
                outputs.append(self.ensemble(x, members=[k])[0])
            yield len(outputs), self.ensemble.answer(torch.stack(outputs))

    def order(self) -> list[int]:
        """Members in the order of refining: at each step the one that makes the best answer with those before."""
        left = set(range(self.ensemble.members))
        chosen: list[int] = []
        score = {frozenset(s.members): s.score for s in self.subsets}
        while left:
            seen = frozenset(chosen)
            best = max(sorted(left), key=lambda k: score.get(seen | {k}, float("-inf")))
            chosen.append(best)
            left.remove(best)
        return chosen


def measure(
    ensemble: Ensemble,
    inputs: Any,
    targets: Tensor,
    *,
    score: str = "accuracy",
    batch: int = 64,
    repeats: int = 7,
) -> Anytime:
    """Score and time all subsets of members, in eval mode, members one after another.

    With more than 12 members, a greedy chain instead: each subset is the last with the member that helps most.

    Args:
        ensemble: any; members may differ in shape.
        inputs: held-out data, (N, ...).
        targets: class numbers, (N,).
        score: "accuracy", or "nll" for the mean log-likelihood.
        batch: batch size to time, at most N.
        repeats: timed runs for each member, of which the median counts.
    """
    if score not in ("accuracy", "nll"):
        raise EvaluationError(f"score is 'accuracy' or 'nll'; got {score!r}.")
    if not len(inputs) or len(inputs) != len(targets):
        raise EvaluationError(
            f"inputs and targets are as many, at least one; got {len(inputs)} and {len(targets)}."
        )
    batch = min(batch, len(inputs))
    everyone = range(ensemble.members)
    with ensemble.evaluating(), torch.no_grad():
        parts = [_outputs(ensemble, part) for part in inputs.split(batch)]
        some = inputs[:batch]
        times = [
            1e3 * median(timings(partial(ensemble, some, members=[k]), repeats=repeats, warmup=2))
            for k in everyone
        ]
    outputs = torch.cat(parts, 1)
    adds = [multiply_adds(ensemble.member(k), inputs[:1]) for k in everyone]

    def subset(members: Sequence[int]) -> Subset:
        cost = sum(adds[k] for k in members), sum(times[k] for k in members)
        return Subset(tuple(members), *cost, _score(ensemble.answer(outputs[list(members)]), targets, score))

    if ensemble.members <= MANY:
        chosen = [subset(m) for n in everyone for m in combinations(everyone, n + 1)]
    else:
        chosen = _chain(ensemble.members, subset)
    return Anytime(ensemble, tuple(sorted(chosen, key=lambda s: s.milliseconds)), batch)


def _outputs(ensemble: Ensemble, x: Tensor) -> Tensor:
    return torch.stack([ensemble(x, members=[k])[0] for k in range(ensemble.members)])


def _chain(members: int, subset: Any) -> list[Subset]:
    chain = [max((subset((k,)) for k in range(members)), key=lambda s: s.score)]
    while len(chain) < members:
        rest = (k for k in range(members) if k not in chain[-1].members)
        chain.append(max((subset((*chain[-1].members, k)) for k in rest), key=lambda s: s.score))
    return chain


def _score(answer: Prediction | Regression, targets: Tensor, score: str) -> float:
    if not isinstance(answer, Prediction):
        raise EvaluationError("subsets are scored by class; this ensemble's task is a regression.")
    if score == "accuracy":
        return float((answer.label == targets).double().mean())
    flat = answer.log_probs.flatten(0, -2)
    return -float(F.nll_loss(flat, targets.flatten()))
