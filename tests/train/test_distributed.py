import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import two_processes
from small import convnet, images

import covey
from covey.train import checkpoint, ranks

HERE = Path(__file__).parent
CHILDREN = Path("/proc/self/task") / str(os.getpid()) / "children"


def started(folder, devices, shards, epochs=3, **options):
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "NODE_RANK", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE}"}
    words = [str(word) for word in (folder, devices, shards, epochs)]
    command = [sys.executable, HERE / "two_processes.py", *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def run(folder, devices, shards):
    process = started(folder, devices, shards)
    _, told = process.communicate(timeout=150)
    assert process.returncode == 0, told
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return rows, covey.load(folder / "ensemble", network=convnet()).state_dict()


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_two_processes_equal_one_with_two_shards(tmp_path):
    rows, tensors = run(tmp_path / "two", 2, 1)
    expected_rows, expected = run(tmp_path / "one", 1, 2)
    assert len(rows) == 3
    for row, other in zip(rows, expected_rows, strict=True):
        for name in ("loss", "nll", "accuracy", "lr", "disagreement"):
            assert row[name] == pytest.approx(other[name], abs=1e-5), name
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def second_of(first):
    """The process that a process started; waits until it is there."""
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    while first.poll() is None:
        found = children.read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError(first.stderr.read())


@pytest.mark.slow  # processes are killed, and the others must notice
@pytest.mark.timeout(600)
@pytest.mark.skipif(not CHILDREN.exists(), reason="looks for processes in /proc")
def test_when_one_process_is_killed_the_other_says_so_and_ends_and_the_run_can_go_on(tmp_path):
    first = started(tmp_path / "run", 2, 1, 40, start_new_session=True)
    second = second_of(first)
    first.kill()  # before they met
    _, told = first.communicate(timeout=280)  # which goes on until nobody can write to the pipe any more
    while ranks.is_alive(second):
        time.sleep(0.02)
    assert f"rank 0 of this run (process {first.pid}) has ended, so rank 1 ends too" in told

    first = started(tmp_path / "run", 2, 1, 40)
    second = second_of(first)
    while not (tmp_path / "run" / "history.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.02)
    os.kill(second, signal.SIGKILL)
    _, told = first.communicate(timeout=280)
    assert first.returncode not in (0, -signal.SIGKILL)
    assert f"rank 1 of this run (process {second}) has ended, so rank 0 ends too" in told
    assert "start it again with --resume" in told

    found = checkpoint.newest(tmp_path / "run")
    assert found is not None
    recipe = two_processes.recipe(40)
    machine = covey.Machine(accelerator="cpu", shards=2, progress=False)
    history = covey.fit(
        convnet(), images(41), recipe, method=covey.BatchEnsemble(members=2), folder=tmp_path / "run",
        machine=machine, resume=True,
    )  # fmt: skip
    assert history.resumed == found[0]
    assert history.last["epoch"] == 40
