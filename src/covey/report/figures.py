"""The report's figures of one method each, a paper's column wide: calibration, entropy, disagreement and planes.

Every function returns finished figures, none where the runs lack what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from covey.extras import load

from .evidence import class_names
from .results import MethodRuns, Results
from .style import INK, PAPER, SIZE, SOFT, Figure, Look, Looks, blank, finish, label, slug, styled

BINS = 15
"""Of confidence, as many as the calibration error uses."""

DASHES = ("-", "--", ":", "-.")
MOST_WRITTEN = 8
"""Members up to which a matrix has room for its numbers."""

MAPS = {"accuracy": ("Accuracy, %", "cividis"), "loss": ("NLL", "cividis_r")}
"""The scores that are drawn on a plane, each with its label and colours."""


def reliability(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy against confidence, a figure per method, bins pooled over seeds."""
    figures = []
    for method in results.methods:
        curves = method.curves("reliability")
        if curves:
            bins = _pooled_bins(curves)
            figures.append(_reliability(method, looks[method.name], bins))
    return figures


def _pooled_bins(curves: list[dict[str, list[float]]]) -> np.ndarray:
    """Rows of left edge, mean confidence, accuracy and share of samples, each bin pooled over the runs."""
    sums: dict[float, np.ndarray] = {}
    for curve in curves:
        columns = zip(curve["left"], curve["confidence"], curve["accuracy"], curve["share"], strict=True)
        for left, confidence, accuracy, share in columns:
            weighted = np.array([confidence * share, accuracy * share, share])
            sums[left] = sums.get(left, 0) + weighted
    rows = []
    for left in sorted(sums):
        confidence, accuracy, share = sums[left]
        rows.append((left, confidence / share, accuracy / share, share / len(curves)))
    return np.array(rows)


def _reliability(method: MethodRuns, look: Look, bins: np.ndarray) -> Figure:
    left, confidence, accuracy, share = bins.T
    figure, axes = blank()
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1, ls="--", zorder=1)
    axes.bar(
        left,
        share,
        width=1 / BINS,
        align="edge",
        color=look.colour,
        alpha=0.25,
        lw=0,
        zorder=1,
    )
    axes.plot(confidence, accuracy, color=look.colour, lw=1, alpha=0.6, zorder=2)
    # Large markers where there are many samples, because the others hardly count and scatter widely.
    size = 8 + 55 * np.sqrt(share)
    axes.scatter(
        confidence, accuracy, size, color=look.colour, marker=look.marker, ec=PAPER, lw=0.6, zorder=3
    )
    axes.set(xlim=(0, 1.02), ylim=(0, 1.04), xlabel="Confidence", ylabel="Accuracy, share of samples")
    axes.set_title(label(method.name), loc="left")
    ece = method.summary("ece")
    text = "" if ece is None else f"ECE {100 * ece.mean:.2f} %"
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top")
    told = []
    for sure, right in zip(confidence, accuracy, strict=True):
        told.append(f"{right:.2f} at {sure:.2f}")
    alt = f"Reliability diagram of {method.name}. {text}. Accuracy by confidence: {', '.join(told)}."
    return finish(figure, f"reliability-{slug(method.name)}", method.name, alt)


def ood_histograms(results: Results, looks: Looks) -> list[Figure]:
    """Entropy on the test set and on each OOD set, a figure per method (its first seed)."""
    figures = []
    for method in results.methods:
        curves = method.curves("histogram")
        if curves:
            figures.append(_histogram(method.name, looks[method.name], curves[0]))
    return figures


def _histogram(method: str, look: Look, curve: dict[str, Any]) -> Figure:
    figure, axes = blank()
    edges = np.array(curve["edges"])
    shares = dict(curve["share"])
    axes.stairs(
        shares["test"],
        edges,
        fill=True,
        color=SOFT,
        alpha=0.35,
        lw=0,
        label="test",
    )
    sets = [name for name in shares if name != "test"]
    for place, name in enumerate(sets):
        dash = DASHES[place % len(DASHES)]
        axes.stairs(shares[name], edges, color=look.colour, ls=dash, lw=1.5, label=label(name))
    axes.set(xlabel="Predictive entropy, nats", ylabel="Share of samples", xlim=(0, edges[-1]))
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 12)  # room for the legend
    axes.legend(loc="upper right")
    axes.set_title(label(method), loc="left")
    centres = (edges[:-1] + edges[1:]) / 2
    told = []
    for name, share in shares.items():
        mean = float(np.dot(share, centres))
        told.append(f"{name} {mean:.2f}")
    alt = f"Histograms of predictive entropy of {method}. Mean entropy in nats: {', '.join(told)}."
    return finish(figure, f"entropy-{slug(method)}", method, alt)


