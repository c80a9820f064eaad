"""Files that are there whole or not at all, and stored files that are what they seem."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from covey.errors import StoreError

DRAFT = ".covey-"
"""What the names of drafts begin with."""

STALE = 3600.0
"""Seconds after which a draft that nobody has written to counts as left behind."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def draft(folder: Path) -> Iterator[Path]:
    """A new file in `folder`, to be written and then put into its place by `settle`; gone afterwards if it was not.

    It has the mode that the umask gives to new files. Drafts that killed processes left in the folder are removed.
    """
    collect_drafts(folder)
    temporary = folder / f"{DRAFT}{secrets.token_hex(8)}"
    # Not tempfile.mkstemp, whose files only their owner can read, whatever the umask says.
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    os.close(handle)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def collect_drafts(folder: Path) -> None:
    """Remove the drafts in a folder that nobody has written to for an hour: their process was killed."""
    oldest = time.time() - STALE
    for path in folder.glob(f"{DRAFT}*"):
        # Another process may collect the same ones, and some may belong to another user.
        with contextlib.suppress(OSError):
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_mtime < oldest:
                path.unlink()


def settle(temporary: Path, path: Path) -> None:
    """Give a draft its name, in one step, when all of it is on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, in the same folder; it takes the name `path` when the block ends well, else it goes."""
    try:
        with draft(path.parent) as temporary:
            yield temporary
            settle(temporary, path)
    except OSError as error:
        if error.errno in _FULL:
            raise StoreError(
                f"{path} cannot be written: {error.strerror}. Make room, or choose another folder; what was there "
                "before is still whole."
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with whole(path) as temporary:
        temporary.write_bytes(content)


def is_ordinary(path: Path) -> bool:
    """Whether this is an ordinary file, and not a folder or a pipe from which one could read for ever."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # a ValueError for names that no file can have
        return False


def check_stored(path: Path) -> None:
    """Refuse what is no ordinary file of its folder: a pipe, a device, a folder, or a link that leads elsewhere.

    From a pipe or a device one could read for ever; a link could make somebody else's file pass for the folder's own.
    """
    try:
        mode = os.stat(path).st_mode
        beside = path.resolve().is_relative_to(path.parent.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # names that no file can have, links in a circle
        raise StoreError(f"{path} is missing or cannot be read: {error}.") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is no ordinary file.")
    if not beside:
        raise StoreError(
            f"{path} is a link to {path.resolve()}, outside its folder. Put the file itself there if you trust it."
        )


def machine_memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not say."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
