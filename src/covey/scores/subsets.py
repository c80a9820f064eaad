"""Anytime inference: what each subset of members costs and scores, and answers within a budget of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.combine import Answer, Prediction, Regression
from covey.ensemble import Ensemble
from covey.errors import EvaluationError
from covey.quantiles import KIND, QuantileAnswer, Quantiles, kind_of

from .cost import multiply_adds, timings
from .record import Record

MOST_SAMPLES = 10_000
"""So many samples of an evaluation are scored, at most."""

MANY = 12
"""With more members than this only a greedy chain of subsets is scored, not all 2^M."""

SCORES = {
    "classification": ("accuracy", "nll"),
    "regression": ("mse",),
    "gaussian": ("mse",),
    KIND: ("pinball",),
}
"""What subsets are compared by, for each task; the first by default."""

CostAxis = Literal["milliseconds", "multiply_adds"]
"""What subsets are compared by."""


@dataclass(frozen=True)
class Subset:
    """Some members, what they cost and how good their answer is.

    Args:
        members: which, in the order of running.
        multiply_adds: of one sample; what members share counts once where the ensemble's run computes it once.
        milliseconds: for a batch of the measured size, likewise.
        score: of the combined answer; higher is better.
    """

    members: tuple[int, ...]
    multiply_adds: int
    milliseconds: float
    score: float


@dataclass(frozen=True)
class Measured:
    """What every subset of an ensemble's members costs and scores.

    Args:
        subsets: what was measured, cheapest first.
        batch: the batch size that times are for.
        score: what the scores are: a name of `SCORES`, or "rmse".
    """

    subsets: tuple[Subset, ...] = field(repr=False)
    batch: int
    score: str

    def front(self, by: CostAxis = "milliseconds") -> list[Subset]:
        """The subsets that no other beats: each costs more than the one before and scores better."""

        def cheap_then_good(subset: Subset) -> tuple[float, float]:
            return getattr(subset, by), -subset.score

        front: list[Subset] = []
        for subset in sorted(self.subsets, key=cheap_then_good):
            if not front or subset.score > front[-1].score:
                front.append(subset)
        return front

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        subsets = [asdict(subset) for subset in self.subsets]
        return {"batch": self.batch, "score": self.score, "subsets": subsets}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Measured:
        """What `to_dict` gave."""
        subsets = []
        for each in found["subsets"]:
            costs = {name: each[name] for name in ("multiply_adds", "milliseconds", "score")}
            subsets.append(Subset(members=tuple(each["members"]), **costs))
        return Measured(tuple(subsets), found["batch"], found["score"])


@dataclass(frozen=True)
class Anytime(Measured):
    """Answers within a budget of time, from the best subset of members that fits into it.

    Args:
        ensemble: whose members they are.
    """

    ensemble: Ensemble = field(repr=False)

    def best(self, budget_ms: float, samples: int | None = None) -> Subset:
        """The best subset for a time, by what was measured.

        Args:
            budget_ms: milliseconds for the whole answer.
            samples: how many samples the answer is for; above the measured batch size, times grow in proportion.
        """
        factor = max(1.0, (samples or 1) / self.batch)
        front = self.front()
        affordable = [subset for subset in front if subset.milliseconds * factor <= budget_ms]
        if affordable:
            return affordable[-1]
        fastest = front[0]
        raise EvaluationError(
            f"budget_ms is {budget_ms:g}, and the fastest member, {fastest.members[0]}, takes "
            f"{fastest.milliseconds * factor:.3g} ms here. Raise the budget, or answer fewer samples at once."
        )

    def predict(self, x: Any, budget_ms: float) -> Answer:
        """The answer of the best subset for a time in milliseconds."""
        samples = len(x) if isinstance(x, Tensor) else None
        chosen = self.best(budget_ms, samples)
        return self.ensemble.predict(x, members=chosen.members)

    def refine(self, x: Tensor, members: Sequence[int] | None = None) -> Iterator[tuple[int, Answer]]:
        """The answer after each member, as (members so far, answer); stop whenever time is up.

        Members run one after another, so what they share is computed for each.

        Args:
            x: input, (B, ...).
            members: in which order; by default that of `order()`.
        """
        order = self.order() if members is None else members
        outputs: list[Tensor] = []
        for member in order:
            outputs.append(_member_outputs(self.ensemble, x, member))
            yield len(outputs), self.ensemble.answer(torch.stack(outputs))

    def order(self) -> list[int]:
        """Members in the order of refining: at each step the one that makes the best answer with those before."""
        score_of = {}
        for subset in self.subsets:
            score_of[frozenset(subset.members)] = subset.score
        order: list[int] = []
        left = list(range(self.ensemble.members))
        while left:
            scores = []
            for member in left:
                together = frozenset([*order, member])
                # A greedy chain was measured for few subsets only; the others come last.
                scores.append(score_of.get(together, -math.inf))
            best = scores.index(max(scores))
            order.append(left.pop(best))
        return order


def anytime(
    ensemble: Ensemble,
    inputs: Tensor,
    targets: Tensor,
    *,
    score: str | None = None,
    batch: int = 64,
    repeats: int = 7,
) -> Anytime:
    """Score and time all subsets of members on held-out data, in eval mode.

    Each member is timed alone and all of them together; what lies between goes by their number. With more than 12
    members, a greedy chain instead: each subset is the last with the member that helps most.

    Args:
        ensemble: any; members may differ in shape.
        inputs: held-out inputs, (N, ...).
        targets: their labels or numbers, (N, ...).
        score: of classes "accuracy" (the default) or "nll" for the mean log-likelihood; of numbers "mse"; of quantiles
            "pinball". All are turned so that higher is better.
        batch: batch size to time, at most N.
        repeats: timed runs for each member, of which the median counts.
    """
    score = _check(ensemble, inputs, targets, score)
    batch = min(batch, len(inputs))
    outputs = []
    for member in range(ensemble.members):
        parts = [_member_outputs(ensemble, part, member) for part in inputs.split(batch)]
        outputs.append(torch.cat(parts))
    every_output = torch.stack(outputs)

    def score_of(members: Sequence[int]) -> float:
        return _score(ensemble.answer(every_output[list(members)]), targets, score)

    subsets = _measured(ensemble, inputs[:batch], score_of, repeats)
    return Anytime(subsets, batch, score, ensemble)


def of_record(ensemble: Ensemble, record: Record, example: Tensor, *, repeats: int = 7) -> Measured:
    """Score all subsets of members by the outputs that an evaluation kept, and time them on a batch of inputs.

    Args:
        ensemble: whose outputs they are.
        record: of the evaluation. Of more than 10,000 samples as many are taken, evenly spread.
        example: a batch of inputs.
        repeats: timed runs for each member, of which the median counts.

    Classes are scored by accuracy, numbers by -RMSE and quantiles by the negative pinball loss, in their own unit.
    """
    rows = spread(len(record.targets), MOST_SAMPLES)
    outputs, targets = record.outputs[:, rows], record.targets[rows]
    score, of = _BY_KIND.get(kind_of(record.task), ("accuracy", _accuracy))

    def score_of(members: Sequence[int]) -> float:
        return of(outputs[list(members)], targets, record.task)

    subsets = _measured(ensemble, example, score_of, repeats)
    return Measured(subsets, len(example), score)


def spread(count: int, most: int) -> Tensor:
    """At most so many of the rows from 0 to `count`, evenly spread over them: data may lie in the order of classes."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def _accuracy(outputs: Tensor, targets: Tensor, task: str) -> float:
    return float((Prediction(outputs).label == targets).double().mean())


