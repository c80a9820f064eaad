"""Figures in which every method is one line: mean over seeds, with a band of one standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .results import MethodRuns, Results
from .style import PAPER, SOFT, Figure, Looks, blank, finish, slug

TIME = frozenset(("seconds", "time", "lr", "learning_rate", "elapsed", "phase"))
"""What training records besides what it learns."""


def risk_coverage(results: Results, looks: Looks) -> list[Figure]:
    """Error among the surest samples, against how many are answered."""
    grid = np.linspace(0.02, 1, 99)

    def curve(c: dict[str, list[float]]) -> np.ndarray:
        return 100 * np.interp(grid, c["coverage"], c["risk"])

    lines = {m.name: [curve(c) for c in m.curves("risk_coverage")] for m in results.methods}
    at = int(np.argmin(abs(grid - 0.8)))
    alt = "Error among the answered samples at coverage 80 %: " + _told(lines, at, " %")
    return _lines(
        looks,
        "risk-coverage",
        "Risk against coverage",
        grid * 100,
        lines,
        alt,
        ("Coverage, % of samples answered", "Error among them, %"),
    )


def ood_roc(results: Results, looks: Looks) -> list[Figure]:
    """ROC of telling each OOD set from the test set by entropy."""
    sets: dict[str, None] = {}
    for method in results.methods:
        for curve in method.curves("roc"):
            sets |= dict.fromkeys(curve)
    grid = np.linspace(0, 1, 101)
    figures = []
    for name in sets:
        rocs = {m.name: [c[name] for c in m.curves("roc") if name in c] for m in results.methods}
        lines = {
            method: [100 * np.interp(grid, c["lost"], c["found"]) for c in found]
            for method, found in rocs.items()
        }
        aurocs = {m.name: _set_auroc(m, name) for m in results.methods if lines[m.name]}
        told = ", ".join(f"{method} {100 * value:.1f} %" for method, value in aurocs.items())
        labels = {method: f"{method} ({100 * value:.1f})" for method, value in aurocs.items()}
        figures += _lines(
            looks,
            f"roc-{slug(name)}",
            f"{name}: ROC (AUROC, %)",
            grid * 100,
            lines,
            f"ROC curves of telling {name} from the test set by entropy. AUROC: {told}.",
            ("Test samples taken for strange, %", "Strange samples found, %"),
            labels,
        )
    return figures


def _set_auroc(method: MethodRuns, name: str) -> float:
    values = [r.evaluation.scores["ood"]["sets"][name]["entropy"]["auroc"] for r in method.runs]
    return sum(values) / len(values)


def severity(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy and ECE by severity of corruption, mean over kinds; 0 is the clean test set."""
    figures = []
    for key, label in (("accuracy", "Accuracy, %"), ("ece", "ECE, %")):
        lines: dict[str, list[np.ndarray]] = {}
        for method in results.methods:
            rows = []
            for run in method.runs:
                robust = run.evaluation.scores.get("robustness")
                if robust:
                    levels = [robust["by_severity"][s][key] for s in sorted(robust["by_severity"])]
                    rows.append([run.evaluation.scores["ensemble"][key], *levels])
            lines[method.name] = [100 * np.array(row, dtype=float) for row in rows if None not in row]
        alt = f"{label[:-3]} at severity 5: " + _told(lines, -1, " %")
        figures += _lines(
            looks,
            f"severity-{key}",
            f"{label[:-3]} under corruption",
            np.arange(6),
            lines,
            alt,
            ("Severity of corruption", label),
            markers=True,
        )
    return figures


def training(results: Results, looks: Looks) -> list[Figure]:
    """One figure for each number that training recorded, at most six."""
    rows = [row for method in results.methods for run in method.runs for row in run.history]
    axis = next((k for k in ("epoch", "step", "iteration") if any(k in row for row in rows)), None)
    if axis is None:
        return []
    keys = dict.fromkeys(k for row in rows for k, v in row.items() if _number(v) and k not in (axis, *TIME))
    figures = []
    for key in list(keys)[:6]:
        traces = {
            method.name: [t for run in method.runs if (t := _trace(run.history, axis, key))]
            for method in results.methods
        }
        x = np.array(sorted({at for runs in traces.values() for trace in runs for at in trace}))
        lines = {
            name: [np.interp(x, list(t), list(t.values()), left=np.nan, right=np.nan) for t in runs]
            for name, runs in traces.items()
        }
        ends = {name: np.mean([list(t.values())[-1] for t in runs]) for name, runs in traces.items() if runs}
        title = key.replace("_", " ").capitalize().replace("nll", "NLL")
        told = ", ".join(f"{name} {end:.3g}" for name, end in ends.items())
        alt = f"{title} during training. At the end: {told}."
        labels = (axis.capitalize(), title)
        figures += _lines(looks, f"training-{slug(key)}", title, x, lines, alt, labels, log=True)
    return figures


