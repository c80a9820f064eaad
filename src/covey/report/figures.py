"""The report's figures, one column of a paper wide each, from results.

Every function returns finished figures, none where the runs lack what it shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .results import MethodRuns, Results
from .style import INK, PAPER, SIZE, SOFT, Figure, Look, Looks, blank, finish, slug, styled
from .table import COSTS, SCORES, Column


def fronts(results: Results, looks: Looks) -> list[Figure]:
    """Scores against costs, with the front of methods that no other beats in both."""
    scores = {c.key: c for c in SCORES}
    costs = {c.key: c for c in COSTS}
    first = next((k for k in ("accuracy", "rmse", "bits_per_character") if results.has(k)), None)
    second = next((k for k in ("nll", "gaussian_nll") if results.has(k)), None)
    pairs = [(first, "multiply_adds"), (second, "stored"), (first, "latency")]
    return [
        _front(results, looks, scores[score], costs[cost])
        for score, cost in pairs
        if score is not None and results.has(score) and results.has(cost)
    ]


def _front(results: Results, looks: Looks, score: Column, cost: Column) -> Figure:
    figure, axes = blank()
    points = []
    for method in results.methods:
        value, price = method.summary(score.key), results.ratio(method, cost.key)
        if value is None or price is None:
            continue
        y, look = value.mean * score.scale, looks[method.name]
        points.append((price, y, method.name))
        spread = (value.std or 0) * score.scale
        axes.errorbar(price, y, yerr=spread or None, color=look.colour, elinewidth=1, zorder=2)
        axes.plot(price, y, look.marker, color=look.colour, mec=PAPER, ms=7, label=method.name, zorder=3)
    sign = 1 if score.better == "higher" else -1
    front: list[tuple[float, float]] = []
    for x, y, _ in sorted(points, key=lambda p: (p[0], -sign * p[1])):
        if not front or sign * y > sign * front[-1][1]:
            front.append((x, y))
    axes.plot(*zip(*front, strict=True), color=SOFT, lw=1, ls=":", zorder=1)
    prices = [p[0] for p in points]
    if max(prices) / min(prices) > 3:
        _log_ratio(axes, min(prices), max(prices))
    axes.margins(0.16, 0.2)
    axes.legend(loc="best")
    axes.set_xlabel(f"{cost.title} relative to {results.baseline.name}")
    axes.set_ylabel(_label(score))
    axes.set_title(f"{score.title} against {cost.title.lower()}", loc="left")
    told = "; ".join(f"{n}: {y:.4g} at {x:.2f} times" for x, y, n in points)
    alt = f"{_label(score)} of each method against its {cost.title.lower()} over the baseline's. {told}."
    return finish(figure, f"front-{score.key}-{cost.key}", f"{score.title} against {cost.title.lower()}", alt)


def _log_ratio(axes: Any, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if low * 0.6 <= t <= high * 1.7]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}\u00d7"))


def reliability(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy against confidence, one figure a method, bins pooled over seeds."""
    figures = []
    for method in results.methods:
        curves = method.curves("reliability")
        if not curves:
            continue
        bins: dict[float, list[float]] = {}
        for curve in curves:
            for left, c, a, s in zip(
                *(curve[k] for k in ("left", "confidence", "accuracy", "share")), strict=True
            ):
                total = bins.setdefault(left, [0.0, 0.0, 0.0])
                for i, v in enumerate((c * s, a * s, s)):
                    total[i] += v
        left = sorted(bins)
        confidence, accuracy = (np.array([bins[x][i] / bins[x][2] for x in left]) for i in (0, 1))
        share = np.array([bins[x][2] for x in left]) / len(curves)
        figures.append(_reliability(method, looks[method.name], np.array(left), confidence, accuracy, share))
    return figures


