"""The report as one HTML page that needs nothing else: styles, script and figures are inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from .answers import Answer
from .results import MethodRuns, Results
from .style import Figure, Looks
from .table import COSTS, SCORES, Column, best, shown, times, verdict, written
from .text import Section, Table, settings_text

MARKS = {
    "better": "better",
    "worse": "worse",
    "within noise": "within noise",
    "not tested": "",
    "": "",
}


def html(
    title: str, results: Results, looks: Looks, found: Sequence[Answer], sections: Sequence[Section]
) -> str:
    """The whole page."""
    parts = [
        _section("answer", "The answer", _answers(found, looks) + _notes(results)),
        _section("table", "All scores", _main_table(results, looks) + _cost_table(results, looks)),
        *(_section(s.anchor, s.title, _body(s)) for s in sections),
        _section("repeat", "Settings and versions", _settings(results)),
    ]
    links = [("answer", "The answer"), ("table", "All scores"), *((s.anchor, s.title) for s in sections)]
    links.append(("repeat", "Settings and versions"))
    nav = "".join(f'<li><a href="#{anchor}">{escape(text)}</a></li>' for anchor, text in links)
    folder = files("covey.report")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the answer</a>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{escape(_lead(results))}</p>
<nav aria-label="Contents"><ul>{nav}</ul></nav>
</header>
<main id="main">
{"".join(parts)}
</main>
<footer>Written by covey. Figures are also in the folder <code>figures</code>.</footer>
<div id="status" class="unseen" role="status" aria-live="polite"></div>
<script>{script}</script>
</body>
</html>
"""


def _lead(results: Results) -> str:
    about = results.baseline.runs[0].evaluation.about
    seeds = sorted({run.seed for method in results.methods for run in method.runs})
    text = f"{len(results.methods)} methods, {len(seeds)} seed{'s' if len(seeds) != 1 else ''}, "
    text += f"{about['samples']:,} test samples".replace(",", " ")
    if about["ood"]:
        text += "; strange inputs from " + ", ".join(about["ood"])
    return f"{text}. Compared with {results.baseline.name}."


def _section(anchor: str, title: str, body: str) -> str:
    head = f'<h2 id="{anchor}-title">{escape(title)}</h2>'
    return f'<section id="{anchor}" aria-labelledby="{anchor}-title">{head}{body}</section>\n'


def _swatch(looks: Looks, name: str) -> str:
    return f'<span class="swatch" style="background:{looks[name].colour}" aria-hidden="true"></span>'


def _answers(found: Sequence[Answer], looks: Looks) -> str:
    cards = "".join(
        f'<li><p class="purpose">{escape(a.purpose)}</p>'
        f'<p class="method">{_swatch(looks, a.method)}{escape(a.method)}</p>'
        f"<p>{escape(a.evidence)}.</p><p><strong>Cost.</strong> {escape(a.cost)}</p>"
        f"<p><strong>How sure.</strong> {escape(a.sure)}</p></li>"
        for a in found
    )
    return f'<ul class="answers">{cards}</ul>'


def _notes(results: Results) -> str:
    notes: dict[str, list[str]] = {}
    for method in results.methods:
        for note in method.runs[0].evaluation.notes:
            notes.setdefault(note, []).append(method.name)
    if not notes:
        return ""
    items = "".join(
        f"<li>{escape(note)} ({escape(', '.join(names))})</li>"
        if len(names) < len(results.methods)
        else f"<li>{escape(note)}</li>"
        for note, names in notes.items()
    )
    return f'<ul class="note">{items}</ul>'


def _main_table(results: Results, looks: Looks) -> str:
    columns = shown(results, SCORES)
    caption = (
        f"Mean ± standard deviation over seeds; best mean in bold. Below each: compared with "
        f"{results.baseline.name} by a paired t-test over seeds at 5 %, not corrected for their number."
    )
    rows = []
    for method in results.methods:
        cells = "".join(_cell(results, method, column) for column in columns)
        rows.append(f"<tr>{_row_head(looks, method)}{cells}</tr>")
    return _sortable("Scores", caption, columns, rows) + _meanings(columns)


