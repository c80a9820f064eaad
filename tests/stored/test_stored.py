"""What covey 0.1.0 stored in `first/` is read, resumed and answered as it was then: bit for bit on such a processor.

Only public names are used here, so that a change of covey's insides leaves this file as it is.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import covey

HERE = Path(__file__).parent
FIRST = HERE / "first"

_FORMAT = "checkpoints name their checksum and hold a layout since the second format"
REFUSED: dict[str, str] = dict.fromkeys(
    ("batch-ensemble", "late-phase", "superweights", "swag", "swag-batch-norm"), _FORMAT
)
"""Checkpoints that this covey no longer resumes, by the name of their folder, each with the reason. Such a run must be
refused with an error that says so."""


AS_STORED = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether this processor computes as the one did that the answers are from; others round the last bits differently."""

ROUNDING = 0.0 if AS_STORED else 1e-5


def _networks() -> Any:
    """The file beside this one, under a name that no other test's networks have."""
    spec = importlib.util.spec_from_file_location("stored_networks", HERE / "networks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


networks = _networks()
ENSEMBLES: dict[str, dict[str, Any]] = json.loads((FIRST / "ensembles.json").read_text())
CHECKPOINTS = sorted(path.name for path in (FIRST / "checkpoints").iterdir())
COMMANDS = sorted(path.name for path in (FIRST / "commands").iterdir())


@pytest.fixture(autouse=True)
def _steady() -> None:
    networks.steady()


def tensors(path: Path) -> dict[str, Tensor]:
    """A file's tensors, copied, since memory that is aligned otherwise can give other last bits."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


@torch.no_grad()
def answers(ensemble: covey.Ensemble, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was recorded of an ensemble, computed now."""
    ensemble.eval()
    ensemble.run = "loop"
    torch.manual_seed(0)  # directly before each call, since MC-dropout is random
    outputs = ensemble(expected["x"])
    torch.manual_seed(0)
    answer = ensemble.predict(expected["x"])
    parts = [name for name in expected if name.startswith("predict.")]
    assert parts
    return {"outputs": outputs, **{name: getattr(answer, name.partition(".")[2]) for name in parts}}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = ROUNDING) -> str:
    """What differs, in words; empty if nothing does. With a tolerance of 0, every bit counts."""
    for name, tensor in found.items():
        was = expected[name]
        if torch.equal(tensor, was) and tensor.dtype == was.dtype:
            continue
        if tensor.shape != was.shape or tensor.dtype != was.dtype:
            return f"{name} is {tensor.dtype} {tuple(tensor.shape)}, and was {was.dtype} {tuple(was.shape)}"
        most = (tensor.double() - was.double()).abs().max().item()
        if not most <= tolerance:
            return (
                f"{name} differs by up to {most:.3g}; torch is {torch.__version__} with "
                f"{torch.backends.cpu.get_cpu_capability()} instructions, README.md says what it was"
            )
    return ""


def test_every_method_and_every_folder_is_there() -> None:
    folders = {path.name for path in (FIRST / "ensembles").iterdir() if path.is_dir()}
    assert folders == set(ENSEMBLES)
    stored = {
        json.loads((FIRST / "ensembles" / name / "config.json").read_text())["method"] for name in folders
    }
    assert stored >= {
        "replicate", "deep-ensemble", "multi-head", "norm-ensemble", "batch-ensemble", "masksembles", "mimo",
        "mc-dropout", "hypernetwork", "mixture", "superweights", "shapeshifter", "slimmable", "packed",
    }  # fmt: skip


@pytest.mark.parametrize("name", ENSEMBLES)
def test_a_stored_ensemble_answers_as_it_did(name: str) -> None:
    expected = tensors(FIRST / "ensembles" / f"{name}.safetensors")
    loaded = covey.load(FIRST / "ensembles" / name, network=networks.build(ENSEMBLES[name]["network"]))
    loaded.acting = False  # as weights were made when it was stored, bit for bit
    assert not difference(answers(loaded, expected), expected)


@pytest.mark.parametrize("name", ["batch-ensemble", "masksembles", "tied"])
def test_weights_that_act_round_differently_and_no_more(name: str) -> None:
    expected = tensors(FIRST / "ensembles" / f"{name}.safetensors")
    loaded = covey.load(FIRST / "ensembles" / name, network=networks.build(ENSEMBLES[name]["network"]))
    found = answers(loaded, expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENSEMBLES)