def _trace(history: Sequence[Mapping[str, Any]], axis: str, key: str) -> dict[float, float]:
    """What a run recorded of `key`, in order; epochs without it and diverged values are left out."""
    pairs = [(row[axis], row[key]) for row in history if _number(row.get(key)) and _number(row.get(axis))]
    return {float(at): float(value) for at, value in sorted(pairs)}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def intervals(results: Results, looks: Looks) -> list[Figure]:
    """Observed against expected coverage of a regression's intervals."""
    lines = {m.name: [100 * np.array(c["observed"]) for c in m.curves("intervals")] for m in results.methods}
    grid = np.array(next((c["expected"] for m in results.methods for c in m.curves("intervals")), []))
    alt = "Observed coverage of the 95 % interval: " + _told(lines, -1, " %")
    return _lines(
        looks,
        "intervals",
        "Interval calibration",
        grid * 100,
        lines,
        alt,
        ("Expected coverage, %", "Observed coverage, %"),
        diagonal=True,
    )


def landscape(results: Results, looks: Looks) -> list[Figure]:
    """Flatness, and the loss between two members, where the runs have them."""
    figures = []
    for key, x, y, title, labels in (
        ("flatness", "sigma", "rise", "Flatness", ("Relative noise on weights", "Rise of the loss")),
        ("interpolation", "t", "loss", "Between two members", ("Position from one to the other", "Loss")),
    ):
        curves = {m.name: [r.landscape[key] for r in m.runs if key in r.landscape] for m in results.methods}
        grid = np.array(next((c[x] for found in curves.values() for c in found), []))
        lines = {name: [np.array(c[y]) for c in found] for name, found in curves.items()}
        alt = f"{title}. {labels[1]} at {grid[len(grid) // 2] if len(grid) else 0:g}: "
        figures += _lines(looks, key, title, grid, lines, alt + _told(lines, len(grid) // 2, ""), labels)
    return figures


def _lines(
    looks: Looks,
    name: str,
    title: str,
    x: np.ndarray,
    lines: dict[str, list[np.ndarray]],
    alt: str,
    axis_labels: tuple[str, str],
    labels: dict[str, str] | None = None,
    *,
    markers: bool = False,
    diagonal: bool = False,
    log: bool = False,
) -> list[Figure]:
    """Each method's mean over seeds as a line, with a band of one standard deviation."""
    drawn = {method: rows for method, rows in lines.items() if rows}
    if not drawn or not len(x):
        return []
    figure, axes = blank()
    if diagonal:
        axes.plot([0, 100], [0, 100], color=SOFT, lw=1, ls=":", zorder=1)
    for method, rows in drawn.items():
        look, values = looks[method], np.stack(rows)
        mean = values.mean(0)
        axes.plot(
            x,
            mean,
            color=look.colour,
            ls=look.dash,
            label=(labels or {}).get(method, method),
            zorder=3,
            marker=look.marker if markers else None,
            mec=PAPER,
        )
        if len(rows) > 1:
            std = values.std(0, ddof=1)
            low = np.maximum(mean - std, 0) if (values >= 0).all() else mean - std
            axes.fill_between(x, low, mean + std, color=look.colour, alpha=0.18, lw=0)
    axes.set(xlabel=axis_labels[0], ylabel=axis_labels[1])
    every = np.concatenate([np.ravel(rows) for rows in drawn.values()])
    every = every[~np.isnan(every)]
    if log and every.min() > 0 and every.max() > 30 * every.min():
        axes.set_yscale("log")
    axes.legend(loc="best")
    axes.set_title(title, loc="left")
    return [finish(figure, name, title, alt)]


def _told(lines: dict[str, list[np.ndarray]], at: int, unit: str) -> str:
    return ", ".join(f"{n} {np.stack(rows).mean(0)[at]:.3g}{unit}" for n, rows in lines.items() if rows) + "."
