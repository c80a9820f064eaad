"""covey export, and covey predict with the file that it wrote."""

from __future__ import annotations

import csv
import io
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import covey
from covey.cli.deploy import cost_of_int8
from covey.cli.main import main
from covey.cli.reading import read_data, read_ensemble, read_network
from covey.data import Split


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


def test_int8_costs_of_a_segmentation_are_those_of_its_pixels(tmp_path: Path) -> None:
    data = covey.data.load("shapes")
    network = covey.zoo.create("unet", channels=3, classes=4, width=4, levels=1)
    inputs, targets = data.prepare(data.test.inputs[:8]), data.test.targets[:8]
    ensemble = covey.convert(network, covey.BatchEnsemble(members=2), example=inputs, class_dim=1).eval()
    covey.export(ensemble, tmp_path / "a.onnx", inputs, record=data.record)
    few = replace(data, test=Split(data.test.inputs[:8], targets))
    told = cost_of_int8(tmp_path / "a.onnx", tmp_path / "a.onnx", few)
    right = ensemble.predict(inputs).label == targets
    accuracy = right[targets != 255].double().mean().item()
    assert f"{accuracy:.4f}" in told


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_int8_costs_of_predicted_variances_have_their_nll(tmp_path: Path) -> None:
    data = covey.data.load("diabetes")
    network = covey.zoo.create("mlp", features=data.shape[0], hidden=(8,), classes=2)
    inputs = data.prepare(data.test.inputs)
    ensemble = covey.convert(network, covey.BatchEnsemble(members=2), example=inputs, task="gaussian").eval()
    covey.export(ensemble, tmp_path / "a.onnx", inputs, record=data.record)
    told = cost_of_int8(tmp_path / "a.onnx", tmp_path / "a.onnx", data)
    row = next(line.split() for line in told.splitlines() if line.startswith("gaussian_nll"))
    expected = covey.evaluate(ensemble, data).headline["gaussian_nll"]
    assert float(row[1]) == pytest.approx(expected, abs=2e-4)
    with pytest.raises(covey.CoveyError, match="the ensemble's own is 'gaussian'; leave task= out"):
        covey.evaluate(ensemble, data, task=covey.Quantiles((0.1, 0.9)))


def test_a_pt2_file_is_for_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path / "a.pt2"), "x.npy"]) == 2
    assert "is for torch.export.load" in capsys.readouterr().err


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
    assert "the network was trained on 1 x 8 x 8" in capsys.readouterr().err
    assert not (tmp_path / "a-int8.onnx").exists()


def test_every_form_of_a_run_is_timed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "bench.json"
    words = ["bench", str(folder), "--batches", "1", "4", "--repeats", "1", "--threads", "1"]
    assert main([*words, "--int8-limit", "1", "--write", str(written)]) == 0
    told = capsys.readouterr().out
    assert "form     batch 1  batch 4  samples/s  weights MB  peak MB" in told
    stored = json.loads(written.read_text())
    assert f"Best here: {stored['best']}, which takes" in told
    assert {row["form"] for row in stored["rows"]} | set(stored["missing"]) == {
        "network", "eager", "fused", "onnx", "int8",
    }  # fmt: skip
    network = next(row for row in stored["rows"] if row["form"] == "network")
    assert network["weight_bytes"] == 4 * (64 * 32 + 32 + 32 * 10 + 10), "the run's own, of 32 hidden units"
    assert main([*words, "--write", "bench.txt"]) == 2
    assert "--write is a .json file" in capsys.readouterr().err


def test_a_run_of_fit_names_its_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(32, 4)
    network = covey.zoo.create("mlp", features=4, hidden=(8,), classes=2)
    quiet = covey.Machine(accelerator="cpu", progress=False)
    method = covey.Packed(members=4)
    run = tmp_path / "run"
    covey.fit(
        network, (x, (x[:, 0] > 0).long()), covey.Recipe(epochs=1), method=method, folder=run, machine=quiet
    )
    for command in ("export", "bench"):
        assert main([command, str(run)]) == 2
        assert "where its data are is not known: name inputs, --data FILE" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", x.numpy())
    given = str(tmp_path / "x.npy")
    assert main(["export", str(run), "--data", given]) == 0
    capsys.readouterr()
    answers = []
    for source in (run, run / "ensemble.onnx"):
        assert main(["predict", str(source), given]) == 0
        answers.append([float(row["p(0)"]) for row in table(capsys.readouterr().out)])
    np.testing.assert_allclose(*answers, atol=1e-5)
    ensemble = read_ensemble(run)
    whole = {name: tensor.shape for name, tensor in network.state_dict().items()}
    assert {name: t.shape for name, t in read_network(run, ensemble).state_dict().items()} == whole
    assert {name: t.shape for name, t in ensemble.member(0).state_dict().items()} != whole, "narrower"


def test_a_run_on_text_finds_its_data_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox " * 60)
    words = ["train", "single", "--data", str(tmp_path / "text.txt"), "--length", "8", "--epochs", "1"]
    words += ["--network-option", "hidden=8", "--no-progress", "--no-evaluate"]
    show = warnings.showwarning
    assert main([*words, "--folder", str(tmp_path / "run")]) == 0
    warnings.showwarning = show
    assert read_data(tmp_path / "run").task == "language"
