"""A real process: concurrent clients, a slow one, SIGTERM, a port in use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from starlette.testclient import TestClient

from covey import extras
from covey.cli.main import main
from covey.cli.reading import read_ensemble, read_settings
from covey.cli.serve import ServeFlags, _application
from covey.data.inputs import prepare
from covey.serving import Limits, application, server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "a run"
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "2",
        "--data",
        "digits",
        "--network",
        "mlp",
        "--samples",
        "200",
    ]
    words += ["--network-option", "hidden=[8]", "--epochs", "1", "--no-progress", "--no-evaluate"]
    show = warnings.showwarning
    assert main([*words, "--folder", str(folder)]) == 0
    warnings.showwarning = show
    return folder


def test_a_port_in_use_and_a_folder_that_is_none(run, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(run), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is in use; name another with --port" in capsys.readouterr().err
    assert main(["serve", str(run), "--port", "70000"]) == 2
    assert "--port is a number from 0" in capsys.readouterr().err
    assert main(["serve", str(tmp_path)]) == 2
    assert "is no finished run" in capsys.readouterr().err
    assert main(["serve"]) == 2
    assert "covey serve needs the folder of a run" in capsys.readouterr().err


def test_a_missing_extra(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not there
    assert extras.EXTRA_OF["uvicorn"] == "serve"
    assert main(["serve", str(run)]) == 2
    assert "this needs the package uvicorn: pip install 'covey[serve]'" in capsys.readouterr().err


def started(run: Path, *words: str) -> tuple[subprocess.Popen, str]:
    command = [sys.executable, "-m", "covey.cli", "serve", str(run), "--port", "0", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert "serving" in line
    return process, line.split(" at ")[1].split()[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_clients_a_slow_one_and_sigterm(run):
    record = read_settings(run)["record"]
    raw = np.random.default_rng(0).integers(0, 256, (40, *record["shape"]), dtype=np.uint8)
    want = read_ensemble(run).predict(prepare(torch.from_numpy(raw), record)).probs
    process, address = started(run, "--name", "digits", "--wait-ms", "20", "--seconds", "60")
    try:
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        slow = socket.create_connection((host, int(port)))
        body = json.dumps({"pixels": raw[:1].tolist()}).encode()
        head = (
            f"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body[:10])

        def ask(place: int) -> Any:
            return httpx.post(
                address + "predict", json={"pixels": raw[place : place + 1].tolist()}, timeout=60
            )

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(ask, range(40)))
        assert {answer.status_code for answer in answers} == {200}
        found = [answer.json()["predictions"][0]["probs"] for answer in answers]
        assert np.allclose(found, want, atol=1e-5)
        with urllib.request.urlopen(address + "metrics") as page:
            text = page.read().decode()
        batches = int(text.split("\ncovey_batches_total ")[1].split()[0])
        assert batches < 40, "concurrent requests share batches"
        process.send_signal(signal.SIGTERM)
        slow.sendall(body[10:])  # accepted before the signal, so it is answered
        answer = b""
        while chunk := slow.recv(65536):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 200")
        assert np.allclose(
            json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"][0]["probs"], want[0], atol=1e-5
        )
        assert process.wait(60) == 0
        assert "everything that was accepted is answered" in process.stdout.read()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        slow.close()


def send_a_head_without_end(connection: socket.socket) -> None:
    connection.sendall(b"GET /health HTTP/1.1\r\n")
    for _ in range(1000):
        connection.sendall(b"X: " + b"y" * 4000 + b"\r\n")
        time.sleep(0.001)


def test_a_head_without_an_end_and_a_client_that_says_nothing(images, monkeypatch):
    """In-process: the connection is closed, and others are served meanwhile."""
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)
    place = server.bind("127.0.0.1", 0)
    limits = Limits()
    config = uvicorn.Config(
        application(images, limits), http=server._Protocol, ws="none", log_level="critical"
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [place]})
    thread.start()
    address = place.getsockname()
    try:
        with (
            socket.create_connection(address, 20) as silent,
            socket.create_connection(address, 20) as endless,
        ):
            with pytest.raises(OSError, match="reset|Broken pipe"):
                send_a_head_without_end(endless)
            assert httpx.get(f"http://127.0.0.1:{address[1]}/health", timeout=20).status_code == 200
            assert silent.recv(10) == b"", "closed by the service"
    finally:
        running.should_exit = True
        thread.join()
        place.close()


def test_members_are_measured_when_asked(run):
    app = _application(ServeFlags(folder=str(run), anytime=True), Limits(batch=4))
    shape = [1, *read_settings(run)["record"]["shape"]]
    sent = {"pixels": np.zeros(shape, int).tolist(), "budget_ms": 1e6}
    with TestClient(app) as client:
        front = client.get("/metadata").json()["anytime"]
        answer = client.post("/predict", json=sent).json()
    assert answer["members_used"] == front[-1]["members"], "the best of all that were measured"
    assert [subset["ms"] for subset in front] == sorted(subset["ms"] for subset in front)
