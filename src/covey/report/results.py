"""Runs of several methods and seeds, put in order: what the tables, figures and answers read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import EvaluationError, suggest
from covey.scores.cost import Cost
from covey.scores.evaluation import Evaluation
from covey.scores.statistics import Comparison, Summary, compare, summary


@dataclass(frozen=True)
class Run:
    """One training of one method, evaluated.

    Args:
        method: the method's name as the report shows it.
        seed: which repetition; methods are compared on the seeds they share.
        evaluation: its scores.
        cost: what it costs, if measured.
        history: one row for each epoch or step of training, such as {"epoch": 1, "train_loss": 0.7}.
        settings: what is needed to repeat the run, as plain JSON.
        landscape: results of `covey.scores.landscape` by "flatness", "interpolation" or "plane".
    """

    method: str
    seed: int
    evaluation: Evaluation
    cost: Cost | None = None
    history: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    landscape: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """Every score and cost that is defined, by name."""
        row: dict[str, Any] = dict(self.evaluation.headline)
        if self.cost is not None:
            row |= self.cost.to_dict() | {"throughput": self.cost.throughput}
        row["members"] = self.evaluation.about["members"]
        return {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method, by seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def members(self) -> int:
        """Members of the ensemble."""
        return int(self.runs[0].evaluation.about["members"])

    def values(self, key: str) -> dict[int, float]:
        """A score or cost by seed, for the seeds where it is defined."""
        return {run.seed: run.numbers[key] for run in self.runs if key in run.numbers}

    def summary(self, key: str) -> Summary | None:
        """Mean and deviation over seeds, None if it is not defined for any."""
        values = self.values(key)
        return summary(list(values.values())) if values else None

    def curves(self, name: str) -> list[Any]:
        """A curve of each run that has it."""
        return [run.evaluation.curves[name] for run in self.runs if name in run.evaluation.curves]


@dataclass(frozen=True)
class Results:
    """Methods in the order given, and the one that the others are compared with."""

    methods: tuple[MethodRuns, ...]
    baseline: MethodRuns

    @property
    def task(self) -> str:
        """The task of all runs."""
        return str(self.methods[0].runs[0].evaluation.about["task"])

    @property
    def seeds(self) -> int:
        """Runs of the method that has fewest."""
        return min(len(method.runs) for method in self.methods)

    def has(self, key: str) -> bool:
        """Whether any method has this score or cost."""
        return any(method.values(key) for method in self.methods)

    def against(self, method: MethodRuns, other: MethodRuns, key: str) -> Comparison | None:
        """The paired comparison of a score, None where a side lacks it or they share no seed."""
        this, that = method.values(key), other.values(key)
        return compare(this, that) if this.keys() & that.keys() else None

    def ratio(self, method: MethodRuns, key: str) -> float | None:
        """A cost over the baseline's."""
        own, base = method.summary(key), self.baseline.summary(key)
        return own.mean / base.mean if own and base and base.mean else None

    def deep_ratio(self, method: MethodRuns, key: str) -> float | None:
        """A cost over that of a deep ensemble of as many members, if the baseline is a single network."""
        if self.baseline.members != 1 or method.name == self.baseline.name:
            return None
        ratios = [
            run.cost.ratios(base.cost)[key]["deep_ensemble"]
            for run in method.runs
            for base in self.baseline.runs[:1]
            if run.cost is not None and base.cost is not None and key in run.cost.ratios(base.cost)
        ]
        return sum(ratios) / len(ratios) if ratios else None


def gather(runs: Sequence[Run], baseline: str | None = None) -> Results:
    """Group runs by method and check that they can be compared."""
    if not runs:
        raise EvaluationError("a report needs one run or more, got none")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.method, [])
        if any(run.seed == other.seed for other in group):
            raise EvaluationError(
                f"method {run.method!r} has two runs with seed {run.seed}: give each its own"
            )
        group.append(run)
    for what in ("task", "samples"):
        found = {run.evaluation.about[what]: run.method for run in runs}
        if len(found) > 1:
            listed = ", ".join(f"{value} ({method})" for value, method in found.items())
            raise EvaluationError(f"runs differ in {what}: {listed}; a report compares runs on one test set")
    methods = tuple(
        MethodRuns(name, tuple(sorted(group, key=lambda r: r.seed))) for name, group in groups.items()
    )
    return Results(methods, _baseline(methods, baseline))


def _baseline(methods: Sequence[MethodRuns], name: str | None) -> MethodRuns:
    """By name; else the first with one member; else the first."""
    if name is None:
        return next((m for m in methods if m.members == 1), methods[0])
    for method in methods:
        if method.name == name:
            return method
    raise EvaluationError(f"baseline: no method {name!r}{suggest(name, [m.name for m in methods])}")
