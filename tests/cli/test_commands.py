"""Each command through its entry point; one small run serves them all.

A process of its own, as a user's shell would start it, takes seconds to import torch and everything around it. So
training, mistakes and several processes are tried that way, and the other commands in this process.
"""

import csv
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from covey.cli import commands
from covey.cli.main import main
from covey.cli.memory import keep_freed_memory

ROOT = Path(__file__).parents[2]
SMALL = [
    "--network",
    "mlp",
    "--network-option",
    "hidden=[16]",
    "--epochs",
    "2",
    "--batch",
    "64",
    "--no-progress",
]


def covey(*words, folder, code=0):
    # Ray's workers wait for all other processes of a busy machine if they are left as nice as they are
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "RAY_worker_niceness": "0"}
    environment = os.environ | own
    command = [sys.executable, "-m", "covey.cli", *map(str, words)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=230, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def here(place, monkeypatch, capsys):
    """Runs a command in this process; returns what it printed."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # a command replaces it

    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a trained run in it."""
    folder = tmp_path_factory.mktemp("shell")
    words = ["train", "batch-ensemble", "--members", 2, "--data", "digits", "--folder", "run", *SMALL]
    out, err = covey(*words, folder=folder)
    assert "all 2 epochs are done, 2 members" in out
    assert "accuracy" in out
    assert "epoch 2 of 2: loss" in err
    return folder


def test_train_writes_the_full_settings(place):
    stored = json.loads((place / "run" / "settings.json").read_text())
    assert stored["method"] == "batch-ensemble"
    assert stored["options"]["members"] == 2
    assert stored["recipe"]["momentum"] == 0.9  # a default, written down too
    assert stored["record"]["counts"] == {"train": 1259, "validation": 179, "test": 359}
    assert sum(1 for _ in csv.DictReader((place / "run" / "history.csv").read_text().splitlines())) == 2


def test_evaluate(place, here):
    out = here("evaluate", "run", "--json", "--limit", 100, "--no-report")
    scores = json.loads(out)
    assert 0.5 < scores["ensemble"]["accuracy"] <= 1
    assert (place / "run" / "evaluation.json").exists()
    assert not (place / "run" / "report.html").exists()
    out = here("evaluate", "run")
    assert f"report: {Path('run') / 'report.html'}" in out
    page = (place / "run" / "report.html").read_text()
    assert "batch-ensemble on digits" in page
    assert (place / "run" / "report.md").exists()


def test_predict(place, here):
    digits = np.random.default_rng(0).integers(0, 255, (3, 1, 8, 8), dtype=np.uint8)
    np.save(place / "x.npy", digits)
    out = here("predict", "run", "x.npy")
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 3
    for row in rows:
        probabilities = {str(k): float(row[f"p({k})"]) for k in range(10)}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == max(probabilities, key=probabilities.__getitem__)


def test_show_of_many_epochs(tmp_path):
    rows = [f"{epoch},0,{0.1 / epoch!r},,3.25e-07" for epoch in range(1, 41)]
    (tmp_path / "history.csv").write_text("\n".join(["epoch,phase,lr,loss,nll", *rows]))
    lines = commands._history(tmp_path).splitlines()
    assert len(lines) == 24
    assert lines[4].split() == ["3", "0", "0.0333", "-", "3.25e-07"]
    assert lines[12].split() == ["..."] * 5
    assert lines[-2].split()[0] == "40"
    assert lines[-1] == f"all 40 epochs: {tmp_path / 'history.csv'}"


def test_show_methods_and_data(place, here):
    out = here("show", "run")
    assert "method    batch-ensemble members=2" in out
    assert "of the network's" in out
    assert re.search(r"^epoch +phase +lr +loss.*\n[- ]+\n +1 +0 +0\.0\d{3} ", out, re.MULTILINE)
    assert not re.search(r"\d\.\d{5}", out), "digits that nobody reads"
    out = here("methods")
    assert "batch-ensemble" in out and "late-phase" in out  # noqa: PT018
    out = here("data", "digits", "--sheet", "sheet.png")
    assert "1,259 train, 179 validation, 359 test" in out
    assert (place / "sheet.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # three processes, each with its imports
@pytest.mark.timeout(240)
def test_compare_in_two_processes(place, here):
    words = [
        "--methods",
        "single",
        "multi-head:members=2",
        "--data",
        "digits",
        "--folder",
        "both",
    ]
    out, _ = covey("compare", *words, "--jobs", 2, *SMALL, folder=place)
    assert "single seed 0: done" in out
    assert "multi-head members=2 seed 0: done" in out
    assert "multi-head members=2" in (place / "both" / "report.html").read_text()
    times = {p: p.stat().st_mtime_ns for p in (place / "both").rglob("*.safetensors")}
    assert not list((place / "both" / "figures").glob("*.pdf"))
    here("compare", *words, "--pdf", *SMALL)  # what is done is not done again
    assert list((place / "both" / "figures").glob("*.pdf"))
    assert {p: p.stat().st_mtime_ns for p in (place / "both").rglob("*.safetensors")} == times


@pytest.mark.slow  # starts a cluster
@pytest.mark.timeout(240)
def test_compare_on_ray(place):
    pytest.importorskip("ray")
    words = ["--methods", "single", "--data", "digits", "--folder", "ray", "--ray"]
    out, _ = covey("compare", *words, *SMALL, folder=place)
    assert "[1/1] single seed 0: done" in out


def test_reproduce(place, here):
    (place / "tiny.toml").write_text(
        'method = "multi-head"\n[about]\npaper = "none"\ntable = "Table 0"\nreports = "nothing"\n'
        '[dataset]\ndata = "digits"\n[network]\nnetwork = "mlp"\n[recipe]\nepochs = 100\n'
        "[small]\nepochs = 1\nsamples = 200\n"
    )
    out = here("reproduce", "tiny.toml", "--scale", "small")
    assert "the paper reports: nothing" in out
    stored = json.loads((place / "runs" / "tiny-small" / "multi-head-0" / "settings.json").read_text())
    assert (stored["recipe"]["epochs"], stored["dataset"]["samples"]) == (1, 200)


def test_mistakes_are_one_line_and_code_two(place):
    out, err = covey("train", "batchensemble", folder=place, code=2)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "there is no method 'batchensemble'; the nearest names are 'batch-ensemble'" in err
    _, err = covey("-v", "train", "batchensemble", folder=place, code=2)
    assert "Traceback" in err


def test_freed_memory_is_kept_on_linux_with_glibc():
    known = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory() == known
