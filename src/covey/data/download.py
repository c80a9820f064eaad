"""Downloads: checked before they are put in place, so that a broken one is never used."""

from __future__ import annotations

import contextlib
import lzma
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from covey.errors import DataError, reason
from covey.extras import load

WINDOW, LEAST = 60.0, 64 * 1024
"""A server that sends fewer than LEAST bytes in WINDOW seconds is given up."""

LONGEST = 12 * 3600.0
"""Seconds after which any download is given up."""

_TIMEOUT = 30  # seconds for a connection, and for each read from it
_PIECE = 16 * 1024  # bytes that are waited for together
_TEMPORARY = ".download-"
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,  # zipfile's, of passwords; a way of packing that it does not know is one too
)


@dataclass(frozen=True)
class Remote:
    """A file or an archive on a server.

    Args:
        urls: where it is; later ones are tried when earlier ones fail.
        checksum: "md5:..." or "sha256:..." as its publishers or widely used libraries print it; None where
            none is published, and then only the server's length and the file's format are checked.
        target: a file: its path below the data folder. An archive: the folder it is unpacked into ("" for
            none).
        members: an archive: the files that are wanted, as paths in the archive; all if empty. Folders in the
            archive are kept.
        flatten: drop the archive's folders.
    """

    urls: tuple[str, ...]
    checksum: str | None
    target: str
    archive: bool = False
    members: tuple[str, ...] = ()
    flatten: bool = False