def _reliability(
    method: MethodRuns,
    look: Look,
    left: np.ndarray,
    confidence: np.ndarray,
    accuracy: np.ndarray,
    share: np.ndarray,
) -> Figure:
    figure, axes = blank()
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1, ls="--", zorder=1)
    axes.bar(left, share, width=1 / 15, align="edge", color=look.colour, alpha=0.25, lw=0, zorder=1)
    axes.plot(confidence, accuracy, color=look.colour, lw=1, alpha=0.6, zorder=2)
    # Large markers where there are many samples, because the others hardly count and scatter widely.
    size = 8 + 55 * np.sqrt(share)
    axes.scatter(
        confidence, accuracy, size, color=look.colour, marker=look.marker, ec=PAPER, lw=0.6, zorder=3
    )
    axes.set(xlim=(0, 1.02), ylim=(0, 1.04), xlabel="Confidence", ylabel="Accuracy, share of samples")
    axes.set_title(method.name, loc="left")
    ece = method.summary("ece")
    text = "" if ece is None else f"ECE {100 * ece.mean:.2f} %"
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top")
    alt = (
        f"Reliability diagram of {method.name}. {text}. Accuracy by confidence: "
        + ", ".join(f"{a:.2f} at {c:.2f}" for c, a in zip(confidence, accuracy, strict=True))
        + "."
    )
    return finish(figure, f"reliability-{slug(method.name)}", method.name, alt)


def ood_histograms(results: Results, looks: Looks) -> list[Figure]:
    """Entropy on the test set and on each OOD set, one figure a method (its first seed)."""
    figures = []
    for method in results.methods:
        curves = method.curves("histogram")
        if not curves:
            continue
        curve, look = curves[0], looks[method.name]
        figure, axes = blank()
        edges = np.array(curve["edges"])
        axes.stairs(curve["share"]["test"], edges, fill=True, color=SOFT, alpha=0.35, lw=0, label="test")
        for (name, share), dash in zip(_strange(curve["share"]), ("-", "--", ":", "-.") * 9, strict=False):
            axes.stairs(share, edges, color=look.colour, ls=dash, lw=1.5, label=name)
        axes.set(xlabel="Predictive entropy, nats", ylabel="Share of samples", xlim=(0, edges[-1]))
        axes.set_yscale("log")
        axes.set_ylim(1e-3, 12)  # room for the legend
        axes.legend(loc="upper right")
        axes.set_title(method.name, loc="left")
        means = {
            name: sum(s * (a + b) / 2 for s, a, b in zip(share, edges[:-1], edges[1:], strict=True))
            for name, share in curve["share"].items()
        }
        told = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
        alt = f"Histograms of predictive entropy of {method.name}. Mean entropy in nats: {told}."
        figures.append(finish(figure, f"entropy-{slug(method.name)}", method.name, alt))
    return figures


def disagreement(results: Results, looks: Looks) -> list[Figure]:
    """Pairwise disagreement over error, one matrix a method, mean over seeds, all on one colour scale."""
    matrices = {}
    for method in results.methods:
        found = [r.evaluation.scores["diversity"].get("disagreement_matrix") for r in method.runs]
        arrays = [np.array(m, dtype=float) for m in found if m is not None]
        if arrays:
            matrices[method.name] = np.mean(arrays, axis=0)
    top = max([1.0, *(float(np.nanmax(m)) for m in matrices.values() if np.isfinite(m).any())])
    return [_matrix(name, matrix, top) for name, matrix in matrices.items()]


