"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def draft(folder: Path) -> Iterator[Path]:
    """A new file in `folder`, to be written and then put into its place by `settle`; gone afterwards if it was not."""
    handle, name = tempfile.mkstemp(prefix=".covey-", dir=folder)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def settle(temporary: Path, path: Path) -> None:
    """Give a draft its name, in one step, when all of it is on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, in the same folder; it takes the name `path` when the block ends well, else it goes."""
    with draft(path.parent) as temporary:
        yield temporary
        settle(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