def _negative_rmse(outputs: Tensor, targets: Tensor, task: str) -> float:
    return -float((outputs.mean(0) - targets).square().mean().sqrt())


def _negative_pinball(outputs: Tensor, targets: Tensor, task: str) -> float:
    asked = Quantiles.of(task)
    assert asked is not None
    return -float(asked(outputs.mean(0), targets))


_BY_KIND: dict[str, tuple[str, Callable[[Tensor, Tensor, str], float]]] = {
    "regression": ("rmse", _negative_rmse),
    KIND: ("pinball", _negative_pinball),
}
"""How the kept outputs of tasks that are no classification are scored."""


def _measured(
    ensemble: Ensemble, x: Tensor, score_of: Callable[[Sequence[int]], float], repeats: int
) -> tuple[Subset, ...]:
    """All subsets of members, or a chain of them, with their score and what they cost on a batch."""
    every = range(ensemble.members)
    adds, milliseconds = [], []
    for member in every:
        alone = partial(ensemble, x[:1], members=[member])
        adds.append(multiply_adds(ensemble, x[:1], call=alone))
        milliseconds.append(_milliseconds(ensemble, x, [member], repeats))
    work = _Cost.of(adds, multiply_adds(ensemble, x[:1]))
    time = _Cost.of(milliseconds, _milliseconds(ensemble, x, every, repeats))

    def measured(members: Sequence[int]) -> Subset:
        return Subset(
            members=tuple(members),
            multiply_adds=round(work(members)),
            milliseconds=time(members),
            score=score_of(members),
        )

    find = _greedy_chain if ensemble.members > MANY else _all_subsets
    found = find(ensemble.members, measured)
    return tuple(sorted(found, key=lambda subset: subset.milliseconds))


