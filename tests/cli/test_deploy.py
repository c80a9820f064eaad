"""covey export, and covey predict with the file that it wrote."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path

import numpy as np
import pytest

from covey.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, exported in float and in int8."""
    folder = tmp_path_factory.mktemp("deploy") / "run"
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "2",
        "--data",
        "digits",
        "--samples",
        "300",
        "--network",
        "mlp",
    ]
    words += [
        "--network-option",
        "hidden=[32]",
        "--epochs",
        "2",
        "--batch",
        "32",
        "--no-progress",
        "--no-evaluate",
    ]
    show = warnings.showwarning
    assert main([*words, "--folder", str(folder)]) == 0
    yield folder
    warnings.showwarning = show


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_is_exported_quantised_and_asked(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(folder), "--int8", "train", "--int8-limit", "0.05"]) == 0
    told = capsys.readouterr().out
    assert "within" in told
    for word in ("accuracy", "nll", "ece", "MB", "layers in float", "VNNI"):
        assert word in told
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((5, 8, 8)).astype(np.float32))
    answers = []
    for source in (folder, folder / "ensemble.onnx", folder / "ensemble-int8.onnx"):
        assert main(["predict", str(source), str(tmp_path / "x.npy")]) == 0
        answers.append(table(capsys.readouterr().out))
    for row, other in zip(answers[0], answers[1], strict=True):
        assert row["prediction"] == other["prediction"]
        for name in ("probability", "entropy", "mutual_information", "p(3)"):
            assert float(row[name]) == pytest.approx(float(other[name]), abs=1e-5)
    for row, other in zip(answers[0], answers[2], strict=True):
        assert float(row["p(3)"]) == pytest.approx(float(other["p(3)"]), abs=0.1)
        assert row["p(3)"] != other["p(3)"], "int8 rounds"


def test_int8_data_of_another_shape(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 9, 9), np.float32))
    words = ["export", str(folder), "--out", str(tmp_path / "a.onnx"), "--int8", str(tmp_path / "x.npy")]
    assert main(words) == 2
    assert "the network was trained on (1, 8, 8)" in capsys.readouterr().err
    assert not (tmp_path / "a-int8.onnx").exists()
