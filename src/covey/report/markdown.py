"""The report's Markdown twin: the same words and numbers, figures linked from the folder beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .answers import Answer
from .results import Results
from .table import COSTS, SCORES, best, shown, times, verdict, written
from .text import Section, Table, settings_text


def markdown(title: str, results: Results, found: Sequence[Answer], sections: Sequence[Section]) -> str:
    """The whole text."""
    parts = [f"# {title}", "## The answer"]
    parts += [
        f"- **{a.purpose}: {a.method}.** {a.evidence}. Cost: {a.cost} How sure: {a.sure}" for a in found
    ]
    parts += ["## All scores", _scores(results)]
    if shown(results, COSTS):
        parts += ["## Cost", _costs(results)]
    for section in sections:
        parts += [f"## {section.title}", section.words]
        parts += [f"![{_flat(f.alt)}](figures/{f.name}.svg)" for f in section.figures]
        parts += [_table(table) for table in section.tables]
        parts += [_pictures(title, examples) for title, examples in section.pictures]
    parts += ["## Settings and versions"]
    for method in results.methods:
        text = json.dumps(settings_text(method), indent=2, ensure_ascii=False, default=str)
        parts += [f"### {method.name}", f"```json\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def _scores(results: Results) -> str:
    columns = shown(results, SCORES)
    heads = ["Method", *(f"{c.title}, {c.unit}" if c.unit else c.title for c in columns)]
    rows = []
    for method in results.methods:
        row = [method.name]
        for column in columns:
            value, top = method.summary(column.key), best(results, column)
            text = "\u2013" if value is None else written(column, value)
            text = f"**{text}**" if top is not None and top.name == method.name else text
            mark = verdict(results, method, results.baseline, column)
            row.append(f"{text} ({mark})" if mark in ("better", "worse", "within noise") else text)
        rows.append(row)
    caption = f"Mean ± standard deviation; in brackets the paired t-test against {results.baseline.name}"
    return _table(Table(caption, heads, rows))


def _costs(results: Results) -> str:
    columns = shown(results, COSTS)
    rows = []
    for method in results.methods:
        row = [method.name, str(method.members)]
        for column in columns:
            value, ratio = method.summary(column.key), results.ratio(method, column.key)
            text = "\u2013" if value is None else f"{written(column, value)} {column.unit}".strip()
            row.append(f"{text} ({times(ratio)})" if ratio is not None else text)
        rows.append(row)
    caption = f"Cost, and its ratio to {results.baseline.name}"
    return _table(Table(caption, ["Method", "Members", *(c.title for c in columns)], rows))


def _table(table: Table) -> str:
    rows = [table.heads, ["---"] * len(table.heads), *table.rows]
    lines = ["| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"{table.caption}:\n\n" + "\n".join(lines)


def _pictures(title: str, examples: Sequence[dict]) -> str:
    told = ", ".join(
        f"sample {e['index']} ({e['label_name']}, predicted {e['predicted_name']}, "
        f"{100 * e['confidence']:.1f} %)"
        for e in examples
    )
    return f"{title}: {told}."


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("[", "(").replace("]", ")")
