"""Results of several methods and seeds as one page that opens with the answer, and its Markdown twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from covey.errors import StoreError
from covey.files import write_bytes

from .results import Run
from .selection import draw_selection

__all__ = ["Run", "draw_selection", "write"]


def write(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    title: str = "Comparison of ensembles",
    baseline: str | None = None,
    pdf: bool = False,
) -> Path:
    """Write report.html, report.md and figures/ to a folder, and return the page's path.

    Args:
        runs: evaluated runs of one or more methods on one test set.
        folder: made if it is not there.
        title: of the page.
        baseline: the method that the others are compared with; by default the first with one member.
        pdf: whether to write the figures as PDF too, for papers, which takes longer than all the rest; SVG is always
            written.
    """
    from .answers import answers
    from .markdown import markdown
    from .page import html
    from .results import gather
    from .sections import sections
    from .style import looks

    results = gather(runs, baseline)
    names = [method.name for method in results.methods]
    look = looks(names, results.baseline.name)
    found = answers(results)
    parts = sections(results, look)
    folder = Path(folder)
    if (folder / "figures").is_symlink():
        raise StoreError(
            f"{folder / 'figures'} is a link to another place; remove it, and write the report again."
        )
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for part in parts:
        for figure in part.figures:
            file = folder / "figures" / figure.name
            _write(file.with_suffix(".svg"), figure.file)
            if pdf:
                write_bytes(file.with_suffix(".pdf"), figure.pdf())
    page = folder / "report.html"
    _write(page, html(title, results, look, found, parts))
    _write(folder / "report.md", markdown(title, results, found, parts))
    return page


def _write(file: Path, text: str) -> None:
    """Write with the same line ends everywhere; half characters, which JSON may hold, become question marks.

    What has the file's name is replaced, not written to: in a stranger's folder it may be a link to a file of yours.
    """
    write_bytes(file, text.encode("utf-8", errors="replace"))