def test_a_stored_ensemble_can_be_stored_again(name: str, tmp_path: Path) -> None:
    expected = tensors(FIRST / "ensembles" / f"{name}.safetensors")
    loaded = covey.load(FIRST / "ensembles" / name, network=networks.build(ENSEMBLES[name]["network"]))
    covey.save(loaded, tmp_path)
    again = covey.load(tmp_path, network=networks.build(ENSEMBLES[name]["network"]))
    assert again.training == loaded.training == (name == "train-mode")
    again.acting = False
    assert not difference(answers(again, expected), expected)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_an_interrupted_run_is_resumed(name: str, tmp_path: Path) -> None:
    place = FIRST / "checkpoints" / name
    case, expected = json.loads((place / "case.json").read_text()), tensors(place / "expected.safetensors")
    stored = tensors(place / "data.safetensors")
    data = covey.data.Data(
        **{
            part: covey.data.Split(stored[f"{part}.inputs"], stored[f"{part}.targets"])
            for part in ("train", "validation", "test")
        },
        task="classification",
        classes=tuple(case["classes"]),
        shape=tuple(case["shape"]),
        record=case["record"],
    )
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)

    def resume() -> covey.History:
        return covey.fit(
            networks.build(case["network"]),
            data,
            covey.Recipe(**case["recipe"]),
            method={**covey.METHODS, **covey.TRAININGS}[case["method"]](**case["options"]),
            folder=folder,
            machine=covey.Machine(accelerator="cpu", progress=False),
            resume=True,
        )

    if name in REFUSED:
        with pytest.raises(covey.CoveyError, match="written by an earlier version of covey"):
            resume()
        return
    history = resume()
    assert history.resumed is not None
    assert history.resumed.name == max(path.name for path in (place / "run" / "checkpoints").iterdir())
    rows = [{key: row[key] for key in was} for row, was in zip(history.rows, case["rows"], strict=True)]
    assert rows == case["rows"]
    found, tolerance = answers(history.ensemble, expected), case["tolerance"]
    undisturbed = {name: expected.get(f"undisturbed.{name}", expected[name]) for name in found}
    # where the two were recorded to differ, an undisturbed run is right: SWAG drew its members in the order of the
    # file's tensors when it was resumed, and not in the network's
    tolerance = max(tolerance, ROUNDING)
    if difference(found, undisturbed, tolerance):
        assert not difference(found, expected, tolerance)
    loaded = covey.load(folder / "ensemble", network=networks.build(case["network"]))
    assert not difference(answers(loaded, expected), found, 0.0)


def run_command(*words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What `covey` prints when a shell starts it with these words."""
    monkeypatch.setattr(sys, "argv", ["covey", *words])
    capsys.readouterr()
    try:
        runpy.run_module("covey.cli", run_name="__main__")
    except SystemExit as end:
        assert not end.code, capsys.readouterr().err  # noqa: PT017
    return capsys.readouterr().out


def _nearly(found: str, was: str) -> bool:
    """Whether two printed numbers differ by another processor's rounding alone."""
    try:
        return abs(float(found) - float(was)) <= ROUNDING
    except ValueError:
        return False


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_the_command_line_is_shown_scored_and_asked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIRST / "commands" / name, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def covey_command(*words: str) -> str:
        return run_command(*words, capsys=capsys, monkeypatch=monkeypatch)

    shown = covey_command("show", "run")
    for row in csv.DictReader((tmp_path / "run" / "history.csv").read_text().splitlines()):
        for score in ("loss", "accuracy", "nll", "disagreement"):
            assert f"{float(row[score]):.4f}" in shown
    for line in (tmp_path / "show.txt").read_text().splitlines():
        assert line in shown or not line.startswith(("method", "network", "data", "size"))

    # weights are made, as they were then: those that act round differently
    monkeypatch.setattr(covey.Ensemble, "acts", lambda self, part: False)
    predicted = list(csv.DictReader(covey_command("predict", "run", "x.npy").splitlines()))
    expected = list(csv.DictReader((tmp_path / "predict.csv").read_text().splitlines()))
    for row, was in zip(predicted, expected, strict=True):
        for key, value in was.items():
            assert row[key] == value or _nearly(row[key], value)

    # the part of the data that --samples takes is another one now, so scores are there but not the same
    scores = json.loads(covey_command("evaluate", "run", "--json", "--no-report"))
    for group, was in json.loads((tmp_path / "evaluate.json").read_text()).items():
        assert not isinstance(was, dict) or set(was) <= set(scores[group])
