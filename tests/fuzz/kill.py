"""Kill training again and again and compare what it ends with: `python tests/fuzz/kill.py --kills 100 --seed 0`.

Every way of training runs once undisturbed. Then it runs into a folder where killed processes have left drafts, with a
checkpoint after every minibatch, and is killed (SIGKILL) at moments that the seed draws, resumed, killed again, and in
the end let through. Every tensor that it ends with, and every number of its history but the seconds, must be the same
to the last bit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import torch
from small import blobs, images, mlp
from torch import nn

import covey
from covey.data import Augment
from covey.files import DRAFT, STALE
from covey.train import checkpoint
from covey.train.launching import steady

QUIET = covey.Machine(accelerator="cpu", progress=False)
RECIPE = covey.Recipe(epochs=6, batch=8, lr=0.05, run="loop", checkpoint=1, augment=Augment(mixup=0.3))
BEST = replace(RECIPE, ema=0.9, keep="best", optimizer="adam", lr=0.01)
ON_IMAGES = (
    "economical",
    "hypernetwork",
    "mixture",
    "superweights",
)  # which make the weights of convolutions
WAYS: dict[str, tuple[Any, covey.Recipe]] = {
    "swag": (covey.SWAG(members=3, start=0.4), RECIPE),
    "late-phase copies": (covey.LatePhase(members=3, start=0.5, collapse=False), RECIPE),
    "late-phase rank-one": (
        covey.LatePhase(members=3, start=0.5, kind="rank-one", nested=False, collapse=False),
        RECIPE,
    ),
    "economical": (covey.Economical(members=3, start=0.5), RECIPE),
    "snapshot": (covey.Snapshot(members=3), RECIPE),
    "fge": (covey.FGE(start=2, cycle=2), RECIPE),
    "late batch-ensemble": (covey.late(covey.BatchEnsemble(members=3), start=0.5, noise=0.1), BEST),
    "batch-ensemble": (covey.BatchEnsemble(members=3), BEST),
    "deep-ensemble": (covey.DeepEnsemble(members=3), replace(RECIPE, average=0.5)),
    "packed": (covey.Packed(members=2), RECIPE),
    "mimo": (covey.MIMO(members=2), RECIPE),
    "masksembles": (covey.Masksembles(members=3), RECIPE),
    "mc-dropout": (covey.MCDropout(members=3), RECIPE),
    "mixture": (covey.Mixture(members=2), RECIPE),
    "hypernetwork": (covey.Hypernetwork(members=2), RECIPE),
    "superweights": (covey.SuperWeights(members=2, refine_at=2), RECIPE),
}


def stacked() -> nn.Module:
    """Convolutions of one shape, which can share templates."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (1, 6, 6, 6):
        layers += [nn.Conv2d(inputs, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))


def train(name: str, folder: Path) -> None:
    """One run, resumed if there is something to resume."""
    torch.set_num_threads(1)
    steady()
    way, recipe = WAYS[name]
    network, data = mlp(norm=True, dropout=0.2), blobs(40, held=20)
    if name in ON_IMAGES:
        network, data = stacked(), images(40)
    covey.fit(network, data, recipe, method=way, folder=folder, machine=QUIET, resume=True)


def forked(name: str, folder: Path) -> int:
    """A process that trains; this one never computes anything itself, so that it may fork."""
    process = os.fork()
    if process:
        return process
    try:
        train(name, folder)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(process: int, seconds: float) -> int | None:
    """The exit code of a process, or None if it still runs after so long."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.002)


def consumed(folder: Path) -> int:
    """Minibatches that the newest checkpoint has behind it."""
    found = sorted(path.name for path in (folder / "checkpoints").glob("[0-9]*"))
    return int(found[-1][:10]) if found else 0


def killed_once(name: str, folder: Path, draw: random.Random) -> bool:
    """Train, and kill that a few minibatches later; False if it ended before that."""
    process = forked(name, folder)
    target = consumed(folder) + draw.randint(0, 9)
    until = time.monotonic() + 120
    while consumed(folder) < target or not (folder / "checkpoints").exists():
        code = ended(process, 0.002)
        if code is not None:
            _check_ended(code, name)
            return False
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            raise AssertionError(f"{name} made no progress for two minutes")
    code = ended(process, draw.uniform(0.0, 0.1))
    if code is not None:
        _check_ended(code, name)
        return False
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def _check_ended(code: int, name: str) -> None:
    assert code == 0, f"{name} ended with exit code {code}"


def leave_drafts(folder: Path) -> None:
    """What killed processes leave: a draft that is fresh, and one that is old."""
    (folder / "checkpoints").mkdir(parents=True)
    for age in (0.0, 2 * STALE):
        path = folder / "checkpoints" / f"{DRAFT}{int(age)}"
        path.write_bytes(b"half a checkpoint")
        os.utime(path, (time.time() - age, time.time() - age))


def results(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors and the history that a run ended with."""
    from covey.tensor_files import read_tensors

    (path,) = (folder / "ensemble").glob("*.safetensors")
    _, tensors = read_tensors(path)
    found = checkpoint.newest(folder)
    assert found is not None
    return tensors, [{**row, "seconds": 0} for row in found[1]["rows"]]


def attack(name: str, kills: int, folder: Path, draw: random.Random) -> tuple[int, int]:
    """Kill a way of training so often, and compare; returns how many tensors it has, and how many differ."""
    whole, broken = folder / "whole", folder / "killed"
    _check_ended(_waited(forked(name, whole)), name)
    leave_drafts(broken)
    done = 0
    while done < kills:
        if killed_once(name, broken, draw):
            done += 1
        elif done < kills:  # it got to the end: again from the start, so that there is something to kill
            shutil.rmtree(broken)
            leave_drafts(broken)
    _check_ended(_waited(forked(name, broken)), name)
    expected, rows = results(whole)
    found, other_rows = results(broken)
    assert expected.keys() == found.keys()
    differ = [key for key in expected if not torch.equal(expected[key], found[key])]
    if rows != other_rows:
        differ.append("history")
    return len(expected), len(differ)


def _waited(process: int) -> int:
    code = ended(process, 300.0)
    assert code is not None, "a run did not end in five minutes"
    return code


def main() -> int:
    """Read the options, kill, print the figures; 1 if a tensor differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    given = parser.parse_args()
    started = time.perf_counter()
    draw = random.Random(given.seed)
    print("| way of training | kills | tensors | that differ |\n| --- | ---: | ---: | ---: |")
    total, bad = 0, 0
    for number, name in enumerate(given.only):
        kills = given.kills // len(given.only) + (number < given.kills % len(given.only))
        with tempfile.TemporaryDirectory(prefix="covey-kill-") as folder:
            tensors, differ = attack(name, kills, Path(folder), draw)
        print(f"| {name} | {kills} | {tensors} | {differ} |", flush=True)
        total, bad = total + kills, bad + differ
    minutes = (time.perf_counter() - started) / 60
    print(f"{total} kills, seed {given.seed}, {minutes:.1f} minutes: {bad} tensors differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