def disagreement(results: Results, looks: Looks) -> list[Figure]:
    """Pairwise disagreement over error, a matrix per method, mean over seeds, all on one colour scale."""
    matrices = {}
    for method in results.methods:
        matrix = _mean_matrix(method)
        if matrix is not None:
            matrices[method.name] = matrix
    top = 1.0
    for matrix in matrices.values():
        defined = matrix[np.isfinite(matrix)]
        top = max(top, defined.max(initial=top))
    return [_matrix(name, matrix, top) for name, matrix in matrices.items()]


def _mean_matrix(method: MethodRuns) -> np.ndarray | None:
    arrays = []
    for run in method.runs:
        found = run.evaluation.scores["diversity"].get("normalised_disagreement_matrix")
        if found is not None:
            arrays.append(np.array(found, dtype=float))
    return np.mean(arrays, axis=0) if arrays else None


def _matrix(name: str, matrix: np.ndarray, top: float) -> Figure:
    figure, axes = blank((SIZE[0], 2.9))
    members = len(matrix)
    on_diagonal = np.eye(members, dtype=bool)
    masked = np.ma.masked_invalid(np.where(on_diagonal, np.nan, matrix))
    mesh = axes.pcolormesh(masked, cmap="cividis", vmin=0, vmax=top, edgecolors="none", rasterized=False)
    if members <= MOST_WRITTEN:
        _write_numbers(axes, masked, top)
    ticks = np.arange(members) + 0.5
    axes.set(xticks=ticks, yticks=ticks, aspect="equal", xlabel="Member", ylabel="Member (its error divides)")
    axes.set_xticklabels(range(members))
    axes.set_yticklabels(range(members))
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _colour_bar(figure, axes, mesh, shrink=0.8)
    axes.set_title(label(name), loc="left")
    alt = (
        f"Disagreement of members of {name} over a member's error: pairs between {float(masked.min()):.2f} and "
        f"{float(masked.max()):.2f}, mean {float(masked.mean()):.2f}."
    )
    return finish(figure, f"disagreement-{slug(name)}", name, alt)


MOST_NAMED = 16
"""Classes whose names stand beside a matrix; of more, the numbers do."""


def confusions(results: Results) -> list[Figure]:
    """Which classes are taken for which, a matrix per method, as shares of the class over all seeds."""
    found = []
    for method in results.methods:
        stored = [run.evaluation.scores.get("confusion") for run in method.runs]
        counts = [np.array(matrix, dtype=float) for matrix in stored if matrix is not None]
        if counts:
            found.append(_confusion(method.name, np.sum(counts, axis=0), class_names(method)))
    return found


def _confusion(method: str, counts: np.ndarray, names: Sequence[str]) -> Figure:
    classes = len(names)
    samples = counts.sum(1, keepdims=True)
    shares = np.divide(100 * counts, samples, out=np.zeros_like(counts), where=samples > 0)
    wrong = np.where(np.eye(classes, dtype=bool), 0.0, shares)
    top = max(1.0, float(wrong.max()))
    figure, axes = blank((SIZE[0], SIZE[0]))
    # The colours show mistakes alone: beside shares of 90 % on the diagonal nobody would see them.
    shown = np.ma.masked_array(shares, np.eye(classes, dtype=bool))
    mesh = axes.pcolormesh(shown, cmap="cividis", vmin=0, vmax=top, edgecolors="none", rasterized=False)
    if classes <= MOST_WRITTEN:
        _write_shares(axes, shares, top)
    ticks = np.arange(classes) + 0.5
    axes.set(xticks=ticks, yticks=ticks, aspect="equal", xlabel="Answer", ylabel="Class")
    words = (
        [label(name)[:12] for name in names] if classes <= MOST_NAMED else [str(k) for k in range(classes)]
    )
    axes.set_xticklabels(words, rotation=90, size=6)
    axes.set_yticklabels(words, size=6)
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _colour_bar(figure, axes, mesh, shrink=0.7, label="% of the class")
    axes.set_title(label(method), loc="left")
    row, column = divmod(int(wrong.argmax()), classes)
    alt = (
        f"Confusion matrix of {method}: most often, {names[row]} is taken for {names[column]}, "
        f"{wrong[row, column]:.1f} % of the class."
    )
    return finish(figure, f"confusion-{slug(method)}", f"{method}: confusion", alt)