def _check(ensemble: Ensemble, inputs: Tensor, targets: Tensor, score: str | None) -> str:
    """The score's name, if it is one of the ensemble's task and there is something to score."""
    kind = kind_of(ensemble.task)
    if kind not in SCORES:
        raise EvaluationError(
            f"subsets are scored by classes, numbers or quantiles; this ensemble's task is {ensemble.task!r}."
        )
    score = score or SCORES[kind][0]
    if score not in SCORES[kind]:
        raise EvaluationError(f"score is {' or '.join(map(repr, SCORES[kind]))} for {kind}; got {score!r}.")
    if not len(inputs) or len(inputs) != len(targets):
        raise EvaluationError(
            f"inputs and targets are as many, at least one; got {len(inputs)} and {len(targets)}."
        )
    return score


def _member_outputs(ensemble: Ensemble, x: Tensor, member: int) -> Tensor:
    with ensemble.evaluating(), torch.no_grad():
        return ensemble(x, members=[member])[0]


def _milliseconds(ensemble: Ensemble, x: Tensor, members: Sequence[int], repeats: int) -> float:
    with ensemble.evaluating(), torch.no_grad():
        seconds = timings(partial(ensemble, x, members=list(members)), repeats=repeats, warmup=2)
    return 1e3 * median(seconds)


@dataclass(frozen=True)
class _Cost:
    """What members cost together: the sum of each one's, less what each after the first has for nothing."""

    each: Sequence[float]
    shared: float

    @staticmethod
    def of(each: Sequence[float], together: float) -> _Cost:
        """From what each member costs alone and all of them together, in proportion to their number."""
        if len(each) == 1:
            return _Cost(each, 0.0)
        saved = (sum(each) - together) / (len(each) - 1)
        return _Cost(each, min(saved, *each))  # one more member never makes an answer cheaper

    def __call__(self, members: Sequence[int]) -> float:
        return sum(self.each[k] for k in members) - (len(members) - 1) * self.shared


def _all_subsets(members: int, measured: Callable[[Sequence[int]], Subset]) -> list[Subset]:
    subsets = []
    for size in range(1, members + 1):
        for chosen in combinations(range(members), size):
            subsets.append(measured(chosen))
    return subsets


def _greedy_chain(members: int, measured: Callable[[Sequence[int]], Subset]) -> list[Subset]:
    """Subsets of 1, 2, ... members; each adds to the one before the member that helps most."""
    chain: list[Subset] = []
    chosen: tuple[int, ...] = ()
    for _ in range(members):
        candidates = [measured((*chosen, k)) for k in range(members) if k not in chosen]
        best = max(candidates, key=lambda subset: subset.score)
        chain.append(best)
        chosen = best.members
    return chain


def _score(answer: Answer, targets: Tensor, score: str) -> float:
    if isinstance(answer, Regression):
        return -float((answer.mean - targets.reshape(answer.mean.shape)).square().mean())
    if isinstance(answer, QuantileAnswer):
        return -float(answer.asked(answer.quantiles, targets).mean())
    assert isinstance(answer, Prediction)
    if score == "accuracy":
        return float((answer.label == targets).double().mean())
    log_probs = answer.log_probs.flatten(0, -2)
    return -float(F.nll_loss(log_probs, targets.flatten()))
