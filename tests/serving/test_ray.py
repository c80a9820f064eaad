"""The service on Ray Serve, with two replicas on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch

import covey
from covey.cli.main import main
from covey.cli.reading import read_ensemble
from covey.serving.on_ray import Replicas

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "run"
    x = torch.randn(32, 4)
    network = covey.zoo.create("mlp", features=4, hidden=(8,), classes=2)
    quiet = covey.Machine(accelerator="cpu", progress=False)
    method = covey.BatchEnsemble(members=2)
    answers = (x[:, 0] > 0).long()
    covey.fit(network, (x, answers), covey.Recipe(epochs=1), method=method, folder=folder, machine=quiet)
    return folder


def test_replicas_are_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Replicas(replicas=2).options == {"num_replicas": 2}
    scaled = Replicas(replicas=1, most_replicas=4).options
    assert scaled == {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}}
    for words, said in {
        ("--replicas", "2"): "are for --ray",
        ("--ray", "--replicas", "0"): "--replicas is a whole number of at least 1",
        ("--ray", "--replicas", "3", "--most-replicas", "2"): "is less than --replicas 3",
        ("--ray", "--port", "70000"): "--port is a number from 0",
    }.items():
        assert main(["serve", str(run), *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is not installed")
@pytest.mark.timeout(400)
def test_two_replicas_answer_and_leave_nothing_behind(run: Path, tmp_path: Path) -> None:
    x = torch.randn(12, 4)
    want = read_ensemble(run).predict(x).probs.numpy()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    command = [
        sys.executable,
        "-m",
        "covey.cli",
        "serve",
        str(run),
        "--ray",
        "--replicas",
        "2",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    family = []
    try:
        line = process.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        family = psutil.Process(process.pid).children(recursive=True)
        assert sum("ServeReplica" in " ".join(child.cmdline()) for child in family) == 2

        def ask(row: torch.Tensor) -> httpx.Response:
            return httpx.post(address + "predict", json={"inputs": [row.tolist()]}, timeout=60)

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, x))
        assert {answer.status_code for answer in answers} == {200}
        found = [answer.json()["predictions"][0]["probs"] for answer in answers]
        np.testing.assert_allclose(found, want, atol=1e-5)
        refused = httpx.post(address + "predict", json={"inputs": [[1.0]]}, timeout=60)
        assert refused.status_code == 422
        assert "expected numbers of shape (N, 4)" in refused.json()["error"]
        assert httpx.get(address, timeout=60).headers["content-type"].startswith("text/html")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "processes are left behind"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for child in family:
            if child.is_running():
                child.kill()
