"""The report as one HTML page that needs nothing else: styles, script and figures are inside.

Texts come from files and users, so the template engine escapes every one of them. Should one slip through, the
page's security policy still allows no script but covey's own, no style but covey's own, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .answers import Answer
from .grids import grids
from .results import Results
from .sections import Section, lead, notes, settings_text
from .style import Looks
from .svg import Drawings

FIRST = (("answer", "The answer"), ("table", "All scores"))
LAST = ("repeat", "Settings and versions")
"""Anchors and titles of the parts that every page has, around the sections."""


def html(
    title: str, results: Results, looks: Looks, found: Sequence[Answer], sections: Sequence[Section]
) -> str:
    """The whole page."""
    drawings, drawing_rules = _drawings(sections)
    swatches, swatch_rules = _swatches(looks)
    style = "\n".join((_own_file("page.css"), swatch_rules, drawing_rules))
    script = _own_file("page.js")
    template = _environment().get_template("page.html.jinja")
    return template.render(
        title=title,
        lead=lead(results),
        contents=_contents(sections),
        answers=found,
        notes=notes(results),
        grids=grids(results),
        sections=sections,
        settings=[(method.name, settings_text(method)) for method in results.methods],
        swatches=swatches,
        policy=policy(style, script),
        # Only what covey made itself is markup: the drawings, its style sheet and its script.
        drawings=drawings,
        style=Markup(style),
        script=Markup(script),
    )


def policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: this style sheet, this script and pictures inside the page, nothing else."""
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_sha256(style)}'",
            f"script-src '{_sha256(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _sha256(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("covey.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _own_file(name: str) -> str:
    return (files("covey.report") / name).read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> list[tuple[str, str]]:
    middle = [(section.anchor, section.title) for section in sections]
    return [*FIRST, *middle, LAST]


def _drawings(sections: Sequence[Section]) -> tuple[dict[str, Markup], str]:
    """Each figure's drawing by its name, and the style rules of all."""
    drawn = Drawings()
    by_name: dict[str, Markup] = {}
    for section in sections:
        for figure in section.figures:
            by_name[figure.name] = Markup(drawn.inline(figure))
    return by_name, drawn.css()


def _swatches(looks: Looks) -> tuple[dict[str, str], str]:
    """The class of each method's patch of colour, and their style rules."""
    classes: dict[str, str] = {}
    rules = []
    for place, (method, look) in enumerate(looks.items()):
        classes[method] = f"look-{place}"
        rules.append(f".look-{place} {{ background: {look.colour}; }}")
    return classes, "\n".join(rules)
