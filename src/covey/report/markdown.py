"""The report's Markdown twin: the same words and numbers, figures linked from the folder beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .answers import Answer
from .evidence import Table
from .grids import Cell, Grid, grids
from .pictures import Pictures
from .results import Results
from .sections import Section, lead, notes, settings_text

COMMANDS = re.compile(r"[\\`*_\[\]|~$#]")
"""What Markdown takes for a command anywhere in a line; a backslash makes it a character."""

TAGS = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
ADDRESSES = (("://", ":&#47;&#47;"), ("www.", "www&#46;"))
"""What some viewers make a link of without being asked."""

LIST_MARK = re.compile(r"(?:[-+]|\d+[.)])(?=\s|$)|---")
"""What opens a list or draws a line, but only at the start of a line."""


def escape(text: str) -> str:
    r"""Any text as one line of Markdown that shows it as it is.

    >>> print(escape("a|b [c](d) <i>"))
    a\|b \[c\](d) &lt;i&gt;
    """
    line = " ".join(text.split())
    for character, entity in TAGS:
        line = line.replace(character, entity)
    line = COMMANDS.sub(r"\\\g<0>", line)
    for characters, entities in ADDRESSES:
        line = line.replace(characters, entities)
    mark = LIST_MARK.match(line)
    if mark is None:
        return line
    last = mark.end() - 1
    return f"{line[:last]}\\{line[last:]}"


def markdown(title: str, results: Results, found: Sequence[Answer], sections: Sequence[Section]) -> str:
    """The whole text."""
    parts = [f"# {escape(title)}", escape(lead(results)), "## The answer"]
    for answer in found:
        parts.append(_answer(answer))
    parts += _notes(notes(results))
    for grid in grids(results, marks="in brackets"):
        parts.append(f"## {grid.title}")
        parts.append(_grid(grid))
    for section in sections:
        parts += _section(section)
    parts.append("## Settings and versions")
    for method in results.methods:
        parts.append(f"### {escape(method.name)}")
        parts.append(_code(settings_text(method)))
    return "\n\n".join(parts) + "\n"


def _answer(answer: Answer) -> str:
    choice = f"{answer.purpose}: {answer.method}."
    rest = f"{answer.evidence}. Cost: {answer.cost} How sure: {answer.sure}"
    return f"- **{escape(choice)}** {escape(rest)}"


def _notes(texts: Sequence[str]) -> list[str]:
    return [f"- {escape(text)}" for text in texts]


def _section(section: Section) -> list[str]:
    parts = [f"## {section.title}", section.words]
    parts += _notes(section.notes)
    for figure in section.figures:
        parts.append(f"![{escape(figure.alt)}](figures/{figure.name}.svg)")
    for table in section.tables:
        parts.append(_table(table))
    for group in section.pictures:
        parts.append(_pictures(group))
    return parts


def _grid(grid: Grid) -> str:
    """A comparison: best means in bold, marks in brackets."""
    heads = ["Method"]
    for column in grid.columns:
        heads.append(escape(column.head))
    rows = []
    for row in grid.rows:
        cells = [_cell(cell) for cell in row.cells]
        rows.append([escape(row.method), *cells])
    return _lines(grid.caption, heads, rows)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = f"**{text}**"
    if cell.mark:
        text = f"{text} ({escape(cell.mark)})"
    return text


def _table(table: Table) -> str:
    heads = [escape(head) for head in table.heads]
    rows = []
    for row in table.rows:
        rows.append([escape(cell) for cell in row])
    return _lines(table.caption, heads, rows)


def _lines(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already, below its caption."""
    rule = ["---"] * len(heads)
    lines = [escape(caption).rstrip(".") + ":", ""]
    for cells in (heads, rule, *rows):
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _pictures(group: Pictures) -> str:
    told = []
    for example in group.examples:
        if example.told:
            told.append(f"image {example.index} ({example.told})")
            continue
        known = f"{example.label}, " if example.label else ""
        told.append(f"sample {example.index} ({known}predicted {example.predicted}, {example.percent} %)")
    return escape(f"{group.title}: {', '.join(told)}.")


def _code(text: str) -> str:
    """A block of JSON, between fences longer than any that the text holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}json\n{text}\n{fence}"
