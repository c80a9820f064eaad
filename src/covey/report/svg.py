"""Drawings as parts of the page: in its colours, with ids of their own, and without inline styles.

The page's security policy allows one style sheet, known by its hash, and no style attribute. So the styles that
matplotlib writes at each element become classes, and their rules join the page's style sheet.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from .style import GRID, INK, PAPER, SOFT, Figure

PAGE_COLOURS = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    GRID: "var(--line)",
    PAPER: "var(--paper)",
}
ELEMENTS = frozenset(("svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "image"))
"""What matplotlib draws with. Anything else has no place in a figure and is left out."""

HARMLESS_STYLE = re.compile(r"[\w\s:;.,#%()'+-]*")
PNG = "data:image/png;base64,"


class Drawings:
    """Figures of one page: `inline` gives each as an element, `css` the rules that all of them need."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._count = 0

    def inline(self, figure: Figure) -> str:
        """The <svg> element of a figure, labelled for those who cannot see it."""
        prefix = f"d{self._count}-"
        self._count += 1
        root = ElementTree.fromstring(figure.file)
        _drop_foreign(root)
        used = _used_ids(root)
        for element in root.iter():
            self._clean(element, prefix, used)
        for name in ("width", "height"):
            root.attrib.pop(name, None)
        root.set("role", "img")
        root.set("aria-label", figure.alt)
        return ElementTree.tostring(root, encoding="unicode")

    def css(self) -> str:
        """One rule for each style that the figures use."""
        rules = [f".{name} {{ {style} }}" for style, name in self._classes.items()]
        return "\n".join(rules)

    def _clean(self, element: ElementTree.Element, prefix: str, used: set[str]) -> None:
        """Give an element the names that it has in HTML, ids of this figure, and a class for its style."""
        element.tag = _local(element.tag)
        element.tail = None
        if element.tag not in ("text", "tspan"):
            element.text = None
        given = dict(element.attrib)
        element.attrib.clear()
        for name, value in given.items():
            self._keep(element, _local(name), value, prefix, used)

    def _keep(self, element: ElementTree.Element, name: str, value: str, prefix: str, used: set[str]) -> None:
        if name == "style":
            if HARMLESS_STYLE.fullmatch(value):
                element.set("class", self._class_of(value))
        elif name == "id":
            if value in used:
                element.set("id", prefix + value)
        elif name == "href":
            if value.startswith("#"):
                element.set("href", f"#{prefix}{value[1:]}")
            elif value.startswith(PNG):
                element.set("href", value)
        elif not name.startswith("on"):
            element.set(name, value.replace("url(#", f"url(#{prefix}"))

    def _class_of(self, style: str) -> str:
        for fixed, variable in PAGE_COLOURS.items():
            style = style.replace(fixed, variable)
        return self._classes.setdefault(style, f"s{len(self._classes)}")


def _drop_foreign(parent: ElementTree.Element) -> None:
    for child in list(parent):
        if _local(child.tag) in ELEMENTS:
            _drop_foreign(child)
        else:
            parent.remove(child)


def _used_ids(root: ElementTree.Element) -> set[str]:
    """The ids that something refers to; matplotlib gives one to every group."""
    used = set()
    for element in root.iter():
        for value in element.attrib.values():
            used.update(re.findall(r"url\(#([^)]+)\)", value))
            if value.startswith("#"):
                used.add(value[1:])
    return used


def _local(name: str) -> str:
    """A name without its namespace, which HTML does not write."""
    return name.rpartition("}")[2]
