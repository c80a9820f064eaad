"""Downloads with pooch: checked before they are put in place, so that a broken one is never used."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.errors import DataError


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
        # On the same disk, so that the last step is a rename: a killed download leaves nothing half done.
        temporary = tempfile.TemporaryDirectory(dir=root, prefix=".download-")
    except OSError as error:
        raise DataError(f"cannot write into the data folder {root}: {error}; give another root") from error
    with temporary as folder:
        failures: list[str] = []
        for url in remote.urls:
            file = Path(folder) / "file"
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
    import pooch
    import requests

    try:
        pooch.HTTPDownloader(progressbar=progress, timeout=30)(url, str(file), None, check_only=False)
    except requests.HTTPError as error:
        return f"expected the file, got an HTTP error ({error})"
    except requests.RequestException as error:
        got = file.stat().st_size if file.exists() else 0
        return f"expected the whole file, got {got} bytes before the connection failed ({error})"
    if checksum is not None:
        kind, expected = checksum.split(":")
        got_hash = pooch.file_hash(str(file), alg=kind)
        if got_hash != expected:
            return f"expected {checksum}, got {kind}:{got_hash} ({file.stat().st_size} bytes)"
    return None


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
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, KeyError) as error:
        raise DataError(f"{url} is not the archive that was expected: {error}; try again later") from error
    for path in sorted(p for p in unpacked.rglob("*") if p.is_file()):
        place = target / (path.name if remote.flatten else path.relative_to(unpacked))
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)


def _unpack(file: Path, folder: Path, members: Sequence[str]) -> None:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder, members or None)
        return
    with tarfile.open(file) as archive:
        wanted = [archive.getmember(name) for name in members] or None
        archive.extractall(folder, wanted, filter="data")  # refuses paths that lead outside
