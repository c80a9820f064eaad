"""One process at a time writes into a run's folder.

The lock is the operating system's, on the file `.lock` in the folder, so it goes when its process goes, however that
ends. The file itself stays and tells who holds the lock, or who held it last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.errors import StoreError, reason

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".lock"
_MOST = 4096  # bytes that are read of another process's lock
_SHUT = 1 << 30  # the byte that Windows locks, beyond what is written, so that others can read who holds it
_log = logging.getLogger("covey")
_held: dict[tuple[int, str], int] = {}  # thread, folder -> the lock's file


def _forget() -> None:
    """A process that was forked does not hold its parent's locks, and does not keep them when the parent ends."""
    for handle in _held.values():
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def locked(folder: str | Path, *, what: str = "run") -> Iterator[None]:
    """Keep other processes and threads from writing into a folder; a StoreError says who does so already.

    Whoever holds the lock may take it again, as a command does that trains and then evaluates.

    Args:
        folder: is made if it is not there.
        what: what the folder holds, for the error.
    """
    place = Path(os.path.realpath(folder))  # which leaves a link that leads to itself to whoever opens it
    key = (threading.get_ident(), str(place))
    if key in _held:
        yield
        return
    new = not place.exists()
    handle = _opened(place)
    try:
        _take(handle, place, what)
        _held[key] = handle
        yield
    except BaseException:
        if new:
            _leave_nothing(place)
        raise
    finally:
        _held.pop(key, None)
        os.close(handle)  # which gives the lock up


def _opened(place: Path) -> int:
    try:
        place.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.open(place / NAME, flags, 0o666)
    except OSError as error:
        what = "it is a file" if place.is_file() else reason(error)
        raise StoreError(f"cannot write to {place}: {what}. Choose another folder.") from error


def _leave_nothing(place: Path) -> None:
    """Remove a folder that was made for the lock and holds nothing else."""
    with contextlib.suppress(OSError):
        if [path.name for path in place.iterdir()] == [NAME]:
            (place / NAME).unlink()
            place.rmdir()


def _take(handle: int, place: Path, what: str) -> None:
    try:
        _lock(handle)
    except BlockingIOError as error:
        raise StoreError(
            f"the {what} in {place} is being written by {_holder(handle)}. Wait until it ends, stop it, or choose "
            "another folder."
        ) from error
    except OSError as error:
        _log.warning("%s cannot be locked (%s): make sure that no other process writes into it", place, error)
        return
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    with contextlib.suppress(OSError):  # a full disk does not keep anybody from holding a lock
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, json.dumps(about).encode())


def _lock(handle: int) -> None:
    """Take the lock; a BlockingIOError if somebody has it, another OSError where there are no locks."""
    if sys.platform == "win32":
        os.lseek(handle, _SHUT, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(str(error)) from error
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(handle: int) -> str:
    """Who holds a lock, in words."""
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        about: Any = json.loads(os.read(handle, _MOST))
        return f"process {int(about['pid'])} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"  # whoever wrote that
