"""How the C library treats freed memory during a training run."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensors instead of handing it back; False on other systems.

    A training step frees and asks for the same megabytes again and again. Fetching them from the system each time took
    a sixth of a CPU step (docs/late.md). Changes the whole process, so it is for covey's own commands.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        return bool(library.mallopt(_TRIM_THRESHOLD, 2**31 - 1) and library.mallopt(_MMAP_THRESHOLD, 2**25))
    except (OSError, AttributeError):  # another C library
        return False
