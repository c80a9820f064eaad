"""Runs of several methods and seeds, put in order: what the tables, figures and answers read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import EvaluationError, suggest
from covey.scores.cost import Cost
from covey.scores.evaluation import Evaluation
from covey.scores.statistics import Comparison, Summary, compare, summary
from covey.scores.subsets import Measured


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
        subsets: what subsets of its members cost and score.
        clusters: of members whose layers share templates, each network's clusters by depth.
    """

    method: str
    seed: int
    evaluation: Evaluation
    cost: Cost | None = None
    history: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    landscape: Mapping[str, Any] = field(default_factory=dict)
    subsets: Measured | None = None
    clusters: Sequence[Sequence[int]] = ()

    @property
    def numbers(self) -> dict[str, float]:
        """Every score and cost that is defined, by name."""
        row: dict[str, Any] = dict(self.evaluation.headline)
        if self.cost is not None:
            row.update(self.cost.to_dict())
            row["throughput"] = self.cost.throughput
        row["members"] = self.evaluation.about["members"]
        numbers = {}
        for name, value in row.items():
            if isinstance(value, (int, float)):
                numbers[name] = float(value)
        return numbers


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
        found = {}
        for run in self.runs:
            value = run.numbers.get(key)
            if value is not None:
                found[run.seed] = value
        return found

    def summary(self, key: str) -> Summary | None:
        """Mean and deviation over seeds, None if it is not defined for any."""
        values = list(self.values(key).values())
        if not values:
            return None
        return summary(values)

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
    def alone(self) -> bool:
        """Whether there is one method, with nothing to compare it with."""
        return len(self.methods) == 1

    @property
    def seeds(self) -> int:
        """Runs of the method that has fewest."""
        return min(len(method.runs) for method in self.methods)

    def has(self, key: str) -> bool:
        """Whether any method has this score or cost."""
        return any(method.values(key) for method in self.methods)

    def against(self, method: MethodRuns, other: MethodRuns, key: str) -> Comparison | None:
        """The paired comparison of a score, None where a side lacks it or they share no seed."""
        this = method.values(key)
        that = other.values(key)
        if this.keys().isdisjoint(that):
            return None
        return compare(this, that, overlap=self.overlap)

    @property
    def overlap(self) -> float:
        """Test over training samples where repetitions are splits of one set, which share most rows; else 0."""
        parts = {_test_part(run) for run in self.baseline.runs}
        counts = _table(_table(self.baseline.runs[0].settings, "record"), "counts")
        train, test = counts.get("train"), counts.get("test")
        if len(parts) < 2 or not isinstance(train, int) or not isinstance(test, int) or train < 1:
            return 0.0
        return test / train

    @property
    def reference(self) -> MethodRuns:
        """What all costs are compared with: a single network if there is one, else the baseline."""
        for method in (self.baseline, *self.methods):
            if method.members == 1:
                return method
        return self.baseline

    def ratio(self, method: MethodRuns, key: str) -> float | None:
        """A cost over the reference's, over the seeds that both have."""
        if self.alone:
            return None
        own = method.values(key)
        base = self.reference.values(key)
        shared = own.keys() & base.keys()
        total = sum(base[seed] for seed in shared)
        if not total:
            return None
        return sum(own[seed] for seed in shared) / total


def _test_part(run: Run) -> tuple[str, str]:
    """What tells one test set from another: a set's standard split, and which of its rows are for the test."""
    record, dataset = _table(run.settings, "record"), _table(run.settings, "dataset")
    rows = _table(record, "indices_sha256").get("test")
    return str(dataset.get("split")), str(rows)


def _table(found: Any, name: str) -> Mapping[str, Any]:
    """A table in settings, which may come from anyone; an empty one if it is none."""
    inside = found.get(name) if isinstance(found, Mapping) else None
    return inside if isinstance(inside, Mapping) else {}


def gather(runs: Sequence[Run], baseline: str | None = None) -> Results:
    """Group runs by method and check that they can be compared."""
    if not runs:
        raise EvaluationError("a report needs one run or more, got none")
    _check_counts(runs)
    _check_alike(runs)
    methods = []
    for name, group in _by_method(runs).items():
        in_order = sorted(group, key=lambda run: run.seed)
        methods.append(MethodRuns(name, tuple(in_order)))
    return Results(tuple(methods), _baseline(methods, baseline))


def _by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.method, [])
        if any(run.seed == other.seed for other in group):
            raise EvaluationError(
                f"method {run.method!r} has two runs with seed {run.seed}: give each its own"
            )
        group.append(run)
    return groups


def _check_counts(runs: Sequence[Run]) -> None:
    """Evaluations come from files, which may hold anything."""
    for run in runs:
        for what in ("members", "samples"):
            count = run.evaluation.about[what]
            if not isinstance(count, int) or count < 1:
                raise EvaluationError(
                    f"method {run.method!r}, seed {run.seed}: its evaluation has {what} {count!r}, expected a whole "
                    "number of 1 or more"
                )


def _check_alike(runs: Sequence[Run]) -> None:
    for what in ("task", "samples"):
        found: dict[Any, str] = {}
        for run in runs:
            found[run.evaluation.about[what]] = run.method
        if len(found) > 1:
            listed = ", ".join(f"{value} ({method})" for value, method in found.items())
            raise EvaluationError(f"runs differ in {what}: {listed}; a report compares runs on one test set")


def _baseline(methods: Sequence[MethodRuns], name: str | None) -> MethodRuns:
    """By name; else the first with one member; else the first."""
    if name is None:
        for method in methods:
            if method.members == 1:
                return method
        return methods[0]
    for method in methods:
        if method.name == name:
            return method
    known = [method.name for method in methods]
    raise EvaluationError(f"baseline: no method {name!r}{suggest(name, known)}")
