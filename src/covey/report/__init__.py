"""Results of several methods and seeds as one page that opens with the answer, and its Markdown twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .results import Run

__all__ = ["Run", "write"]


def write(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    title: str = "Comparison of ensembles",
    baseline: str | None = None,
    pdf: bool = True,
) -> Path:
    """Write report.html, report.md and figures/ to a folder, and return the page's path.

    Args:
        runs: evaluated runs of one or more methods on one test set.
        folder: made if it is not there.
        title: of the page.
        baseline: the method that the others are compared with; by default the first with one member.
        pdf: whether to write the figures as PDF too, for papers; SVG is always written.
    """
    from .answers import answers
    from .markdown import markdown
    from .page import html
    from .results import gather
    from .style import looks
    from .text import sections

    results = gather(runs, baseline)
    look = looks([method.name for method in results.methods], results.baseline.name)
    found, parts = answers(results), sections(results, look)
    folder = Path(folder)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for part in parts:
        for figure in part.figures:
            file = folder / "figures" / figure.name
            file.with_suffix(".svg").write_text(figure.file, encoding="utf-8")
            if pdf:
                file.with_suffix(".pdf").write_bytes(figure.pdf())
    page = folder / "report.html"
    page.write_text(html(title, results, look, found, parts), encoding="utf-8")
    (folder / "report.md").write_text(markdown(title, results, found, parts), encoding="utf-8")
    return page
