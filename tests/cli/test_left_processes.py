"""A comparison that is killed leaves no process behind."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are counted in /proc")


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_run_behind(tmp_path: Path) -> None:
    words = "compare --methods single packed --data digits --network mlp --epochs 100000 --jobs 2"
    command = [
        sys.executable,
        "-m",
        "covey.cli",
        *shlex.split(words),
        "--no-progress",
        "--folder",
        str(tmp_path),
    ]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            # both runs have finished an epoch, so both workers are at it
            assert _until(lambda: len(list(tmp_path.glob("*/history.jsonl"))) == 2, 180)
            workers = _children(process.pid)
            assert len(workers) >= 2
        finally:
            process.kill()
    assert _until(lambda: not any(map(_lives, workers)), 20)
