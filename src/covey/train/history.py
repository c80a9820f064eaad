"""What happened in a run, epoch by epoch, in memory and as CSV and JSON Lines."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.ensemble import Ensemble
from covey.files import write_text


@dataclass(frozen=True)
class History:
    """What `fit` returns.

    Args:
        ensemble: the trained ensemble.
        rows: one record per epoch: epoch, lr, loss, and the validation scores.
        folder: of the run, or None.
        resumed: the checkpoint that the run went on from, or None.
        ended: why training ended, in words.
    """

    ensemble: Ensemble
    rows: list[dict[str, Any]]
    folder: Path | None = None
    resumed: Path | None = None
    ended: str = ""

    def __getitem__(self, name: str) -> list[Any]:
        """One column, with None for epochs that lack it."""
        return [row.get(name) for row in self.rows]

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's record."""
        return self.rows[-1] if self.rows else {}


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write `history.csv` and `history.jsonl`, each in one step."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "history.csv", text.getvalue())
    write_text(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
