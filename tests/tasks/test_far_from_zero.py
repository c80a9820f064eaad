"""Targets that differ by far less than their mean, such as dates in seconds: float32 cannot tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey.cli.predict import prediction_rows
from covey.data import Data, load
from covey.deploy import select_members
from covey.deploy.distilling import _mixture
from covey.ensemble import Ensemble
from covey.scores import Evaluation, Record
from covey.serving.model import Model

FAR = 1.7e9
LEVELS = covey.Quantiles((0.1, 0.5, 0.9))


def tables(folder: Path) -> tuple[Data, Data]:
    """The same table twice; in the second, FAR is added to the target."""
    generator = np.random.default_rng(0)
    x = generator.random(200)
    y = np.round(5 * x + generator.standard_normal(200), 4)
    found = []
    for name, shift in (("near", 0.0), ("far", FAR)):
        rows = [f"{a!r},{b + shift:.4f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["x,target", *rows]))
        found.append(load(str(folder / f"{name}.csv"), target="target"))
    return found[0], found[1]


def ensemble(task: Any) -> Ensemble:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2 if task == "gaussian" else 3))
    return covey.convert(network, covey.DeepEnsemble(members=3), example=torch.zeros(2, 1), task=task).eval()


@pytest.mark.parametrize("task", ["gaussian", LEVELS])
def test_scores_are_those_of_targets_near_zero(task: Any, tmp_path: Path) -> None:
    near, far = tables(tmp_path)
    made = ensemble(task)
    expected = covey.evaluate(made, near).scores
    found = covey.evaluate(made, far, folder=tmp_path / "run")
    again = Evaluation.load(tmp_path / "run").record
    assert again is not None
    for scores in (found.scores, covey.scores.score(again).scores):
        assert scores["ensemble"] == pytest.approx(expected["ensemble"], rel=1e-5)
        assert scores["diversity"] == pytest.approx(expected["diversity"], rel=1e-5)
        for name, each in expected["calibration"].items():
            assert scores["calibration"][name] == pytest.approx(each, rel=1e-5)


@pytest.mark.parametrize("task", ["gaussian", LEVELS])
def test_answers_are_told_exactly(task: Any, tmp_path: Path) -> None:
    made, told, served = ensemble(task), [], []
    for data in tables(tmp_path):
        answer = made.predict(data.test.inputs)
        told.append(prediction_rows(["a"] * len(data.test), answer, data.record, made.task)[0])
        served.append(Model(ensemble=made, record=data.record).run(data.test.inputs, each=True))
    told[1]["prediction"] -= FAR
    assert told[1]["prediction"] == pytest.approx(told[0]["prediction"], abs=1e-5)
    place = "mean" if task == "gaussian" else "quantiles"
    for name in (place, "members"):
        assert np.array(served[1][name]) - FAR == pytest.approx(np.array(served[0][name]), abs=1e-5)
    assert served[1]["epistemic"] == pytest.approx(served[0]["epistemic"], rel=1e-5)


def test_members_are_chosen_as_for_targets_near_zero(tmp_path: Path) -> None:
    made = ensemble("gaussian")
    near, far = (select_members(made, data, keep=2, score="nll") for data in tables(tmp_path))
    assert near.members == far.members
    assert near.scores == pytest.approx(far.scores, rel=1e-5)


def test_a_teachers_variance_is_positive() -> None:
    mean = torch.tensor([[[1e5]], [[1e5 + 0.5]]])
    found: Tensor = _mixture(torch.cat([mean, torch.full_like(mean, 0.25)], -1))
    assert found.tolist() == [[pytest.approx(1e5 + 0.25), pytest.approx(0.3125)]]


def test_a_record_keeps_its_precision(tmp_path: Path) -> None:
    outputs = FAR + torch.rand(2, 5, 1, dtype=torch.float64)
    record = Record(outputs=outputs, targets=outputs[0], task="regression")
    record.save(tmp_path / "outputs.npz")
    assert torch.equal(Record.load(tmp_path / "outputs.npz").outputs, outputs)


def test_levels_that_are_close_have_columns_of_their_own() -> None:
    asked = covey.Quantiles((0.5, 0.9999991, 0.9999999))
    record = {"target_normalisation": None}
    rows = prediction_rows(["a"], asked.answer(torch.tensor([[[1.0, 2.0, 3.0]]])), record, str(asked))
    assert [rows[0][f"q({level})"] for level in asked.levels] == [1.0, 2.0, 3.0]
