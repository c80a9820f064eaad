"""covey predict on inputs that someone got wrong, or made to do harm; one small run serves all tests."""

import csv
import io
import json
import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from covey.calibration import Conformal
from covey.cli.main import main
from covey.cli.predict import _as_csv, prediction_rows
from covey.combine import Prediction

CLASSES = ("-2", "=1+1")  # what a spreadsheet takes for a number and for a formula


def picture(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), level).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run that was trained on 40 small images of two classes."""
    folder = tmp_path_factory.mktemp("predict")
    for k, name in enumerate(CLASSES):
        for i in range(20):
            picture(folder / "images" / name / f"{i}.png", 200 * k + i)
    words = ["train", "multi-head", "--members", "2", "--data", str(folder / "images"), "--network", "mlp"]
    words += ["--network-option", "hidden=[8]", "--epochs", "1", "--batch", "16", "--no-progress"]
    show = warnings.showwarning
    assert main([*words, "--no-evaluate", "--folder", str(folder / "run")]) == 0
    yield folder
    warnings.showwarning = show


@pytest.fixture
def predict(place, tmp_path, capsys):
    """Runs the command on an array or a path; returns its exit code, what it printed and what it complained about."""

    def run(given, *words):
        if isinstance(given, np.ndarray):
            np.save(tmp_path / "x.npy", given)
            given = tmp_path / "x.npy"
        code = main(["predict", str(place / "run"), str(given), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_several_sources_and_none(place, tmp_path, capsys):
    picture(tmp_path / "one.png", 10)
    picture(tmp_path / "more" / "two.png", 220)
    np.save(tmp_path / "x.npy", images(2))
    sources = [str(tmp_path / name) for name in ("one.png", "more", "x.npy")]
    assert main(["predict", str(place / "run"), *sources]) == 0
    together = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    apart = []
    for source in sources:
        assert main(["predict", str(place / "run"), source]) == 0
        apart += csv.DictReader(io.StringIO(capsys.readouterr().out))
    one, more, x = sources
    assert [row.pop("input") for row in together] == [one, f"{more}{os.sep}two.png", f"{x}: 0", f"{x}: 1"]
    assert [row.pop("input") for row in apart] == ["one.png", "two.png", "0", "1"]
    assert together == apart
    assert main(["predict", str(place / "run")]) == 2
    assert "covey predict needs INPUTS" in capsys.readouterr().err


def images(count=3):
    return np.random.default_rng(0).random((count, 8, 8)).astype(np.float32)


def refused(answer, *words):
    code, out, err = answer
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_good_images(predict):
    code, out, _ = predict(images())
    assert code == 0
    assert len(list(csv.DictReader(io.StringIO(out)))) == 3


@pytest.mark.parametrize("batch", ["0", "-3"])
def test_batches_of_nothing(predict, batch):
    refused(predict(images(), "--batch", batch), f"--batch is a whole number of at least 1; got {batch}")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (images(0), "holds no samples; expected at least one"),
        (np.array(["a", "b"]), "x holds words (<U1); expected numbers"),
        (np.full((2, 8, 8), "a"), "x holds words"),
        (np.array(3.0), "x has shape (); expected (N, D)"),
        (np.zeros(8), "x has shape 8"),
        (np.zeros((2, 8)), "has shape 2 x 8; the network was trained on inputs of 1 x 8 x 8"),
        (np.zeros((2, 8, 8), complex), "elements of type complex128"),
    ],
)
def test_arrays_that_are_no_inputs(predict, array, words):
    refused(predict(array), words)


def test_numbers_that_are_not_finite(predict):
    x = images(9)
    x[4, 1, 1] = np.nan
    refused(predict(x), "missing (NaN), infinite or too large values")
    refused(predict(np.full((2, 8, 8), 1e300)), "missing (NaN), infinite or too large values")


def test_predictions_that_are_not_finite_name_their_inputs_over_all_batches(predict, tmp_path):
    x = images(9)
    x[[4, 7]] = 3e38
    refused(predict(x, "--batch", "2"), "NaN or infinite for 2 of 9 inputs: 4, 7.", "too large")
    x[:] = 3e38
    refused(predict(x, "--out", str(tmp_path / "a.json")), "9 of 9 inputs: 0, 1, 2, 3, 4 and 4 more")
    assert not (tmp_path / "a.json").exists()


def test_json_is_json(predict, tmp_path):
    assert predict(images(), "--out", str(tmp_path / "a.json"))[0] == 0
    rows = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert {row["prediction"] for row in rows} <= set(CLASSES)


def test_no_cell_of_a_csv_is_a_formula(predict, tmp_path):
    harmful = ["=HYPERLINK(1).png", "+1.png", "-cmd.png", "@SUM(A1).png", "\tx.png", "\rx.png", "\nx.png"]
    for name in [*harmful, "plain.png"]:
        picture(tmp_path / "new" / name, 3)
    assert predict(tmp_path / "new", "--out", str(tmp_path / "a.csv"))[0] == 0
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["input"] for row in rows) == sorted(["'" + name for name in harmful] + ["plain.png"])
    for row in rows:
        assert row["prediction"] in ("-2", "'=1+1"), "a number stays one, a formula is defused"
        assert float(row["probability"]) > 0
    assert predict(tmp_path / "new", "--out", str(tmp_path / "a.json"))[0] == 0
    names = {row["input"] for row in json.loads((tmp_path / "a.json").read_text())}
    assert names == {*harmful, "plain.png"}, "nothing computes JSON"


@given(st.text(st.characters(codec="utf-8"), max_size=12) | st.floats(allow_nan=False))
def test_any_cell_is_a_number_or_no_formula(cell):
    (row,) = csv.DictReader(io.StringIO(_as_csv([{"input": cell}]), newline=""))
    found = row["input"]
    if isinstance(cell, float):
        assert float(found) == cell
    elif found.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        float(found)
    else:
        assert found.removeprefix("'") == cell.removeprefix("'")


def test_a_pipe_as_an_image(predict, tmp_path):
    os.mkfifo(tmp_path / "a.png")
    refused(predict(tmp_path / "a.png"), "a.png is no ordinary file")


def test_conformal_sets_are_a_column() -> None:
    sure, unsure = [4.0, 0.0, 0.0], [1.0, 0.9, -4.0]
    answer = Prediction(torch.tensor([[sure, unsure]]), conformal=Conformal("threshold", 0.1, 0.7))
    rows = prediction_rows(["a", "b"], answer, {"classes": ["cat", "dog", "eel"]}, "classification")
    assert [row["set"] for row in rows] == ["cat", "cat; dog"]
