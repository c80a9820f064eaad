"""How figures look: one colour, marker and dash for each method, and matplotlib's settings."""

from __future__ import annotations

import hashlib
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from covey.extras import load

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

BROAD = 1.5
"""So many times as wide as `SIZE`, a figure takes two columns of the page."""

LABEL_WIDTH, LABEL_LINES = 36, 2
"""Characters a line, and lines, of a name in a figure: what fits beside the axes of a column."""

NAME_LENGTH = 80


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
        file: the drawing as an SVG file of its own.
        canvas: matplotlib's figure.
    """

    name: str
    title: str
    alt: str
    file: str
    canvas: Any

    @property
    def broad(self) -> bool:
        """Whether it was drawn for two columns of the page."""
        return bool(self.canvas.get_figwidth() > BROAD * SIZE[0])

    def pdf(self) -> bytes:
        """The figure as PDF, which takes as long as drawing it did."""
        self.canvas.set_layout_engine("none")  # keep the layout that the SVG has
        paper = io.BytesIO()
        with styled():
            self.canvas.savefig(paper, format="pdf", transparent=True, metadata={"CreationDate": None})
        return paper.getvalue()


def looks(names: Sequence[str], baseline: str) -> Looks:
    """The look of each method: grey for the baseline, then colours in order, each with its own marker."""
    table = {baseline: Look(BASELINE, MARKERS[0], DASHES[0])}
    others = [name for name in names if name != baseline]
    for place, name in enumerate(others):
        colour = COLOURS[place % len(COLOURS)]
        marker = MARKERS[(place + 1) % len(MARKERS)]
        dash = DASHES[(place + 1) % len(DASHES)]
        table[name] = Look(colour, marker, dash)
    return table


@contextmanager
def styled() -> Iterator[None]:
    """Draw figures inside this: it sets matplotlib's style and puts the user's own back."""
    mpl = load("matplotlib")

    with mpl.rc_context(RC):
        yield


def blank(size: tuple[float, float] = SIZE) -> tuple[Any, Any]:
    """A matplotlib figure and its axes, without pyplot's global state."""
    backend = load("matplotlib.backends.backend_svg")
    figures = load("matplotlib.figure")

    figure = figures.Figure(figsize=size, layout="constrained")
    backend.FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def label(text: str) -> str:
    """A name as matplotlib shall draw it: short lines, and no character that it takes for a command."""
    visible = "".join(c if c.isprintable() else " " for c in text)
    lines = textwrap.wrap(visible, LABEL_WIDTH, max_lines=LABEL_LINES, placeholder="\u2026")
    drawn = "\n".join(lines)
    # Dollars would open a formula, and legends leave out what begins with an underscore.
    drawn = drawn.replace("$", r"\$")
    return "\u200b" + drawn if drawn.startswith("_") else drawn


def finish(figure: Any, name: str, title: str, alt: str) -> Figure:
    """Draw the figure to SVG."""
    drawn = io.StringIO()
    with warnings.catch_warnings():
        # The reader's own fonts draw the text of an SVG, so what DejaVu lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return Figure(name, title, alt, drawn.getvalue(), figure)


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
    """A name for files: lower case, with other characters as their code, and not longer than a file's name may be.

    >>> slug("Deep ensemble"), slug("a/b")
    ('deep-ensemble', 'a_2fb')
    """
    letters = []
    for letter in text.lower():
        if letter == " ":
            letters.append("-")
        elif letter.isascii() and letter.isalnum():
            letters.append(letter)
        else:
            letters.append(f"_{ord(letter):x}")
    name = "".join(letters)
    if len(name) <= NAME_LENGTH:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"{name[:NAME_LENGTH]}-{digest[:8]}"
