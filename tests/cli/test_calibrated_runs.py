"""What `covey evaluate` fits of a run is what predict, serve and export of the run answer with."""

import csv
import io
import json
import shutil
import warnings

import numpy as np
import pytest
import torch

from covey.cli.calibrated import read_calibrated
from covey.cli.main import main
from covey.deploy import DeployedEnsemble
from covey.scores import Evaluation, fit_conformal
from covey.store import load, save

ROWS = 150


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table of three classes, and runs with and without validation data."""
    folder = tmp_path_factory.mktemp("calibrated")
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, ROWS)
    x = draw.normal(size=(ROWS, 2)) + labels[:, None]
    lines = ["a,b,kind", *(f"{a:.4f},{b:.4f},k{k}" for (a, b), k in zip(x, labels, strict=True))]
    (folder / "table.csv").write_text("\n".join(lines))
    (folder / "new.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines[:9]))
    words = ["train", "multi-head", "--members", "2", "--data", str(folder / "table.csv"), "--target", "kind"]
    words += ["--network", "mlp", "--network-option", "hidden=[8]", "--epochs", "3", "--no-progress"]
    show = warnings.showwarning
    assert main([*words, "--validation", "0.3", "--folder", str(folder / "run")]) == 0
    assert main([*words, "--validation", "0", "--folder", str(folder / "bare")]) == 0
    assert main([*words, "--validation", "0.3", "--no-evaluate", "--folder", str(folder / "raw")]) == 0
    yield folder
    warnings.showwarning = show


def rows_of(capsys, *words):
    capsys.readouterr()
    assert main(["predict", *map(str, words)]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def probabilities(rows):
    return np.array([[float(row[f"p(k{k})"]) for k in range(3)] for row in rows])


def test_sets_are_those_that_were_fitted(place, capsys):
    rows = rows_of(capsys, place / "run", place / "new.csv")
    quantile = Evaluation.load(place / "run").calibration["threshold"].quantile
    for row, probs in zip(rows, probabilities(rows), strict=True):
        inside = {f"k{k}" for k in range(3) if probs[k] >= 1 - quantile} | {row["prediction"]}
        assert set(row["set"].split("; ")) == inside
    assert "set" not in rows_of(capsys, place / "raw", place / "new.csv")[0]
    assert "set" not in rows_of(capsys, place / "bare", place / "new.csv")[0]


def test_a_temperature_is_used_if_asked_for_and_sets_follow_it(place, capsys):
    run = place / "run"
    found = Evaluation.load(run)
    (temperature,) = found.calibration["pooled"].values
    plain, hot = (probabilities(rows_of(capsys, run, place / "new.csv", *more))
                  for more in ((), ("--temperature", "pooled")))  # fmt: skip
    scaled = plain ** (1 / temperature)
    np.testing.assert_allclose(hot, scaled / scaled.sum(1, keepdims=True), atol=1e-5)

    ensemble = read_calibrated(run, temperature="members")
    logits, labels = found.record.validation
    each = torch.stack([z / t for z, t in zip(logits, ensemble.temperature.values, strict=True)])
    expected = fit_conformal(each.softmax(-1).mean(0), labels, kind="threshold")
    assert ensemble.conformal.quantile == pytest.approx(expected.quantile, abs=1e-5)


def test_an_exported_file_holds_the_same(place, capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "a.onnx"
    assert main(["export", str(place / "run"), "--temperature", "pooled", "--out", str(path)]) == 0
    assert {"temperature", "conformal"} == set(DeployedEnsemble(path).about["calibration"])
    ours = rows_of(capsys, place / "run", place / "new.csv", "--temperature", "pooled")
    theirs = rows_of(capsys, path, place / "new.csv")
    assert [row["set"] for row in ours] == [row["set"] for row in theirs]
    np.testing.assert_allclose(probabilities(ours), probabilities(theirs), atol=1e-5)
    assert main(["predict", str(path), str(place / "new.csv"), "--temperature", "pooled"]) == 2
    assert "an exported file, which answers as it is" in capsys.readouterr().err


def test_what_was_stored_with_the_ensemble_stays(place):
    shutil.copytree(place / "run", place / "own")
    ensemble = load(place / "own" / "ensemble").eval()
    ensemble.temperature = Evaluation.load(place / "run").calibration["members"]
    save(ensemble, place / "own" / "ensemble")
    found = read_calibrated(place / "own")
    assert found.temperature == ensemble.temperature
    # Sets of the probabilities at that temperature, not of those without one.
    assert found.conformal == read_calibrated(place / "run", temperature="members").conformal


def test_a_line_says_what_a_temperature_would_do(place, capsys):
    assert main(["evaluate", str(place / "run"), "--no-report"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "temperature" in line]
    scores = json.loads((place / "run" / "evaluation.json").read_text())["scores"]
    before, after = scores["ensemble"]["nll"], scores["calibration"]["pooled"]["nll"]
    assert f"from {before:.4f} to {after:.4f}" in line
    assert "--temperature pooled" in line


@pytest.mark.parametrize(
    ("run", "words"),
    [("raw", "was not evaluated yet: `covey evaluate"), ("bare", "trained without validation data")],
)
def test_no_temperature_to_use(place, capsys, run, words):
    assert main(["predict", str(place / run), str(place / "new.csv"), "--temperature", "pooled"]) == 2
    assert words in capsys.readouterr().err


def test_a_service_of_some_members_has_no_temperature(place, capsys):
    pytest.importorskip("fastapi")
    assert main(["serve", str(place / "run"), "--anytime", "--temperature", "pooled", "--port", "0"]) == 2
    assert "--anytime answers with some" in capsys.readouterr().err
