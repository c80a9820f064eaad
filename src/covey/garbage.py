"""Python's garbage collector, held back while many objects are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (50_000, 10, 10)
"""New objects before a collection of the young, and collections before one of the older (usually 700, 10, 10)."""

_lock = threading.Lock()
_blocks = 0
_before = gc.get_threshold()


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage less often in the block.

    Conversion copies a network about ten times. A network of a thousand modules is 30,000 objects, nearly all of which
    stay, and going through them again and again takes a fifth of the time. The setting is the process's, so blocks in
    several threads share it: the first sets it and the last puts it back.
    """
    global _blocks, _before
    with _lock:
        if _blocks == 0:
            _before = gc.get_threshold()
            # whoever collects less often still, or never, keeps to that
            if 0 < _before[0] < RARE[0]:
                gc.set_threshold(*RARE)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                gc.set_threshold(*_before)
