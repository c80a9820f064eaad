"""A service under load, on loopback: errors, memory, throughput batched against unbatched, right answers, a kill.

    python benchmarks/serve.py [--clients 100] [--seconds 30] [--run FOLDER]

Without --run it first trains a BatchEnsemble of the zoo's MLP (4 members, digits, one epoch) in a temporary folder.
Every answer is compared with the library's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from covey.cli.main import main as covey
from covey.cli.reading import read_ensemble, read_settings
from covey.data.inputs import prepare

HOST = "127.0.0.1"
TOLERANCE = 1e-5
MOST_CLIENTS, MOST_SECONDS = 1000, 600


@dataclass
class Load:
    """What clients ask, what is right, and what came of it."""

    bodies: list[bytes]
    expected: np.ndarray
    answered: int = 0
    wrong: int = 0
    statuses: Counter = field(default_factory=Counter)
    broken: int = 0  # connections
    milliseconds: list[float] = field(default_factory=list)
    until: float = 0.0  # by the monotonic clock


def requests(folder: Path, port: int, count: int = 256) -> Load:
    record = read_settings(folder)["record"]
    raw = np.random.default_rng(0).integers(0, 256, (count, *record["shape"]), dtype=np.uint8)
    expected = read_ensemble(folder).predict(prepare(torch.from_numpy(raw), record)).probs.numpy()
    bodies = []
    for image in raw:
        body = json.dumps({"pixels": [image.tolist()]}, separators=(",", ":")).encode()
        head = (
            f"POST /predict HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        bodies.append(head.encode() + body)
    return Load(bodies, expected)


async def client(load: Load, port: int, number: int) -> None:
    """Ask one question after another; connect anew where the connection breaks."""
    place = number
    while time.monotonic() < load.until:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            load.broken += 1
            await asyncio.sleep(0.05)
            continue
        try:
            while time.monotonic() < load.until:
                started = time.monotonic()
                writer.write(load.bodies[place])
                status, body = await answer(reader)
                load.milliseconds.append(1000 * (time.monotonic() - started))
                note(load, place, status, body)
                place = (place + 7) % len(load.bodies)
        except (OSError, EOFError, ValueError):
            load.broken += 1
        finally:
            writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


def note(load: Load, place: int, status: int, body: bytes) -> None:
    load.statuses[status] += 1
    if status != 200:
        return
    load.answered += 1
    probs = json.loads(body)["predictions"][0]["probs"]
    if not np.allclose(probs, load.expected[place], atol=TOLERANCE):
        load.wrong += 1


async def pressed(load: Load, port: int, clients: int, seconds: float) -> None:
    load.until = time.monotonic() + seconds
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(client(load, port, number) for number in range(clients)))


def start(folder: Path, port: int, words: Sequence[str] = ()) -> subprocess.Popen:
    command = [sys.executable, "-m", "covey.cli", "serve", str(folder), "--port", str(port), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if "serving" not in process.stdout.readline():
        raise SystemExit("the service did not start")
    return process


def stop(process: subprocess.Popen) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def megabytes(process: subprocess.Popen) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return found.getsockname()[1]


def steady(folder: Path, clients: int, seconds: float, words: Sequence[str], name: str) -> float:
    """Requests per second."""
    port = free_port()
    load, process = requests(folder, port), start(folder, port, words)
    try:
        asyncio.run(pressed(load, port, clients, min(2.0, seconds)))  # until memory and threads have settled
        before = megabytes(process)
        load = requests(folder, port)
        started = time.monotonic()
        asyncio.run(pressed(load, port, clients, seconds))
        rate = load.answered / (time.monotonic() - started)
        after = megabytes(process)
        code = stop(process)
    finally:
        process.kill()
        process.wait()
    errors = sum(count for status, count in load.statuses.items() if status != 200) + load.broken
    middle, slow = np.percentile(load.milliseconds, [50, 99])
    print(
        f"{name:10} {load.answered:7} answers, {errors} errors, {load.wrong} wrong, {rate:6.0f} per second, "
        f"{middle:.1f} ms (p99 {slow:.1f}), memory {before:.0f} to {after:.0f} MiB, exit code {code}",
        flush=True,
    )
    return rate


def killed(folder: Path, clients: int, seconds: float) -> None:
    port = free_port()
    load, first = requests(folder, port), start(folder, port)
    processes = [first]

    async def trouble() -> None:
        await asyncio.sleep(seconds / 3)
        first.kill()
        processes.append(await asyncio.to_thread(start, folder, port))
        again.append(load.answered)
        load.until = time.monotonic() + seconds / 3

    async def both() -> None:
        # Clients go on until the service has been there again for a while.
        await asyncio.gather(pressed(load, port, clients, seconds + 120), trouble())

    again: list[int] = []
    try:
        asyncio.run(both())
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(
        f"killed     {load.answered:7} answers, {load.wrong} wrong, {load.answered - again[0]} after the restart, "
        f"{load.broken} broken connections, statuses {dict(load.statuses)}",
        flush=True,
    )


def trained(place: Path) -> Path:
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "4",
        "--data",
        "digits",
        "--network",
        "mlp",
        "--epochs",
        "1",
    ]
    folder = place / "run"
    if covey([*words, "--no-evaluate", "--no-progress", "--folder", str(folder)]) != 0:
        raise SystemExit("the run could not be trained")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--run", type=Path)
    own = parser.parse_args()
    if not (0 < own.clients <= MOST_CLIENTS and 0 < own.seconds <= MOST_SECONDS):
        parser.error(f"at most {MOST_CLIENTS} clients and {MOST_SECONDS} seconds")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        folder = own.run or trained(Path(place))
        batched = steady(folder, own.clients, own.seconds, (), "batched")
        single = steady(folder, own.clients, own.seconds, ("--batch", "1", "--wait-ms", "0"), "unbatched")
        print(f"ratio      {batched / single:.2f}", flush=True)
        killed(folder, own.clients, max(own.seconds, 10.0))


if __name__ == "__main__":
    main()
