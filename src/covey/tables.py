"""Small tables for people to read: aligned text for the terminal, HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

Row = Sequence[object]


def text_table(headings: Sequence[str], rows: Iterable[Row], *, right: Collection[str] = ()) -> str:
    """An aligned table of plain text, without a line break at its end.

    Args:
        headings: the name of each column.
        rows: one cell per column; whatever is not a string is written by `str`.
        right: headings of the columns that are aligned on the right, as numbers want to be.

    >>> rows = [("fc.weight", "shared", 1_536), ("fc.bias", "replicated", 12)]
    >>> print(text_table(("tensor", "role", "parameters"), rows, right=["parameters"]))
    tensor     role        parameters
    ---------  ----------  ----------
    fc.weight  shared            1536
    fc.bias    replicated          12
    """
    lines = [list(headings)]
    for row in rows:
        lines.append(_cells(row, len(headings)))
    widths = [0] * len(headings)
    for line in lines:
        for column, cell in enumerate(line):
            widths[column] = max(widths[column], len(cell))
    rule = ["-" * width for width in widths]
    lines.insert(1, rule)
    on_the_right = [heading in right for heading in headings]
    return "\n".join(_aligned(line, widths, on_the_right) for line in lines)


def html_table(
    headings: Sequence[str], rows: Iterable[Row], *, right: Collection[str] = (), caption: str = ""
) -> str:
    """The same table as HTML, for `_repr_html_`. All text is escaped, so cells may hold anything.

    Args:
        headings: the name of each column.
        rows: one cell per column; whatever is not a string is written by `str`.
        right: headings of the columns that are aligned on the right.
        caption: a line above the table.

    >>> print(html_table(("class", "count"), [("<b>", 3)], right=["count"]))
    <table>
    <thead><tr><th style="text-align: left">class</th><th style="text-align: right">count</th></tr></thead>
    <tbody>
    <tr><td style="text-align: left">&lt;b&gt;</td><td style="text-align: right">3</td></tr>
    </tbody>
    </table>
    """
    sides = ["right" if heading in right else "left" for heading in headings]
    lines = ["<table>"]
    if caption:
        lines.append(f"<caption>{html.escape(caption)}</caption>")
    lines.append(f"<thead>{_html_row('th', headings, sides)}</thead>")
    lines.append("<tbody>")
    for row in rows:
        lines.append(_html_row("td", _cells(row, len(headings)), sides))
    lines += ["</tbody>", "</table>"]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """A number for a cell: four decimals where that says something, else four digits; None is a dash.

    >>> number(0.93571), number(12345.678), number(0.0000123), number(0.0), number(None)
    ('0.9357', '1.235e+04', '1.23e-05', '0.0000', '-')
    """
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.4g}"


def counted(count: int, one: str, several: str = "") -> str:
    """How many there are of something, in words.

    >>> counted(1, "member"), counted(4, "member"), counted(10, "class", "classes")
    ('1 member', '4 members', '10 classes')
    """
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {several or one + 's'}"


def _cells(row: Row, columns: int) -> list[str]:
    if len(row) != columns:
        raise ValueError(f"a row of {len(row)} cells in a table of {columns} columns: {row!r}")
    # A line break inside a cell would tear the row apart.
    return [str(cell).replace("\n", " ") for cell in row]


def _aligned(cells: Sequence[str], widths: Sequence[int], on_the_right: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, on_the_right, strict=True):
        padded.append(cell.rjust(width) if right else cell.ljust(width))
    return "  ".join(padded).rstrip()


def _html_row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    parts = []
    for cell, side in zip(cells, sides, strict=True):
        parts.append(f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(parts)}</tr>"
