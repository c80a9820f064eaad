"""How figures look: one colour, marker and dash for each method, and SVG that follows the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

INK, SOFT, GRID, PAPER = "#1d2026", "#5f6670", "#dde0e5", "#fefefe"
"""Text, secondary text, lines and background. The page maps them to its own, light or dark."""

# Okabe and Ito's palette for all kinds of colour vision, without its yellow and black, which vanish on one
# of the two backgrounds. The baseline is grey, so that colour means "an ensemble".
BASELINE = "#7d838c"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (5, 1.5, 1.5, 1.5)),
    (0, (8, 2)),
    (0, (3, 3)),
)

Looks = dict[str, "Look"]

SIZE = (3.4, 2.55)
"""Inches: the width of a column in a two-column paper."""


@dataclass(frozen=True)
class Look:
    """What tells one method from the others in every figure."""

    colour: str
    marker: str
    dash: Any


@dataclass(frozen=True)
class Figure:
    """A finished figure.

    Args:
        name: of its files.
        title: a few words.
        alt: what it shows, in words, for readers who cannot see it.
        svg: for the page, which colours it.
        file: the same as a file of its own.
        canvas: matplotlib's figure.
    """

    name: str
    title: str
    alt: str
    svg: str
    file: str
    canvas: Any

    def pdf(self) -> bytes:
        """The figure as PDF, which takes as long as drawing it did."""
        self.canvas.set_layout_engine("none")  # keep the layout that the SVG has
        paper = io.BytesIO()
        with styled():
            self.canvas.savefig(paper, format="pdf", transparent=True, metadata={"CreationDate": None})
        return paper.getvalue()


def looks(names: Sequence[str], baseline: str) -> dict[str, Look]:
    """The look of each method: grey for the baseline, then colours in order, each with its own marker."""
    others = [name for name in names if name != baseline]
    table = {baseline: Look(BASELINE, MARKERS[0], DASHES[0])}
    for i, name in enumerate(others):
        table[name] = Look(
            COLOURS[i % len(COLOURS)], MARKERS[(i + 1) % len(MARKERS)], DASHES[(i + 1) % len(DASHES)]
        )
    return table


@contextmanager
def styled() -> Iterator[None]:
    """Draw figures inside this: it sets matplotlib's style and puts the user's own back."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def blank(size: tuple[float, float] = SIZE) -> tuple[Any, Any]:
    """A matplotlib figure and its axes, without pyplot's global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def finish(figure: Any, name: str, title: str, alt: str) -> Figure:
    """Draw the figure to SVG."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    plain = drawn.getvalue()
    return Figure(name, title, alt, _inline(plain, name, alt), plain, figure)


def _inline(svg: str, name: str, alt: str) -> str:
    """The <svg> element alone, labelled, in the page's colours, with ids that no other figure has."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))

    def rename(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    svg = re.sub(r' id="([^"]*)"', rename, svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    for colour, variable in ((INK, "ink"), (SOFT, "soft"), (GRID, "line"), (PAPER, "paper")):
        svg = svg.replace(colour, f"var(--{variable})")
    label = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', svg, count=1)


RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "covey",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": True,
    "legend.framealpha": 0.75,
    "legend.facecolor": PAPER,
    "legend.edgecolor": "none",
    "legend.labelspacing": 0.35,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "errorbar.capsize": 2,
}


def slug(text: str) -> str:
    """A name for files and ids; other characters become their code, so that two names never become one."""
    return "".join(
        c if c.isalnum() and c.isascii() else "-" if c == " " else f"_{ord(c):x}" for c in text.lower()
    )
