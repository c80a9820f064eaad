"""Runs of a results file, grouped into the rows of a page's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from covey.cli import results as stored

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
WORDS = {
    "single": "single network",
    "single network_option=[width=22]": "single, 1.4 times as wide",
    "single network_option=[width=32]": "single, twice as wide",
    "mc-dropout p=0.1 after=[stages.0 stages.1 stages.2 stages.3]": "mc-dropout",
    "norm-ensemble init=fresh": "norm-ensemble, fresh heads",
    "late-phase collapse=false": "late-phase, members kept",
    "low-rank base=1.0": "low-rank, base trained",
    "shared-low-rank base=1.0": "shared-low-rank, base trained",
}
"""What pages call the arms of an experiment whose labels are long."""


@dataclass
class Row:
    """All runs of one method on one set of data, over their repetitions."""

    label: str
    runs: list[Mapping[str, Any]] = field(default_factory=list)

    def values(self, *path: str) -> list[float]:
        """A number of each run, by the keys that lead to it; runs that do not have it are left out."""
        found = []
        for run in self.runs:
            value: Any = run
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                found.append(float(value))
        return found

    def mean(self, *path: str) -> float:
        """Over repetitions; NaN where there is none."""
        values = self.values(*path)
        return fmean(values) if values else float("nan")

    def cell(self, *path: str, digits: int = 3, percent: bool = False) -> str:
        """Mean and standard deviation as a table has them."""
        values = [100 * value if percent else value for value in self.values(*path)]
        if not values:
            return "-"
        mean = f"{fmean(values):.{digits}f}"
        return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def rows(found: Mapping[str, Any]) -> dict[str, Row]:
    """A results file's runs by their labels."""
    table: dict[str, Row] = {}
    for run in found["runs"]:
        table.setdefault(run["label"], Row(run["label"])).runs.append(run)
    return table


def read(name: str) -> Mapping[str, Any] | None:
    """A file of results, if it is there."""
    path = RESULTS / f"{name}.json"
    return stored.read(path) if path.exists() else None


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all but the first column are numbers."""
    head = f"| {' | '.join(headings)} |"
    rule = f"| --- |{' ---: |' * (len(headings) - 1)}"
    return "\n".join([head, rule, *(f"| {' | '.join(line)} |" for line in lines)])


def origin(found: Mapping[str, Any]) -> str:
    """Where numbers come from, in a sentence."""
    versions = found["versions"]
    done, planned = len(found["runs"]), found["planned"]
    whole = "all runs" if done == planned else f"{done} of {planned} runs so far"
    return (
        f"`{found['command']}`, {whole}, written {found['written']} with covey {versions['covey']} and torch "
        f"{versions['torch'].partition('+')[0]}."
    )


def waiting(name: str) -> str:
    """What a page says where there are no results yet."""
    return f"*Not run yet: `covey reproduce {name} --results results`.*"
