import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import convnet

import covey

HERE = Path(__file__).parent


def run(folder, devices, shards):
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "NODE_RANK", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE}"}
    command = [sys.executable, HERE / "two_processes.py", folder, str(devices), str(shards)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return rows, covey.load(folder / "ensemble", network=convnet()).state_dict()


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
