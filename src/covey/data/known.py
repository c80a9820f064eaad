"""Known sets: found in the data folder or downloaded into it."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from covey.data.catalogue import KNOWN, Asked, Source
from covey.data.download import fetch
from covey.data.layouts import CORRUPTIONS, find
from covey.data.raw import Raw
from covey.errors import DataError, suggest
from covey.tables import counted

CORRUPTED = ("cifar10-c", "cifar100-c")


def data_folder(root: str | Path | None) -> Path:
    """Where known sets are kept: `root`, else $COVEY_DATA, else ~/.cache/covey/data."""
    return Path(root or os.environ.get("COVEY_DATA") or "~/.cache/covey/data").expanduser()


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """A known name and what stands behind it: "cifar10-c/fog/3" is ("cifar10-c", ("fog", "3"))."""
    if name in KNOWN and name not in CORRUPTED:
        return name, ()
    known, *rest = name.split("/")
    if known in CORRUPTED:
        if len(rest) != 2 or rest[0] not in CORRUPTIONS or rest[1] not in tuple("12345"):
            raise DataError(
                f"{name!r}: expected {known}/<corruption>/<severity 1 to 5>, such as {known}/fog/3. The "
                f"corruptions "
                f"are {', '.join(CORRUPTIONS)}"
            )
        return known, tuple(rest)
    raise DataError(
        f"{name!r} is neither a known data set nor a file or folder that exists" + suggest(name, KNOWN)
    )


def read_known(name: str, root: Path, ask: Asked) -> Raw:
    """A known set; missing files are downloaded, unless the test part is there and will do."""
    name, rest = split_name(name)
    source = KNOWN[name]
    ask = replace(ask, rest=rest)
    notes: tuple[str, ...] = ()
    # Of a corrupted set the one file that is asked for will do.
    test = [path for path in source.test if not rest or Path(path).stem in (rest[0], "labels")]
    files = {"train": source.train, "test": test}
    lacking = {part: _lacking(root, files[part]) for part in ask.parts}
    if lacking.get("train") and "test" in lacking and source.train and not lacking["test"]:
        ask = replace(ask, parts=("test",))
        notes = (
            f"test part only: {lacking['train'][0]} is not in {root}; "
            f"`covey data {name} --root {shlex.quote(str(root))} --download` fetches what is missing",
        )
    elif missing := [path for paths in lacking.values() for path in paths]:
        if not ask.download:
            raise DataError(
                f"{name}: {root / missing[0]} is not there (missing: {counted(len(missing), 'file')}), and "
                f"download=False"
            )
        _download(source, root, missing)
    raw = source.read(root, ask)
    if notes:
        warnings.warn(f"{name}: {notes[0]}", stacklevel=4)
    return replace(raw, notes=(*raw.notes, *notes))


def download(name: str, root: str | Path | None = None) -> Path:
    """Fetch the files of a known set that are not there yet, and say where they are."""
    source, folder = KNOWN[name if name in KNOWN else split_name(name)[0]], data_folder(root)
    _download(source, folder, _lacking(folder, (*source.train, *source.test)))
    return folder


def _lacking(root: Path, paths: Sequence[str]) -> list[str]:
    return [path for path in paths if find(root, path) is None]


def _download(source: Source, root: Path, missing: Sequence[str]) -> None:
    if not missing:
        return
    for remote in source.remotes:
        if remote.archive or remote.target in missing:
            fetch(remote, root)
    if still := _lacking(root, missing):
        raise DataError(f"the download did not bring {still[0]}; its publisher has changed it")
