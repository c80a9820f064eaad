"""Score against cost: every method a point with its name, and single networks of several widths as a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from result_rows import WORDS, Row

from covey.report.style import INK, PAPER, SOFT, blank, finish, styled

SINGLE, OTHER = SOFT, "#0a6fb5"
GAP = 0.037  # between names, as a share of the axis
NEAR = 1.4  # points whose costs differ by less stand in one column


@dataclass(frozen=True)
class Point:
    """A method: its name, what it costs, its mean score and its deviation over seeds."""

    name: str
    cost: float
    score: float
    spread: float
    single: bool


@dataclass(frozen=True)
class Front:
    """A figure of one score.

    Args:
        words: the axis' label.
        path: where a run has the score.
        low: the least that is drawn, as a share of the single network's; what lies beyond stands at the edge.
        high: the most.
    """

    words: str
    path: tuple[str, ...]
    low: float
    high: float

    def drawn(self, table: Mapping[str, Row]) -> str:
        """The figure as SVG."""
        points = [
            point for label, row in table.items() if (point := self._point(label, row, table)) is not None
        ]
        base = next(point.score for point in points if point.name == WORDS["single"])
        bottom, top = self.low * base, self.high * base
        with styled():
            figure, axes = blank((7.6, 4.8))
            curve = sorted((point.cost, point.score) for point in points if point.single)
            axes.plot(*zip(*curve, strict=True), color=SINGLE, lw=1, ls=":")
            for point in points:
                self._dot(axes, point, bottom, top)
            for column in _columns(points):
                _name(axes, column, bottom, top)
            axes.set_xscale("log", base=2)
            axes.set_xlim(0.85, 2.2 * max(point.cost for point in points))
            axes.set_ylim(bottom, top)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}\u00d7")
            axes.set_xlabel("multiply-adds over the single network's")
            axes.set_ylabel(self.words)
            return finish(figure, "promise", self.words, self.words).file

    def _point(self, label: str, row: Row, table: Mapping[str, Row]) -> Point | None:
        scores = row.values(*self.path)
        if not scores:
            return None
        cost = row.mean("cost", "multiply_adds") / table["single"].mean("cost", "multiply_adds")
        spread = stdev(scores) if len(scores) > 1 else 0.0
        return Point(
            WORDS.get(label, label).removeprefix("single, "),
            cost,
            fmean(scores),
            spread,
            label.startswith("single"),
        )

    @staticmethod
    def _dot(axes: Any, point: Point, bottom: float, top: float) -> None:
        colour = SINGLE if point.single else OTHER
        inside = bottom <= point.score <= top
        marker = "o" if inside else ("^" if point.score > top else "v")
        place = min(max(point.score, bottom), top)
        if inside and point.spread:
            axes.errorbar(point.cost, place, yerr=point.spread, color=colour, elinewidth=1)
        axes.plot(point.cost, place, marker, color=colour, mec=PAPER, ms=7, clip_on=False, zorder=3)


def _columns(points: list[Point]) -> list[list[Point]]:
    """Points of about the same cost, whose names must not stand on each other."""
    columns: list[list[Point]] = []
    for point in sorted(points, key=lambda each: each.cost):
        if columns and point.cost < NEAR * columns[-1][0].cost:
            columns[-1].append(point)
        else:
            columns.append([point])
    return columns


def _name(axes: Any, column: list[Point], bottom: float, top: float) -> None:
    """Names to the right of their points, moved apart where they are too close, with a line back to the point."""
    span = top - bottom
    places: list[float] = []
    for point in sorted(column, key=lambda each: each.score):
        wanted = min(max(point.score, bottom), top)
        least = places[-1] + GAP * span if places else bottom
        places.append(max(wanted, least))
    over = max(0.0, places[-1] - top)
    places = [place - over for place in places]
    right = max(point.cost for point in column) * 1.09
    for point, place in zip(sorted(column, key=lambda each: each.score), places, strict=True):
        beyond = "" if bottom <= point.score <= top else f" ({point.score:.2f})"
        start = min(max(point.score, bottom), top)
        axes.plot([point.cost, right], [start, place], color=SOFT, lw=0.4)
        axes.text(right * 1.02, place, point.name + beyond, va="center", fontsize=6.5, color=INK)


FRONTS = {
    "promise-nll": Front("NLL, lower is better", ("scores", "ensemble", "nll"), 0.75, 1.25),
    "promise-auroc": Front(
        "OOD AUROC, higher is better", ("scores", "ood", "mean", "entropy", "auroc"), 0.85, 1.15
    ),
}