def fetch(remote: Remote, root: Path, progress: bool | None = None) -> None:
    """Download what `remote` describes into the folder `root`.

    Args:
        remote: what.
        root: the data folder; made if it is not there.
        progress: show a bar; None: on a terminal.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        _collect(root)
        # On the same disk, so that the last step is a rename: a killed download leaves nothing half done.
        temporary = tempfile.TemporaryDirectory(dir=root, prefix=_TEMPORARY)
    except OSError as error:
        raise DataError(f"cannot write into the data folder {root}: {error}; give another root") from error
    with temporary as folder:
        failures: list[str] = []
        for n, url in enumerate(remote.urls):
            file = (
                Path(folder) / f"file{n}"
            )  # not one for all: a thread that was given up may still write to its own
            failure = _try(url, file, remote.checksum, sys.stderr.isatty() if progress is None else progress)
            if failure is None:
                _place(remote, file, root, url)
                return
            failures.append(f"{url}: {failure}")
    name = remote.urls[0].rsplit("/", 1)[-1]
    raise DataError(
        f"could not download {name}. "
        + "; ".join(failures)
        + f". Check the connection and try again, or put it by hand where it belongs: {root / remote.target}"
    )


def _try(url: str, file: Path, checksum: str | None, progress: bool) -> str | None:
    """Download one URL; None if it is what it should be, else what is wrong."""
    pooch = load("pooch")

    failure = _download(url, file, progress)
    if failure is not None:
        return failure
    if checksum is not None:
        kind, expected = checksum.split(":")
        got_hash = pooch.file_hash(str(file), alg=kind)
        if got_hash != expected:
            return f"expected {checksum}, got {kind}:{got_hash} ({file.stat().st_size} bytes)"
    return None


def _download(url: str, file: Path, progress: bool) -> str | None:
    """Download one URL, whatever it is; None if that went well, else what went wrong.

    The timeout of a connection is one for each read, so that a server could go on for ever with a byte now and then.
    Therefore a thread downloads and this one watches the file grow. A thread cannot be stopped from outside; one that
    is given up ends at its next piece, with its connection, or with the process.
    """
    import requests

    outcome: list[Exception] = []
    given_up = threading.Event()

    def work() -> None:
        try:
            _stream(url, file, progress, given_up)
        except Exception as error:  # redirects that lead nowhere end in errors of any kind
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    failure = _watch(thread, file)
    if failure is not None:
        given_up.set()
        return failure
    if not outcome:
        return None
    error = outcome[0]
    if isinstance(error, requests.HTTPError):
        return f"expected the file, got an HTTP error ({error})"
    if isinstance(error, requests.RequestException):
        return f"expected the whole file, got {_size(file)} bytes before the connection failed{_cause(error)}"
    return f"expected the file, got {_size(file)} bytes and {type(error).__name__} ({error})"


def _cause(error: BaseException | None) -> str:
    """What the system said, which stands innermost in an error of the library that asked it."""
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return f" ({reason(error)})"
        error = error.__cause__ or error.__context__
    return ""


def _stream(url: str, file: Path, progress: bool, given_up: threading.Event) -> None:
    """Write what a server sends to a file, until it ends or is given up."""
    import requests

    with requests.Session() as session, session.get(url, stream=True, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length") or 0)
        bar = tqdm(total=total or None, unit="B", unit_scale=True, disable=not progress)
        with file.open("wb") as out, bar:
            for piece in response.iter_content(_PIECE):
                if given_up.is_set():
                    return
                out.write(piece)
                bar.update(len(piece))


def _watch(thread: threading.Thread, file: Path) -> str | None:
    """Wait for a download; None if it ended, else why it is given up."""
    started = time.monotonic()
    since, before = started, 0
    while True:
        thread.join(min(1.0, WINDOW / 4))
        if not thread.is_alive():
            return None
        now, size = time.monotonic(), _size(file)
        if now - started > LONGEST:
            return f"expected the whole file, got {size} bytes in {LONGEST / 3600:.3g} hours, and gave up"
        if now - since > WINDOW:
            if size - before < LEAST:
                return (
                    f"the server is too slow: expected at least {LEAST} bytes in {WINDOW:.3g} seconds, got "
                    f"{size - before}"
                )
            since, before = now, size


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _collect(root: Path) -> None:
    """Remove what downloads left behind whose process was killed."""
    oldest = time.time() - LONGEST - 3600
    for folder in root.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder)


def _place(remote: Remote, file: Path, root: Path, url: str) -> None:
    """Put a downloaded file where it belongs, or unpack it."""
    target = root / remote.target
    if not remote.archive:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
        return
    unpacked = file.with_name("unpacked")
    try:
        _unpack(file, unpacked, remote.members)
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{url} is not the archive that was expected: {error}; try again later") from error
    for path in sorted(p for p in unpacked.rglob("*") if p.is_file()):
        place = target / (path.name if remote.flatten else path.relative_to(unpacked))
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)


def _unpack(file: Path, folder: Path, members: Sequence[str]) -> None:
    """Unpack an archive, or these of its files; nothing of it if one of them is no ordinary file below `folder`."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            entries = [archive.getinfo(name) for name in members] or archive.infolist()
            for entry in entries:
                mode = entry.external_attr >> 16
                _check_entry(entry.filename, ordinary=not stat.S_ISLNK(mode))
                if entry.flag_bits & 1:
                    raise ValueError(f"{entry.filename!r} is encrypted")
            _check_room(folder.parent, sum(entry.file_size for entry in entries))
            archive.extractall(folder, entries)
        return
    with tarfile.open(file) as tar:
        items = [tar.getmember(name) for name in members] or tar.getmembers()
        for item in items:
            _check_entry(item.name, ordinary=item.isfile() or item.isdir())
        _check_room(folder.parent, sum(item.size for item in items))
        tar.extractall(folder, items, filter="data")


def _check_entry(name: str, *, ordinary: bool) -> None:
    """Refuse what an archive might put elsewhere than into the folder it is unpacked to."""
    if not ordinary:
        raise ValueError(f"{name!r} in it is a link or a device; expected files and folders only")
    first, *rest = re.split(r"[/\\]", name)
    if not first or ":" in first or ".." in (first, *rest):
        raise ValueError(f"{name!r} in it leads outside of the folder")


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"the archive takes {needed / 2**30:.1f} GiB when it is unpacked, and the disk of {folder.parent} has "
            f"{free / 2**30:.1f} GiB free; make room, or give another root"
        )
