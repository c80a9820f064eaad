"""Figures in which every method is one line: mean over seeds, with a band of one standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from covey.scores.corruptions import SEVERITIES

from .results import MethodRuns, Results
from .style import PAPER, SOFT, Figure, Look, Looks, blank, finish, label, slug

TIME = frozenset(("seconds", "time", "lr", "learning_rate", "elapsed", "phase"))
"""What training records besides what it learns."""

TRAINING_AXES = ("epoch", "step", "iteration")
MOST_TRAINING_FIGURES = 6
CLEAN = 0
"""The severity of a test set that is not corrupted."""

Lines = dict[str, list[np.ndarray]]
"""The curve of every run, by method."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a figure of lines shows.

    Args:
        name: of its files.
        title: above it.
        alt: what it shows, in words.
        x: where all lines have their points.
        lines: the curves.
        axes: what stands below and beside it.
        legend: what the legend says of a method, where that is more than its name.
        markers: whether each point has a marker.
        diagonal: whether to draw the line from 0 to 100 %.
        log: whether the scale may be logarithmic, if values differ much.
    """

    name: str
    title: str
    alt: str
    x: np.ndarray
    lines: Lines
    axes: tuple[str, str]
    legend: Mapping[str, str] = field(default_factory=dict)
    markers: bool = False
    diagonal: bool = False
    log: bool = False


def risk_coverage(results: Results, looks: Looks) -> list[Figure]:
    """Error among the surest samples, against how many are answered."""
    grid = np.linspace(0.02, 1, 99)
    lines: Lines = {}
    for method in results.methods:
        lines[method.name] = []
        for curve in method.curves("risk_coverage"):
            risk = np.interp(grid, curve["coverage"], curve["risk"])
            lines[method.name].append(100 * risk)
    near_80 = int(np.argmin(abs(grid - 0.8)))
    plot = Plot(
        name="risk-coverage",
        title="Risk against coverage",
        alt=f"Error among the answered samples at coverage 80 %: {_told(lines, near_80, ' %')}",
        x=grid * 100,
        lines=lines,
        axes=("Coverage, % of samples answered", "Error among them, %"),
    )
    return _draw(plot, looks)


def ood_roc(results: Results, looks: Looks) -> list[Figure]:
    """ROC of telling each OOD set from the test set by entropy."""
    sets: dict[str, None] = {}
    for method in results.methods:
        for curve in method.curves("roc"):
            sets.update(dict.fromkeys(curve))
    figures = []
    for name in sets:
        figures += _draw(_roc(results, name), looks)
    return figures


def _roc(results: Results, name: str) -> Plot:
    grid = np.linspace(0, 1, 101)
    lines: Lines = {}
    legend = {}
    told = []
    for method in results.methods:
        found = [curves[name] for curves in method.curves("roc") if name in curves]
        lines[method.name] = [100 * np.interp(grid, curve["lost"], curve["found"]) for curve in found]
        if found:
            auroc = 100 * _set_auroc(method, name)
            legend[method.name] = f"{label(method.name)} ({auroc:.1f})"
            told.append(f"{method.name} {auroc:.1f} %")
    return Plot(
        name=f"roc-{slug(name)}",
        title=f"{name}: ROC (AUROC, %)",
        alt=f"ROC curves of telling {name} from the test set by entropy. AUROC: {', '.join(told)}.",
        x=grid * 100,
        lines=lines,
        axes=("Test samples taken for OOD, %", "OOD samples found, %"),
        legend=legend,
    )


def _set_auroc(method: MethodRuns, name: str) -> float:
    values = []
    for run in method.runs:
        sets = run.evaluation.scores.get("ood", {}).get("sets", {})
        if name in sets:
            values.append(sets[name]["entropy"]["auroc"])
    return fmean(values)


def severity(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy and ECE by severity of corruption, mean over kinds; 0 is the clean test set."""
    figures = []
    for key, title in (("accuracy", "Accuracy"), ("ece", "ECE")):
        lines: Lines = {}
        for method in results.methods:
            lines[method.name] = _by_severity(method, key)
        plot = Plot(
            name=f"severity-{key}",
            title=f"{title} under corruption",
            alt=f"{title} at severity 5: {_told(lines, -1, ' %')}",
            x=np.arange(CLEAN, 6),
            lines=lines,
            axes=("Severity of corruption", f"{title}, %"),
            markers=True,
        )
        figures += _draw(plot, looks)
    return figures


