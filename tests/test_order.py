"""No draw follows the order of a set, which is another one in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hashes


@pytest.mark.timeout(200)
def test_every_process_makes_the_same_members() -> None:
    command = [sys.executable, "-W", "ignore", Path(hashes.__file__), "convnet"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # this process has a seed of its own
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(hashes.digests(["convnet"]))