def _cell(results: Results, method: MethodRuns, column: Column) -> str:
    value = method.summary(column.key)
    if value is None:
        return '<td data-value="">\u2013</td>'
    top = best(results, column)
    mark = verdict(results, method, results.baseline, column)
    text = MARKS[mark]
    shown_mark = f'<span class="mark {mark.replace(" ", "-")}">{text}</span>' if text else ""
    kind = ' class="best"' if top is not None and top.name == method.name else ""
    return f'<td{kind} data-value="{value.mean!r}">{escape(written(column, value))}{shown_mark}</td>'


def _cost_table(results: Results, looks: Looks) -> str:
    columns = shown(results, COSTS)
    if not columns:
        return ""
    base = results.baseline.name
    caption = f"Cost, and below each its ratio to {base} and (deep) to a deep ensemble of as many members."
    rows = []
    for method in results.methods:
        cells = [f'<td data-value="{method.members}">{method.members}</td>']
        for column in columns:
            value = method.summary(column.key)
            if value is None:
                cells.append('<td data-value="">\u2013</td>')
                continue
            ratio, deep = results.ratio(method, column.key), results.deep_ratio(method, column.key)
            words = times(ratio) if ratio is not None else ""
            words += f", deep {times(deep)}" if deep is not None else ""
            text = f"{written(column, value)} {column.unit}".strip()
            cells.append(
                f'<td data-value="{value.mean!r}">{escape(text)}<span class="mark">{words}</span></td>'
            )
        rows.append(f"<tr>{_row_head(looks, method)}{''.join(cells)}</tr>")
    members = Column("members", "Members", "lower", "networks in the ensemble")
    return _sortable("Cost", caption, [members, *columns], rows) + _meanings(columns)


def _row_head(looks: Looks, method: MethodRuns) -> str:
    name = escape(method.name)
    return f'<th scope="row" data-value="{name}">{_swatch(looks, method.name)} {name}</th>'


def _sortable(label: str, caption: str, columns: Sequence[Column], rows: Sequence[str]) -> str:
    heads = '<th scope="col"><button type="button">Method</button></th>'
    for column in columns:
        first = "descending" if column.better == "higher" else "ascending"
        unit = f", {column.unit}" if column.unit == "%" else ""
        heads += (
            f'<th scope="col" data-first="{first}" title="{escape(column.meaning)}">'
            f'<button type="button">{escape(column.title)}{unit}</button></th>'
        )
    return (
        f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0">'
        f'<table class="sortable"><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _meanings(columns: Sequence[Column]) -> str:
    items = "".join(
        f"<li><strong>{escape(c.title)}</strong>: {escape(c.meaning)}; {c.better} is better</li>"
        for c in columns
    )
    return f"<details><summary>What the columns mean</summary><ul>{items}</ul></details>"


def _body(section: Section) -> str:
    figures = "".join(_figure(figure) for figure in section.figures)
    grid = f'<div class="figures">{figures}</div>' if figures else ""
    pictures = "".join(_pictures(title, examples) for title, examples in section.pictures)
    return f"<p>{escape(section.words)}</p>{grid}{pictures}{''.join(_plain(t) for t in section.tables)}"


def _figure(figure: Figure) -> str:
    return f'<figure>{figure.svg}<figcaption class="unseen">{escape(figure.title)}</figcaption></figure>'


def _plain(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in table.heads)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(c)}</td>" for c in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(table.caption)}" tabindex="0"><table>'
        f"<caption><span>{escape(table.caption)}</span></caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _pictures(title: str, examples: Sequence[dict]) -> str:
    items = []
    for e in examples:
        wrong = e["label_name"] != e["predicted_name"]
        said = f'<span class="wrong">says {escape(e["predicted_name"])}</span>' if wrong else "correct"
        alt = f"Test sample {e['index']}: {e['label_name']}, predicted {e['predicted_name']}"
        items.append(
            f'<li><img src="{e["picture"]}" alt="{escape(alt)}">'
            f"{escape(e['label_name'])}, {said}<br>{100 * e['confidence']:.1f} % sure</li>"
        )
    return f'<h3>{escape(title)}</h3><ul class="pictures">{"".join(items)}</ul>'


def _settings(results: Results) -> str:
    blocks = []
    for method in results.methods:
        text = json.dumps(settings_text(method), indent=2, ensure_ascii=False, default=str)
        body = f'<pre tabindex="0">{escape(text)}</pre>'
        blocks.append(f"<details><summary>{escape(method.name)}</summary>{body}</details>")
    return "<p>What is needed to repeat each run.</p>" + "".join(blocks)
