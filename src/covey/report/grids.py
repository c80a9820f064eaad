"""The two tables that compare methods, scores and costs, as the page and its Markdown twin show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .results import MethodRuns, Results
from .table import COSTS, SCORES, Column, best, shown, times, verdict, written

MISSING = "\u2013"
MEMBERS = Column("members", "Members", "lower", "networks in the ensemble")
MARKS = {"better": "better", "worse": "worse", "within noise": "within-noise"}
"""The verdicts that a cell shows, and the style of each."""


@dataclass(frozen=True)
class Cell:
    """What one method has in one column.

    Args:
        text: as it is written.
        value: what the column is sorted by; None where the method lacks it.
        mark: a few words below.
        kind: the style of the mark.
        best: whether no method has a better mean.
    """

    text: str
    value: float | None
    mark: str = ""
    kind: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A method and its cells."""

    method: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Grid:
    """A table with a row for each method."""

    title: str
    label: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def explained(self) -> list[Column]:
        """The columns whose meaning a reader may ask for."""
        return [column for column in self.columns if column is not MEMBERS]


def grids(results: Results, marks: str = "below each") -> list[Grid]:
    """The scores, and the costs if any were measured; `marks` says where a reader finds the cells' marks."""
    found = [_score_grid(results, marks)]
    if shown(results, COSTS):
        found.append(_cost_grid(results, marks))
    return found


def _score_grid(results: Results, marks: str) -> Grid:
    columns = shown(results, SCORES)
    rows = []
    for method in results.methods:
        cells = [_score_cell(results, method, column) for column in columns]
        rows.append(Row(method.name, cells))
    caption = "Mean ± standard deviation over seeds"
    if not results.alone:
        caption += (
            f"; best mean in bold. {marks.capitalize()}: compared with {results.baseline.name} by a paired t-test over "
            "seeds at 5 %, not corrected for their number."
        )
    return Grid("All scores", "Scores", caption, columns, rows)


def _score_cell(results: Results, method: MethodRuns, column: Column) -> Cell:
    value = method.summary(column.key)
    if value is None:
        return Cell(MISSING, None)
    found = verdict(results, method, results.baseline, column)
    mark = found if found in MARKS else ""
    top = best(results, column)
    is_best = not results.alone and top is not None and top.name == method.name
    return Cell(written(column, value), value.mean, mark, MARKS.get(mark, ""), is_best)


def _cost_grid(results: Results, marks: str) -> Grid:
    columns = shown(results, COSTS)
    rows = []
    for method in results.methods:
        members = Cell(str(method.members), method.members)
        costs = [_cost_cell(results, method, column) for column in columns]
        rows.append(Row(method.name, [members, *costs]))
    caption = "Cost"
    if not results.alone:
        caption = f"Cost, and {marks} its ratio to that of {results.reference.name}."
    return Grid("Cost", "Cost", caption, [MEMBERS, *columns], rows)


def _cost_cell(results: Results, method: MethodRuns, column: Column) -> Cell:
    value = method.summary(column.key)
    if value is None:
        return Cell(MISSING, None)
    ratio = results.ratio(method, column.key)
    mark = "" if ratio is None else times(ratio)
    text = f"{written(column, value)} {column.unit}".strip()
    return Cell(text, value.mean, mark)
