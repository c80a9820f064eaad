"""Scores against costs, with the front of methods that no other beats in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.extras import load

from .results import Results
from .style import PAPER, SOFT, Figure, Looks, blank, finish, label
from .table import COSTS, SCORES, Column

QUALITY = ("miou", "mean_ap", "accuracy", "rmse", "bits_per_character")
"""Scores of how good answers are; the first that the runs have is drawn."""

RATIO_TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Point:
    """A method's cost over the reference's, and its mean score with its spread over seeds."""

    method: str
    cost: float
    score: float
    spread: float


def fronts(results: Results, looks: Looks) -> list[Figure]:
    """One figure for each pair of a score and a cost that the runs have."""
    quality = _first_column(results, QUALITY)
    likelihood = _first_column(results, ("nll", "gaussian_nll", "pinball"))
    costs = {column.key: column for column in COSTS}
    figures = []
    for score, cost in ((quality, "multiply_adds"), (likelihood, "stored"), (quality, "latency")):
        if score is None or not results.has(cost):
            continue
        points = _points(results, score, costs[cost])
        if points:
            figures.append(_front(results, looks, points, score, costs[cost]))
    return figures


def _first_column(results: Results, keys: tuple[str, ...]) -> Column | None:
    """The first of some scores that the runs have."""
    for column in SCORES:
        if column.key in keys and results.has(column.key):
            return column
    return None


def _front(results: Results, looks: Looks, points: list[Point], score: Column, cost: Column) -> Figure:
    figure, axes = blank()
    for point in points:
        look = looks[point.method]
        axes.errorbar(
            point.cost,
            point.score,
            yerr=point.spread or None,
            color=look.colour,
            elinewidth=1,
            zorder=2,
        )
        axes.plot(
            point.cost,
            point.score,
            look.marker,
            color=look.colour,
            mec=PAPER,
            ms=7,
            label=label(point.method),
            zorder=3,
        )
    best = _best_points(points, score)
    axes.plot(
        [point.cost for point in best],
        [point.score for point in best],
        color=SOFT,
        lw=1,
        ls=":",
        zorder=1,
    )
    _scale_costs(axes, points)
    title = f"{score.title} against {cost.title.lower()}"
    axes.margins(0.16, 0.2)
    axes.legend(loc="best")
    axes.set_xlabel(f"{cost.title} relative to {label(results.reference.name)}")
    axes.set_ylabel(_with_unit(score))
    axes.set_title(title, loc="left")
    alt = _alt(points, score, cost, results.reference.name)
    return finish(figure, f"front-{score.key}-{cost.key}", title, alt)


def _points(results: Results, score: Column, cost: Column) -> list[Point]:
    points = []
    for method in results.methods:
        value = method.summary(score.key)
        ratio = results.ratio(method, cost.key)
        if value is None or ratio is None:
            continue
        spread = value.std or 0.0
        points.append(Point(method.name, ratio, value.mean * score.scale, spread * score.scale))
    return points


def _best_points(points: list[Point], score: Column) -> list[Point]:
    """The points that no cheaper one equals, from cheap to dear."""
    sign = 1 if score.better == "higher" else -1
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -sign * p.score)):
        if not best or sign * point.score > sign * best[-1].score:
            best.append(point)
    return best


def _scale_costs(axes: Any, points: list[Point]) -> None:
    """A logarithmic axis of ratios, where they differ much."""
    ticker = load("matplotlib.ticker")

    costs = [point.cost for point in points]
    low = min(costs)
    high = max(costs)
    if high <= 3 * low:
        return
    ticks = [tick for tick in RATIO_TICKS if low * 0.6 <= tick <= high * 1.7]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.FixedLocator(ticks))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}\u00d7"))


def _alt(points: list[Point], score: Column, cost: Column, reference: str) -> str:
    told = []
    for point in points:
        told.append(f"{point.method}: {point.score:.4g} at {point.cost:.2f} times")
    what = f"{_with_unit(score)} of each method against its {cost.title.lower()} over that of {reference}"
    return f"{what}. {'; '.join(told)}."


def _with_unit(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title
