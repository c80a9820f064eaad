"""Conformal intervals against their guarantee, and regressions of several outputs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import covey
from covey.calibration import Intervals, from_dict
from covey.cli.main import main
from covey.cli.serve import ServeFlags, _application
from covey.combine import Regression
from covey.data import load
from covey.errors import DataError, EvaluationError, OptionError
from covey.scores import Evaluation, Record, fit_conformal, fit_intervals, score
from covey.scores.calibration import interval_scores
from covey.serving import Limits


def drawn(samples: int, generator: torch.Generator) -> tuple[Regression, torch.Tensor]:
    """An answer whose deviation is half of the true one, and targets whose noise grows with x."""
    x = torch.rand(samples, 1, generator=generator)
    noise = (0.2 + 2 * x) * torch.randn(samples, 1, generator=generator)
    mean = (3 * x)[None]
    return Regression(mean, (0.1 + x).square()[None]), 3 * x + noise


@pytest.mark.parametrize("kind", ["absolute", "normalised"])
def test_intervals_hold_what_they_promise(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    covered = []
    for _ in range(300):
        known, known_targets = drawn(50, generator)
        fitted = fit_intervals(known, known_targets, kind=kind, alpha=0.1)
        new, targets = drawn(100, generator)
        covered.append(interval_scores(fitted, new, targets)["coverage"])
    # exactly 46 / 51 on average: the 46th of 50 sorted scores; a draw's own coverage deviates by 0.04
    assert np.mean(covered) == pytest.approx(46 / 51, abs=0.01)


def test_intervals_are_not_fitted_on_missing_targets() -> None:
    known, targets = drawn(20, torch.Generator().manual_seed(0))
    targets[3] = torch.nan
    with pytest.raises(EvaluationError, match="some targets or answers are NaN"):
        fit_intervals(known, targets)


def test_normalised_intervals_follow_the_noise_and_score_better() -> None:
    generator = torch.Generator().manual_seed(1)
    known, known_targets = drawn(2000, generator)
    new, targets = drawn(2000, generator)
    found = {}
    for kind in ("absolute", "normalised"):
        fitted = fit_intervals(known, known_targets, kind=kind)
        found[kind] = interval_scores(fitted, new, targets)
    assert found["normalised"]["interval_score"] < 0.9 * found["absolute"]["interval_score"]
    low, high = fit_intervals(known, known_targets).around(new.mean, new.std)
    assert (high - low).std() > 0.5


def test_interval_score_by_hand() -> None:
    intervals = Intervals("absolute", 0.5, (1.0,))
    answer = Regression(torch.zeros(1, 3, 1))
    found = interval_scores(intervals, answer, torch.tensor([[0.5], [3.0], [-1.5]]))
    assert found == {
        "coverage": pytest.approx(1 / 3),
        "width": 2.0,
        "interval_score": pytest.approx((2 + 10 + 4) / 3),
    }


def regression(outputs: int = 1) -> covey.Ensemble:
    torch.manual_seed(0)
    return covey.convert(
        nn.Linear(2, 2 * outputs), covey.DeepEnsemble(members=2), example=torch.zeros(2, 2), task="gaussian"
    )


def test_an_ensemble_carries_its_intervals(tmp_path: Path) -> None:
    ensemble, x = regression(outputs=2), torch.randn(40, 2)
    answer = ensemble.predict(x)
    with pytest.raises(OptionError, match="no conformal intervals yet: fit them on validation data"):
        _ = answer.low
    y = answer.mean + torch.randn(40, 2)
    ensemble.conformal = fit_intervals(answer, y)
    assert len(ensemble.conformal.quantiles) == 2
    covey.save(ensemble, tmp_path / "stored")
    again = covey.load(tmp_path / "stored", network=nn.Linear(2, 4)).predict(x)
    low, high = ensemble.conformal.around(answer.mean, answer.std)
    torch.testing.assert_close(again.low, low)
    torch.testing.assert_close(again.high, high)
    inside = (y >= again.low) & (y <= again.high)
    assert inside.float().mean(0).min() >= 0.9


def test_sets_are_not_for_numbers() -> None:
    ensemble = regression()
    ensemble.conformal = fit_conformal(torch.rand(30, 3).softmax(-1), torch.randint(3, (30,)))
    with pytest.raises(
        OptionError, match="Conformal were set as conformal, which the task 'gaussian' has no use for"
    ):
        ensemble.predict(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("samples", "options", "told"),
    [
        (8, {}, "conformal intervals with alpha 0.1 need 9 validation samples or more, got 8"),
        (20, {"kind": "wide"}, "expected 'absolute' or 'normalised', got 'wide'"),
        (20, {"alpha": 1.0}, "alpha: expected between 0 and 1"),
    ],
)
def test_bad_intervals(samples: int, options: dict, told: str) -> None:
    answer = Regression(torch.randn(2, samples))
    with pytest.raises(EvaluationError, match=told):
        fit_intervals(answer, torch.randn(samples), **options)


def test_members_that_agree_have_no_deviation_to_normalise_by() -> None:
    with pytest.raises(EvaluationError, match="use kind='absolute'"):
        fit_intervals(Regression(torch.zeros(2, 20)), torch.randn(20))
    with pytest.raises(EvaluationError, match=r"expected shape \(20,\), got \(19,\)"):
        fit_intervals(Regression(torch.randn(2, 20)), torch.randn(19))


def test_stored_intervals_come_back() -> None:
    intervals = Intervals("normalised", 0.1, (1.5, 2.0))
    assert from_dict(intervals.to_dict()) == intervals
    with pytest.raises(EvaluationError, match="fitted for 2 outputs, and there are 3"):
        intervals.around(torch.zeros(4, 3), torch.ones(4, 3))


def test_evaluation_fits_and_scores_intervals(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 100, 2, generator=generator)
    record = Record(
        outputs,
        torch.randn(100, 2, generator=generator),
        task="regression",
        validation=(outputs[:, :40], torch.randn(40, 2, generator=generator)),
    )
    found = score(record)
    assert set(found.calibration) == {"absolute", "normalised"}
    known = Regression(outputs[:, :40])
    assert found.calibration["absolute"] == fit_intervals(known, record.validation[1], kind="absolute")
    found.save(tmp_path)
    again = Evaluation.load(tmp_path)
    assert again.calibration == found.calibration
    assert score(Record.load(tmp_path / "outputs.npz")).scores == found.scores


@pytest.mark.slow
def test_several_outputs_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3)).astype(np.float32)
    y = np.stack((x[:, 0] + 0.1 * generator.normal(size=200), 1000 + 100 * x[:, 1]), 1)
    np.savez("own.npz", x=x, y=y)
    data = load("own.npz")
    assert data.outputs == 2
    assert data.target_normalisation is not None
    assert data.target_normalisation.std[1] == pytest.approx(100, rel=0.2)
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "2",
        "--data",
        "own.npz",
        "--epochs",
        "25",
        "--batch",
        "20",
    ]
    options = ["--optimizer", "adam", "--lr", "0.01", "--no-progress", "--folder", "run"]
    assert main([*words, *options]) == 0
    assert main(["evaluate", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Conformal intervals" in page
    np.save("new.npy", x[:5])
    capsys.readouterr()
    assert main(["predict", "run", "new.npy"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    found = np.array([float(row["prediction[1]"]) for row in rows])
    assert np.abs(found - y[:5, 1]).max() < 60, "in the target's own unit"
    assert "std[0]" in rows[0]
    fitted = Evaluation.load("run").calibration["normalised"]
    for row in rows:
        for k in (0, 1):
            reach = fitted.quantiles[k] * float(row[f"std[{k}]"])
            assert float(row[f"high[{k}]"]) == pytest.approx(float(row[f"prediction[{k}]"]) + reach, rel=1e-4)


def test_one_network_has_intervals_of_one_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 2)).astype(np.float32)
    np.savez("own.npz", x=x, y=1000 + 100 * x[:, 0])
    np.save("new.npy", x[:3])
    words = "train single --data own.npz --epochs 2 --loss mse --no-progress --folder run"
    assert main(words.split()) == 0
    fitted = Evaluation.load("run").calibration["absolute"]
    served = _application(ServeFlags(folder="run"), Limits())
    with TestClient(served) as client:
        of_service = client.post("/predict", json={"rows": x[:3].tolist()}).json()["predictions"]
        assert {"low", "high"} <= set(client.get("/metadata").json()["answers"])
    assert main(["export", "run"]) == 0
    for source in ("run", "run/ensemble.onnx"):
        capsys.readouterr()
        assert main(["predict", source, "new.npy"]) == 0
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        for row, served_row in zip(rows, of_service, strict=True):
            low, high = float(row["low"]), float(row["high"])
            assert high - low == pytest.approx(2 * fitted.quantiles[0], rel=1e-4), "in the target's own unit"
            assert (low, high) == pytest.approx((served_row["low"], served_row["high"]), rel=1e-4)
    (tmp_path / "run" / "evaluation.json").unlink()
    assert main(["predict", "run", "new.npy"]) == 0
    assert "low" not in capsys.readouterr().out


def test_several_numbers_and_labels_are_adapted() -> None:
    x = torch.randn(30, 2)
    numbers = covey.data.adapt((x, torch.randn(30, 3)))
    assert (numbers.task, numbers.outputs) == ("regression", 3)
    labels = covey.data.adapt((x, torch.randint(2, (30, 4))), task="multilabel")
    assert labels.classes == ("label 0", "label 1", "label 2", "label 3")
    assert labels.train.targets.is_floating_point()
    masks = torch.randint(3, (30, 4, 4))
    masks[:, 0] = 255
    pixels = covey.data.adapt((torch.randn(30, 1, 4, 4), masks), task="segmentation")
    assert (pixels.task, pixels.outputs) == ("segmentation", 3)
    with pytest.raises(DataError, match=r"classes of pixels are whole numbers, \(N, H, W\)"):
        covey.data.adapt((x, torch.randn(30, 3)), task="segmentation")
    with pytest.raises(DataError, match=r"have a column each, \(N, L\)"):
        covey.data.adapt((x, torch.randint(2, (30,))), task="multilabel")
    with pytest.raises(OptionError, match="task is one of 'classification', 'regression', 'segmentation'"):
        covey.data.adapt((x, torch.randn(30)), task="ranking")
