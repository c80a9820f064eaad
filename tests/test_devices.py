"""No tensor is made on the wrong device: everything also runs on one that is not the CPU (`elsewhere/device.py`).

That device must be there before a process's first backward pass, so its tests run in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PARTS = {
    "running": ("cases_ensembles.py", "run_and_learn"),
    "answers": ("cases_ensembles.py", "not run_and_learn"),
    "training": ("cases_training.py", ""),
}


@pytest.mark.slow  # half a minute each
@pytest.mark.timeout(500)
@pytest.mark.parametrize("part", PARTS)
def test_it_holds_on_a_device_that_is_not_the_cpu(part: str) -> None:
    file, chosen = PARTS[part]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        HERE / "elsewhere" / file,
        "-k",
        chosen,
    ]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # what the outer run told its workers is not meant for this one
    outer = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=HERE.parent, capture_output=True, text=True, timeout=480
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