def _by_severity(method: MethodRuns, key: str) -> list[np.ndarray]:
    """A score of each run from clean to severity 5, in percent; runs that lack a value are left out."""
    found = []
    for run in method.runs:
        scores = run.evaluation.scores
        if not scores.get("robustness"):
            continue
        levels = scores["robustness"]["by_severity"]
        row = [scores["ensemble"][key]]
        for level in SEVERITIES:
            row.append(levels.get(str(level), {}).get(key))
        if None not in row:
            found.append(100 * np.array(row, dtype=float))
    return found


def training(results: Results, looks: Looks) -> list[Figure]:
    """One figure for each quantity that training recorded, at most six."""
    rows: list[Mapping[str, Any]] = []
    for method in results.methods:
        for run in method.runs:
            rows.extend(run.history)
    axis = _training_axis(rows)
    if axis is None:
        return []
    keys: dict[str, None] = {}
    for row in rows:
        for key, value in row.items():
            if _is_number(value) and key != axis and key not in TIME:
                keys[key] = None
    figures = []
    for key in list(keys)[:MOST_TRAINING_FIGURES]:
        figures += _draw(_training_plot(results, axis, key), looks)
    return figures


def _training_axis(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What training counts in."""
    for name in TRAINING_AXES:
        if any(name in row for row in rows):
            return name
    return None


def _training_plot(results: Results, axis: str, key: str) -> Plot:
    traces: dict[str, list[dict[float, float]]] = {}
    every_x: set[float] = set()
    for method in results.methods:
        found = [_trace(run.history, axis, key) for run in method.runs]
        traces[method.name] = [trace for trace in found if trace]
        every_x.update(*found)
    x = np.array(sorted(every_x))
    lines: Lines = {}
    told = []
    for name, runs in traces.items():
        lines[name] = [_at(x, trace) for trace in runs]
        if runs:
            ends = [list(trace.values())[-1] for trace in runs]
            told.append(f"{name} {fmean(ends):.3g}")
    title = key.replace("_", " ").capitalize().replace("nll", "NLL")
    return Plot(
        name=f"training-{slug(key)}",
        title=title,
        alt=f"{title} during training. At the end: {', '.join(told)}.",
        x=x,
        lines=lines,
        axes=(axis.capitalize(), title),
        log=True,
    )


def _trace(history: Sequence[Mapping[str, Any]], axis: str, key: str) -> dict[float, float]:
    """What a run recorded of `key`, in order; epochs without it and diverged values are left out."""
    pairs = []
    for row in history:
        if _is_number(row.get(axis)) and _is_number(row.get(key)):
            pairs.append((float(row[axis]), float(row[key])))
    return dict(sorted(pairs))


def _at(x: np.ndarray, trace: dict[float, float]) -> np.ndarray:
    """A trace between its points, and nothing before the first or after the last."""
    return np.interp(x, list(trace), list(trace.values()), left=np.nan, right=np.nan)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def intervals(results: Results, looks: Looks) -> list[Figure]:
    """Observed against expected coverage of a regression's intervals."""
    lines: Lines = {}
    grid = np.array([])
    for method in results.methods:
        lines[method.name] = []
        for curve in method.curves("intervals"):
            grid = np.array(curve["expected"])
            lines[method.name].append(100 * np.array(curve["observed"]))
    plot = Plot(
        name="intervals",
        title="Interval calibration",
        alt=f"Observed coverage of the 95 % interval: {_told(lines, -1, ' %')}",
        x=grid * 100,
        lines=lines,
        axes=("Expected coverage, %", "Observed coverage, %"),
        diagonal=True,
    )
    return _draw(plot, looks)


def landscape(results: Results, looks: Looks) -> list[Figure]:
    """Flatness, and the loss between two members, where the runs have them."""
    flatness = _landscape_plot(
        results, "flatness", "Flatness", ("sigma", "rise"), ("Relative noise on weights", "Rise of the loss")
    )
    between = _landscape_plot(
        results,
        "interpolation",
        "Between two members",
        ("t", "loss"),
        ("Position from one to the other", "Loss"),
    )
    right_between = _landscape_plot(
        results,
        "interpolation",
        "Accuracy between two members",
        ("t", "accuracy"),
        ("Position from one to the other", "Accuracy"),
    )
    right_between = replace(right_between, name="interpolation-accuracy")
    return [*_draw(flatness, looks), *_draw(between, looks), *_draw(right_between, looks)]


def _landscape_plot(
    results: Results, kind: str, title: str, keys: tuple[str, str], axes: tuple[str, str]
) -> Plot:
    """The curves that `covey.scores.landscape` found of one kind; `keys` name their x and y."""
    x_key, y_key = keys
    lines: Lines = {}
    grid = np.array([])
    for method in results.methods:
        lines[method.name] = []
        for run in method.runs:
            if kind in run.landscape:
                grid = np.array(run.landscape[kind][x_key])
                lines[method.name].append(np.array(run.landscape[kind][y_key]))
    middle = len(grid) // 2
    at = grid[middle] if len(grid) else 0
    return Plot(
        name=kind,
        title=title,
        alt=f"{title}. {axes[1]} at {at:g}: {_told(lines, middle, '')}",
        x=grid,
        lines=lines,
        axes=axes,
    )


def _draw(plot: Plot, looks: Looks) -> list[Figure]:
    """Each method's mean over seeds as a line, with a band of one standard deviation; no figure without lines."""
    drawn = {method: np.stack(rows) for method, rows in plot.lines.items() if rows}
    if not drawn or not len(plot.x):
        return []
    figure, axes = blank()
    if plot.diagonal:
        axes.plot([0, 100], [0, 100], color=SOFT, lw=1, ls=":", zorder=1)
    for method, values in drawn.items():
        name = plot.legend.get(method, label(method))
        _draw_line(axes, plot, looks[method], values, name)
    below, beside = plot.axes
    axes.set(xlabel=below, ylabel=label(beside))
    if plot.log and _differ_much(drawn):
        axes.set_yscale("log")
    axes.legend(loc="best")
    axes.set_title(label(plot.title), loc="left")
    return [finish(figure, plot.name, plot.title, plot.alt)]


def _draw_line(axes: Any, plot: Plot, look: Look, values: np.ndarray, name: str) -> None:
    mean = values.mean(0)
    axes.plot(
        plot.x,
        mean,
        color=look.colour,
        ls=look.dash,
        label=name,
        zorder=3,
        marker=look.marker if plot.markers else None,
        mec=PAPER,
    )
    if len(values) < 2:
        return
    std = values.std(0, ddof=1)
    low = mean - std
    if (values >= 0).all():  # a band of what cannot be negative ends at 0
        low = np.maximum(low, 0)
    axes.fill_between(plot.x, low, mean + std, color=look.colour, alpha=0.18, lw=0)


def _differ_much(drawn: Mapping[str, np.ndarray]) -> bool:
    every = np.concatenate([values.ravel() for values in drawn.values()])
    known = every[~np.isnan(every)]
    return bool(known.min() > 0 and known.max() > 30 * known.min())


def _told(lines: Lines, at: int, unit: str) -> str:
    """Each method's mean at one point, in words."""
    told = []
    for name, rows in lines.items():
        if rows:
            mean = np.stack(rows).mean(0)[at]
            told.append(f"{name} {mean:.3g}{unit}")
    return ", ".join(told) + "."
