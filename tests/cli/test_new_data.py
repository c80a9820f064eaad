"""Runs scored on data of one's own: other samples, out-of-distribution inputs, a part of the test data."""

import csv
import json
import math
import warnings

import numpy as np
import pytest
from PIL import Image

from covey.cli.main import main

QUICK = ("--network", "mlp", "--network-option", "hidden=[4]", "--no-progress", "--run", "loop")


def pictures(folder, count, level, size=4):
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("L", (size, size), level + i).save(folder / f"{i:02}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images of three classes, a table, and a run of each."""
    folder = tmp_path_factory.mktemp("new")
    show = warnings.showwarning
    for k, name in enumerate(("ape", "bee", "cow")):
        pictures(folder / "images" / name, 30, 80 * k)
    pictures(folder / "elsewhere" / "deep", 5, 100, size=7)
    words = ["train", "single", "--data", str(folder / "images"), "--epochs", "1", *QUICK]
    assert main([*words, "--ood", str(folder / "elsewhere"), "--folder", str(folder / "run")]) == 0
    rows = [f"{i},{i % 3},{2 * i + i % 3}.5" for i in range(60)]
    (folder / "rows.csv").write_text("\n".join(["a,b,y", *rows]))
    words = ["train", "single", "--data", str(folder / "rows.csv"), "--target", "y", "--epochs", "2", *QUICK]
    assert main([*words, "--folder", str(folder / "numbers")]) == 0
    yield folder
    warnings.showwarning = show


@pytest.fixture
def covey(place, monkeypatch, capsys):
    """Runs a command there; returns exit code, output and complaints."""
    monkeypatch.chdir(place)

    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def scores(path):
    return json.loads((path / "evaluation.json").read_text())


def test_a_folder_of_images_is_an_out_of_distribution_set(place, covey):
    assert scores(place / "run")["about"]["ood"] == {"elsewhere": 5}
    np.save(place / "noise.npy", np.zeros((3, 4, 4), np.uint8))
    code, _, err = covey("evaluate", "run", "--ood", "noise.npy", "--limit", 9, "--no-report")
    assert code == 0, err
    assert scores(place / "run" / "evaluations" / "limit-9")["about"]["ood"] == {"noise.npy": 3}
    code, _, err = covey("evaluate", "run", "--ood", "nowhere", "--no-report")
    assert code == 2
    assert "'nowhere' is neither a known data set nor a file or folder that exists" in err


def test_a_part_of_the_data_does_not_replace_the_scores(place, covey):
    before = (place / "run" / "evaluation.json").read_bytes()
    code, out, err = covey("evaluate", "run", "--limit", 6, "--no-report")
    assert code == 0, err
    assert "the run's own scores stay as they are" in out
    assert (place / "run" / "evaluation.json").read_bytes() == before
    assert scores(place / "run" / "evaluations" / "limit-6")["about"]["samples"] == 6


def test_new_images(place, covey):
    pictures(place / "later" / "bee", 4, 90, size=6)
    pictures(place / "later" / "cow", 3, 170, size=6)
    before = (place / "run" / "evaluation.json").read_bytes()
    code, out, err = covey("evaluate", "run", "--data", "later", "--ood", "elsewhere", "--no-report")
    assert code == 0, err
    assert (place / "run" / "evaluation.json").read_bytes() == before
    found = scores(place / "run" / "evaluations" / "later")
    assert (found["about"]["samples"], found["about"]["ood"]) == (7, {"elsewhere": 5})
    _, out, _ = covey("predict", "run", "later")
    right = [row["input"].startswith(row["prediction"]) for row in csv.DictReader(out.splitlines())]
    assert found["scores"]["ensemble"]["accuracy"] == pytest.approx(sum(right) / 7)
    pictures(place / "later" / "dog", 2, 10)
    code, _, err = covey("evaluate", "run", "--data", "later", "--no-report")
    assert code == 2
    assert "classes that the network was not trained on: 'dog'; it knows 'ape', 'bee', 'cow'" in err


def test_new_rows(place, covey):
    answers = [7.0, 30.5, 55.0]
    rows = [f"{a},{b},{y}" for a, b, y in zip((3, 14, 26), (0, 2, 1), answers, strict=True)]
    (place / "later.csv").write_text("\n".join(["a,b,y", *rows]))
    code, _, err = covey("evaluate", "numbers", "--data", "later.csv", "--no-report")
    assert code == 0, err
    _, out, _ = covey("predict", "numbers", "later.csv")
    predicted = [float(row["prediction"]) for row in csv.DictReader(out.splitlines())]
    by_hand = math.sqrt(sum((p - y) ** 2 for p, y in zip(predicted, answers, strict=True)) / 3)
    found = scores(place / "numbers" / "evaluations" / "later")
    assert found["scores"]["ensemble"]["rmse"] == pytest.approx(by_hand, rel=1e-5)
    (place / "other.csv").write_text("a,b,z\n1,2,3\n")
    code, _, err = covey("evaluate", "numbers", "--data", "other.csv", "--no-report")
    assert code == 2
    assert "has no column 'y', which the network predicts" in err


def test_known_sets_are_out_of_distribution_of_new_data_too(place, covey):
    pictures(place / "newer" / "bee", 4, 90)
    code, _, err = covey("evaluate", "run", "--data", "newer", "--ood", "digits", "elsewhere", "--no-report")
    assert code == 0, err
    found = scores(place / "run" / "evaluations" / "newer")["about"]["ood"]
    assert found == {"digits": 1797, "elsewhere": 5}
    code, _, err = covey("evaluate", "run", "--data", "newer", "--ood", "elsewhere", "./elsewhere")
    assert code == 2
    assert "two out-of-distribution sets are called 'elsewhere'" in err


def test_what_a_table_was_taken_for_is_said(place, covey):
    rows = [f"{i},{i % 3},{i % 5}" for i in range(60)]
    (place / "stars.csv").write_text("\n".join(["id,b,stars", *rows]))
    words = ("--data", "stars.csv", "--target", "stars", "--epochs", "1", *QUICK)
    told = (
        "'stars': classification, since it has 5 whole values only (say --task regression if it is a number)"
    )
    code, out, err = covey("train", "single", *words, "--folder", "stars")
    assert code == 0, err
    assert f"note on the data: target {told}" in out
    assert "column 'id' numbers the rows; if it is no measurement, leave it out (--ignore id)" in out
    _, out, _ = covey("data", "stars.csv", "--target", "stars")
    assert f"note           target {told}" in out
    _, out, _ = covey("compare", "--methods", "single", "--seeds", 0, *words, "--folder", "compared")
    assert out.count(told) == 1


def test_classes_that_another_program_wrote_as_floats(place, covey):
    rows = [f"{i},{i % 3},{i % 5}" for i in range(60)]
    (place / "whole.csv").write_text("\n".join(["a,b,y", *rows]))
    words = ("--data", "whole.csv", "--target", "y", "--epochs", "1", *QUICK)
    assert covey("train", "single", *words, "--folder", "whole")[0] == 0
    (place / "floats.csv").write_text("\n".join(["a,b,y", *(f"{row}.0" for row in rows)]))
    assert covey("evaluate", "whole", "--data", "whole.csv", "--no-report")[0] == 0
    code, _, err = covey("evaluate", "whole", "--data", "floats.csv", "--no-report")
    assert code == 0, err
    runs = place / "whole" / "evaluations"
    assert scores(runs / "floats")["scores"] == scores(runs / "whole")["scores"]
