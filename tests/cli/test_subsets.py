"""Runs on some of the data: all classes are there, and a resumed run has the same samples or is refused."""

import json
import warnings

import pytest
from PIL import Image

from covey.cli.main import main


@pytest.fixture
def covey(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder with sorted images of three classes; returns its exit code and its complaints."""
    for k, name in enumerate(("ape", "bee", "cow")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(30):
            Image.new("L", (4, 4), 80 * k + i).save(tmp_path / "images" / name / f"{i:02}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words):
        code = main(words)
        return code, capsys.readouterr().err

    return run


def train(samples, *more):
    words = ("train", "single", "--data", "images", "--network", "mlp", "--network-option", "hidden=[4]")
    words += ("--epochs", "1", "--no-progress", "--folder", "run", "--samples", str(samples))
    return *words, *more


def test_samples_are_drawn_from_all_classes_and_a_resumed_run_has_the_same(covey, tmp_path):
    assert covey(*train(12))[0] == 0
    record = json.loads((tmp_path / "run" / "settings.json").read_text())["record"]
    assert record["counts"] == {"train": 12, "validation": 9, "test": 12}
    scores = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert not any("All test labels" in note for note in scores["notes"])
    assert covey(*train(12, "--resume"))[0] == 0
    code, err = covey(*train(15, "--resume"))
    assert code == 2
    assert "was written with other settings: data.indices_sha256" in err
    code, err = covey("evaluate", "run", "--limit", "6", "--no-report")
    assert code == 0
    scores = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert not any("All test labels" in note for note in scores["notes"])


def test_no_samples(covey):
    code, err = covey(*train(0))
    assert code == 2
    assert "at least one sample of each part must stay; got 0" in err


def test_columns_and_images_can_be_left_out(covey, tmp_path):
    rows = [f"{i},{i % 2},Somebody wrote this about row {i}" for i in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,comment", *rows]))
    code, err = covey("data", "a.csv", "--target", "y")
    assert code == 2
    assert "--ignore comment" in err
    assert covey("data", "a.csv", "--target", "y", "--ignore", "comment")[0] == 0
    (tmp_path / "images" / "ape" / "00.png").write_bytes(b"rubbish")
    code, err = covey("data", "images")
    assert code == 2
    assert "--skip-bad" in err
    assert covey("data", "images", "--skip-bad")[0] == 0


def test_an_interrupted_run_can_be_shown(covey, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("covey.train.engine.save_ensemble", stop)
    words = [word for word in train(12) if word not in ("--network", "mlp", "--network-option", "hidden=[4]")]
    assert covey(*words)[0] == 130
    assert main(("show", "run")) == 0
    out = capsys.readouterr().out
    assert "training  not finished: `covey train --resume run` goes on" in out
    assert "network   mlp" in out  # by name, though none was given
    assert "accuracy" in out  # the history
