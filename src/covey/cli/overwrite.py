"""--overwrite: a run makes room for another one, and comes back if that one does not even begin."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from covey.errors import StoreError
from covey.files import DRAFT
from covey.locks import NAME as LOCK
from covey.train import checkpoint

ASIDE = ".replaced"
"""Where the old run waits until the new one has its first checkpoint."""

_SCORES = (
    "evaluation.json",
    "outputs.npz",
    "cost.json",
    "collapsed.json",
    "subsets.json",
    "report.html",
    "report.md",
)
_WRITTEN = tuple(
    re.compile(pattern)
    for pattern in (
        r"(settings|fit)\.json",
        r"history\.(csv|jsonl)",
        r"checkpoints/\d{10}(-[0-9a-f]+)?\.safetensors",
        r"ensemble/(config\.json|tensors[\w-]*\.safetensors)",
        rf"(evaluations/[^/]+/)?({'|'.join(map(re.escape, _SCORES))})",
        r"(evaluations/[^/]+/)?figures/[\w.-]+\.(svg|pdf|png)",
        r"tensorboard/events\.out\.tfevents\.[\w.-]+",
        rf"(.*/)?({re.escape(LOCK)}|\.writable|{re.escape(DRAFT)}\w+)",
    )
)
_FOLDERS = re.compile(
    r"checkpoints|ensemble|tensorboard|evaluations(/[^/]+)?|(evaluations/[^/]+/)?figures|" + re.escape(ASIDE)
)
_NAMED = 5  # files in a message


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[None]:
    """Set the run in a folder aside; it is gone when the block ends, or back if no other run was begun in it.

    Args:
        folder: of the run. Nothing is touched if it holds anything that covey does not write there.
    """
    check_replaceable(folder)
    aside = folder / ASIDE
    if not checkpoint.begun(folder):
        _restore(folder, aside)  # of a process that was killed before it began its own run
    if not checkpoint.begun(folder):
        yield
        return
    _remove(aside)
    _move(folder, aside)
    try:
        yield
    finally:
        if checkpoint.begun(folder):
            _remove(aside)
        else:
            _restore(folder, aside)


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds links or anything else that covey does not write there."""
    if folder.is_symlink():
        raise StoreError(
            f"{folder} is a link, through which --overwrite removes nothing; name the folder itself."
        )
    if not folder.exists():
        return
    strange = sorted(_strange(folder))
    if strange:
        named = ", ".join(strange[:_NAMED]) + (
            f" and {len(strange) - _NAMED} more" if strange[_NAMED:] else ""
        )
        raise StoreError(
            f"{folder} holds what covey did not write there: {named}. --overwrite replaces only runs; move that "
            "elsewhere, or choose another folder."
        )


def _strange(folder: Path) -> Iterator[str]:
    """What is in a run's folder, by its path in it, that no run writes."""
    for place, folders, files in os.walk(folder):  # which does not go through links
        inside = Path(place).relative_to(folder)
        for name in [*folders, *files]:
            path = (inside / name).as_posix().removeprefix(f"{ASIDE}/")
            known: tuple[re.Pattern[str], ...] = (_FOLDERS,) if name in folders else _WRITTEN
            if (Path(place) / name).is_symlink():
                yield f"{path} (a link)"
                known = ()
            elif not any(pattern.fullmatch(path) for pattern in known):
                yield path
                known = ()
            if not known and name in folders:
                folders.remove(name)  # what is in it is not ours either


def _move(folder: Path, aside: Path) -> None:
    names = [name for name in os.listdir(folder) if name not in (LOCK, ASIDE)]  # the lock is held
    if not names:
        return
    aside.mkdir()
    for name in names:
        (folder / name).rename(aside / name)


def _restore(folder: Path, aside: Path) -> None:
    if not aside.is_dir():
        return
    for name in os.listdir(aside):
        new = folder / name
        if new.is_dir():
            shutil.rmtree(new)  # an empty folder for checkpoints
        (aside / name).replace(new)
    aside.rmdir()


def _remove(aside: Path) -> None:
    if aside.is_dir():
        shutil.rmtree(aside)
