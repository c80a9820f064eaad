"""A page as its elements, for tests."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

Attributes = dict[str, str | None]


class Page(HTMLParser):
    """Every element with its attributes, and a check that they close in order."""

    VOID = frozenset(("meta", "link", "img", "br"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Attributes]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def of(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> str:
        return "".join(self.texts.get(tag, []))

    @property
    def policy(self) -> str:
        """The Content-Security-Policy."""
        for attributes in self.of("meta"):
            if attributes.get("http-equiv") == "Content-Security-Policy":
                return attributes["content"] or ""
        return ""


def sha256(text: str) -> str:
    """A text's hash as a policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
