"""Answers as a person reads them: a table of their first samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covey.tables import html_table, text_table

SHOWN = 5
"""How many samples of an answer are printed."""


@dataclass(frozen=True)
class AnswerTable:
    """The first samples of an answer, as a person reads them.

    Args:
        title: what was answered.
        headings: of the columns.
        rows: one per sample shown.
        samples: how many there are.
    """

    title: str
    headings: tuple[str, ...]
    rows: list[tuple]
    samples: int

    def text(self) -> str:
        """For the terminal."""
        lines = [self.title, text_table(self.headings, self.rows, right=self.headings)]
        if self.samples > len(self.rows):
            lines.append(f"... and {self.samples - len(self.rows):,} more")
        return "\n".join(lines)

    def html(self) -> str:
        """For a notebook."""
        caption = self.title
        if self.samples > len(self.rows):
            caption += f"; the first {len(self.rows)}"
        return html_table(self.headings, self.rows, right=self.headings, caption=caption)


class PrintsAsTable:
    """Answers print as a table of their first samples; `repr` stays one line."""

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> AnswerTable:
        raise NotImplementedError


def places(batch: Sequence[int]) -> Iterator[str]:
    """Where each sample is in the batch: "0", or "0, 3" where a sample has several positions."""
    for index in np.ndindex(*batch):
        yield ", ".join(map(str, index))