def _matrix(name: str, matrix: np.ndarray, top: float) -> Figure:
    figure, axes = blank((SIZE[0], 2.9))
    members = len(matrix)
    masked = np.ma.masked_invalid(np.where(np.eye(members, dtype=bool), np.nan, matrix))
    mesh = axes.pcolormesh(masked, cmap="cividis", vmin=0, vmax=top, edgecolors="none", rasterized=False)
    if members <= 8:
        for i, j in zip(*np.nonzero(~np.ma.getmaskarray(masked)), strict=True):
            colour = "#ffffff" if masked[i, j] < 0.55 * top else "#000000"
            axes.text(j + 0.5, i + 0.5, f"{masked[i, j]:.2f}", ha="center", va="center", color=colour, size=7)
    ticks = np.arange(members) + 0.5
    axes.set(xticks=ticks, yticks=ticks, aspect="equal", xlabel="Member", ylabel="Member (its error divides)")
    axes.set_xticklabels(range(members))
    axes.set_yticklabels(range(members))
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=SOFT, labelcolor=INK, labelsize=7)
    axes.set_title(name, loc="left")
    low, high = float(masked.min()), float(masked.max())
    alt = (
        f"Disagreement of members of {name} over a member's error: pairs between {low:.2f} and {high:.2f}, "
        f"mean {float(masked.mean()):.2f}."
    )
    return finish(figure, f"disagreement-{slug(name)}", name, alt)


def planes(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy and loss on the plane through three members, a figure each, where a method's runs have it."""
    found = {
        m.name: [r.landscape["plane"] for r in m.runs if "plane" in r.landscape] for m in results.methods
    }
    figures = []
    for name, planes in found.items():
        for score in _MAPS if planes else ():
            figure, axes = blank((SIZE[0], 2.8))
            told = _map(figure, axes, planes[0], score)
            axes.set_title(name, loc="left")
            alt = f"{told} on the plane through three members of {name}."
            title = f"{name}: plane through three members"
            figures.append(finish(figure, f"plane-{score}-{slug(name)}", title, alt))
    return figures


def plane(name: str, found: dict[str, Any]) -> Figure:
    """What `covey.scores.landscape.plane` found, as two maps side by side with the members' places marked."""
    with styled():
        figure, axes = blank((2 * SIZE[0], 2.8))
        axes.remove()
        sides = figure.subplots(1, 2)
        told = [_map(figure, side, found, score) for side, score in zip(sides, _MAPS, strict=True)]
        sides[0].set_title(name, loc="left")
        alt = f"{told[0]}, and {told[1]}, on the plane through three members of {name}."
        return finish(figure, f"plane-{slug(name)}", f"{name}: plane through three members", alt)


_MAPS = {"accuracy": ("Accuracy, %", "cividis"), "loss": ("NLL", "cividis_r")}


def _map(figure: Any, axes: Any, found: dict[str, Any], score: str) -> str:
    """Draw one score on the plane, and tell its range."""
    from matplotlib.ticker import MaxNLocator

    label, colours = _MAPS[score]
    values = np.array(found[score]) * (100 if score == "accuracy" else 1)
    told = f"{label} from {values.min():.3g} to {values.max():.3g}"
    if score == "loss":  # far from the members it explodes; what matters happens near the lowest
        values = np.minimum(values, 5 * np.median(values))
    levels = np.linspace(values.min(), max(values.max(), values.min() + 1e-3), 13)
    mesh = axes.contourf(found["u"], found["v"], values, levels=levels, cmap=colours)
    for k, (x, y) in enumerate(found["corners"]):
        axes.plot(x, y, marker="o", color="#ffffff", mec="#000000", ms=5)
        box = {"boxstyle": "round,pad=0.15", "fc": "#000000", "ec": "none", "alpha": 0.6}
        axes.annotate(str(k), (x, y), xytext=(5, 5), textcoords="offset points", color="#ffffff", bbox=box)
    axes.grid(False)
    axes.set(xlabel="Distance along members 0 and 1", ylabel="Distance towards member 2")
    bar = figure.colorbar(mesh, ax=axes, label=label, ticks=MaxNLocator(5))
    bar.ax.tick_params(color=SOFT, labelcolor=INK, labelsize=7)
    bar.outline.set_visible(False)
    return told


def _strange(shares: dict[str, list[float]]) -> list[tuple[str, list[float]]]:
    return [(name, share) for name, share in shares.items() if name != "test"]


def _label(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title
