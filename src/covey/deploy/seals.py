"""A seal: an ONNX file's checksum inside the file, so that a weight that changed since is noticed.

The checksum is of the file with `EMPTY` where the seal stands.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from covey.errors import StoreError

KEY = "covey_seal"
"""Under which the seal stands in a file's metadata, beside `metadata.KEY`."""

EMPTY = "sha256:" + 64 * "0"


def seal(path: Path) -> None:
    """Put its checksum into a file whose seal is empty."""
    content = path.read_bytes()
    place = content.rfind(EMPTY.encode())
    assert place >= 0, "the writer leaves a place for the seal"
    with path.open("r+b") as file:
        file.seek(place)
        file.write(_checksum(content, place).encode())


def check_seal(told: str | None, path: Path) -> None:
    """Refuse a file that is not as it was written; older ones have no seal."""
    if told is None:
        return
    content = path.read_bytes()
    place = content.rfind(told.encode())
    if place < 0 or len(told) != len(EMPTY) or _checksum(content, place) != told:
        raise StoreError(
            f"{path} is damaged, or was changed after it was written: its checksum is another. Export it again; what "
            "was changed on purpose runs in ONNX Runtime itself."
        )


def _checksum(content: bytes, place: int) -> str:
    """Of all that is not the seal."""
    view = memoryview(content)
    found = hashlib.sha256(view[:place])
    found.update(EMPTY.encode())
    found.update(view[place + len(EMPTY) :])
    return f"sha256:{found.hexdigest()}"
