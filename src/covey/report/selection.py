"""The front of members against score: what each further member of a selection adds."""

from __future__ import annotations

from pathlib import Path

from covey.deploy import Selection
from covey.errors import OptionError
from covey.files import write_text

from .style import SOFT, Figure, blank, finish, styled


def draw_selection(selection: Selection, path: str | Path) -> Path:
    """Draw a selection's score against its number of members, with all members as a line, as an SVG file.

    Args:
        selection: what `covey.select_members` found.
        path: of the file; ends in .svg.
    """
    path = Path(path)
    if path.suffix != ".svg":
        raise OptionError(f"the drawing is an SVG file, so its name ends in .svg; got {path.name!r}.")
    write_text(path, figure_of(selection).file)
    return path


def figure_of(selection: Selection) -> Figure:
    """The drawing itself."""
    counts = range(1, len(selection.scores) + 1)
    with styled():
        figure, axes = blank()
        axes.plot(counts, selection.scores, marker="o", label="chosen one after another")
        for count, score, member in zip(counts, selection.scores, selection.order, strict=True):
            axes.annotate(str(member), (count, score), xytext=(0, 6), textcoords="offset points", ha="center")
        kept = len(selection.members)
        axes.plot(
            [kept], [selection.scores[kept - 1]], marker="o", markersize=11, fillstyle="none", color=SOFT
        )
        axes.axhline(selection.everyone, color=SOFT, linestyle="--", label="all members")
        axes.set_xticks(list(counts))
        axes.set_xlabel("members")
        axes.set_ylabel(selection.score)
        axes.legend()
        alt = (
            f"{selection.score} of 1 to {len(selection.scores)} members chosen greedily, ending at "
            f"{selection.scores[-1]:.4g}; all members have {selection.everyone:.4g}."
        )
        return finish(figure, "selection", "Score against number of members", alt)
