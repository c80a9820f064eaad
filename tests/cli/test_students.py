"""covey distill: students are runs like others, and learn from the teacher alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import covey
from covey.cli.main import main
from covey.cli.reading import read_data, read_ensemble

QUIET = ["--no-progress", "--no-evaluate"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("distill") / "teacher"
    words = ["train", "batch-ensemble", "--members", "3", "--data", "iris", "--network", "mlp"]
    words += ["--network-option", "hidden=[16]", "--epochs", "10", "--folder", str(folder)]
    show = warnings.showwarning
    assert main([*words, *QUIET]) == 0
    yield folder
    warnings.showwarning = show


def test_one_network_learns_the_average(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["distill", str(teacher), "--epochs", "30", "--lr", "0.02", "--no-progress"]
    assert main(words) == 0
    student = teacher.with_name("teacher-single")
    told = capsys.readouterr().out
    assert f"{student}: all 30 epochs are done, 1 member," in told
    assert "test scores:" in told
    data = read_data(teacher)
    x = data.prepare(data.train.inputs)
    goal, found = (read_ensemble(folder).predict(x).probs for folder in (teacher, student))
    assert float((goal - found).abs().mean()) < 0.05
    assert main(["show", str(student)]) == 0
    assert f"teacher   {teacher}" in capsys.readouterr().out
    assert main(["evaluate", str(student), "--no-report"]) == 0
    np.save(teacher.with_name("x.npy"), np.zeros((2, 4)))
    assert main(["predict", str(student), str(teacher.with_name("x.npy"))]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_heads_learn_from_their_own_members(teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["distill", str(teacher), "multi-head", "--network", "mlp", "--network-option", "hidden=[24]"]
    student = teacher.with_name("heads")
    words += ["--folder", str(student), *QUIET]
    assert main([*words, "--epochs", "2"]) == 0
    heads = read_ensemble(student)
    assert heads.members == 3, "as many as the teacher has"
    assert heads.skeleton().head.in_features == 24
    capsys.readouterr()
    assert main(["train", "--resume", str(student)]) == 2
    assert "learns from a teacher; go on with it by the command that began it: covey distill" in (
        capsys.readouterr().err
    )
    again = [
        "train",
        "multi-head",
        "--members",
        "3",
        "--data",
        "iris",
        "--network",
        "mlp",
        "--network-option",
    ]
    again += ["hidden=[24]", "--folder", str(student), "--resume", *QUIET]
    assert main(again) == 2
    assert "would go on with the data's own answers" in capsys.readouterr().err
    assert main([*words, "--epochs", "2", "--resume", "--temperature", "2"]) == 2
    assert "(temperature 1, truth 0), and would go on with" in capsys.readouterr().err
    assert main([*words, "--epochs", "2", "--resume"]) == 0


def test_what_is_refused(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(16, 4)
    quiet = covey.Machine(accelerator="cpu", progress=False)
    network = covey.zoo.create("mlp", features=4, hidden=(4,), classes=2)
    fitted = tmp_path / "fitted"
    covey.fit(network, (x, (x[:, 0] > 0).long()), covey.Recipe(epochs=1), folder=fitted, machine=quiet)
    mistakes = {
        (): "takes the folder of a run that teaches",
        (str(tmp_path / "none"),): "there is no such folder",
        (str(teacher), "multi-haed"): "there is no method 'multi-haed'",
        (str(teacher), "--truth", "2"): "truth is from 0 to 1",
        (str(teacher), "--folder", str(teacher)): "is the teacher's own",
        (str(teacher), "--data", "wine"): "was trained on data with shape 4",
        (str(fitted),): "--data is missing",
    }
    for words, said in mistakes.items():
        assert main(["distill", *words, *(QUIET if words else [])]) == 2
        assert said in capsys.readouterr().err
    assert not teacher.with_name("teacher-multi-haed").exists()
    settings = json.loads((teacher / "settings.json").read_text())
    settings["lesson"] = {"teacher": "x", "temperature": "hot", "truth": 0}
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed" / "settings.json").write_text(json.dumps(settings))
    assert main(["show", str(tmp_path / "changed")]) == 2
    assert "temperature" in capsys.readouterr().err