def _write_shares(axes: Any, shares: np.ndarray, top: float) -> None:
    """Each share in its square; those on the diagonal, which has no colour, in the page's ink."""
    for (row, column), share in np.ndenumerate(shares):
        if share < 0.05:
            continue
        colour = "#ffffff" if share < 0.55 * top else "#000000"
        axes.text(
            column + 0.5,
            row + 0.5,
            f"{share:.0f}" if share >= 9.95 else f"{share:.1f}",
            ha="center",
            va="center",
            color=INK if row == column else colour,
            size=5.5,
        )


def _write_numbers(axes: Any, masked: np.ma.MaskedArray, top: float) -> None:
    """Each defined value in its square, white on dark and black on light."""
    for (row, column), missing in np.ndenumerate(np.ma.getmaskarray(masked)):
        if missing:
            continue
        value = float(masked[row, column])
        colour = "#ffffff" if value < 0.55 * top else "#000000"
        axes.text(
            column + 0.5,
            row + 0.5,
            f"{value:.2f}",
            ha="center",
            va="center",
            color=colour,
            size=7,
        )


def planes(results: Results, looks: Looks) -> list[Figure]:
    """Accuracy and loss on the plane through three members, a figure each, where a method's runs have it."""
    figures = []
    for method in results.methods:
        found = [run.landscape["plane"] for run in method.runs if "plane" in run.landscape]
        if not found:
            continue
        for score in MAPS:
            figure, axes = blank((SIZE[0], 2.8))
            told = _map(figure, axes, found[0], score)
            axes.set_title(label(method.name), loc="left")
            alt = f"{told} on the plane through three members of {method.name}."
            title = f"{method.name}: plane through three members"
            figures.append(finish(figure, f"plane-{score}-{slug(method.name)}", title, alt))
    return figures


def plane(name: str, found: dict[str, Any]) -> Figure:
    """What `covey.scores.landscape.plane` found, as two maps side by side with the members' places marked."""
    with styled():
        figure, axes = blank((2 * SIZE[0], 2.8))
        axes.remove()
        left, right = figure.subplots(1, 2)
        accuracy = _map(figure, left, found, "accuracy")
        loss = _map(figure, right, found, "loss")
        left.set_title(label(name), loc="left")
        alt = f"{accuracy}, and {loss}, on the plane through three members of {name}."
        return finish(figure, f"plane-{slug(name)}", f"{name}: plane through three members", alt)


def _map(figure: Any, axes: Any, found: dict[str, Any], score: str) -> str:
    """Draw one score on the plane, and tell its range."""
    ticker = load("matplotlib.ticker")

    title, colours = MAPS[score]
    values = np.array(found[score])
    if score == "accuracy":
        values = 100 * values
    told = f"{title} from {values.min():.3g} to {values.max():.3g}"
    if score == "loss":  # far from the members it explodes; what matters happens near the lowest
        values = np.minimum(values, 5 * np.median(values))
    low = values.min()
    high = max(values.max(), low + 1e-3)
    levels = np.linspace(low, high, 13)
    mesh = axes.contourf(found["u"], found["v"], values, levels=levels, cmap=colours)
    _mark_members(axes, found["corners"])
    axes.grid(False)
    axes.set(xlabel="Distance along members 0 and 1", ylabel="Distance towards member 2")
    _colour_bar(figure, axes, mesh, label=title, ticks=ticker.MaxNLocator(5))
    return told


def _mark_members(axes: Any, corners: list[tuple[float, float]]) -> None:
    box = {"boxstyle": "round,pad=0.15", "fc": "#000000", "ec": "none", "alpha": 0.6}
    for member, (x, y) in enumerate(corners):
        axes.plot(x, y, marker="o", color="#ffffff", mec="#000000", ms=5)
        axes.annotate(
            str(member),
            (x, y),
            xytext=(5, 5),
            textcoords="offset points",
            color="#ffffff",
            bbox=box,
        )


def _colour_bar(figure: Any, axes: Any, mesh: Any, **options: Any) -> None:
    bar = figure.colorbar(mesh, ax=axes, **options)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=SOFT, labelcolor=INK, labelsize=7)
