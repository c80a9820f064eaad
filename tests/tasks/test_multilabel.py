"""Several labels may be true: answers, scores, training and the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn

import covey
from covey.calibration import Temperature
from covey.cli.main import main
from covey.combine import MultiLabel
from covey.data import load
from covey.errors import DataError, EvaluationError, OptionError
from covey.scores import Evaluation, Record, evaluate, score
from covey.scores.multilabel import calibration_error


def made_up(members: int = 3, samples: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(members, samples, 4, generator=generator)
    targets = (torch.rand(samples, 4, generator=generator) < logits.mean(0).sigmoid()).float()
    return logits, targets


def test_scores_against_scikit_learn() -> None:
    logits, targets = made_up()
    found = score(Record(logits, targets, task="multilabel"))
    probs = logits.sigmoid().mean(0).numpy()
    each = found.scores["per_label"]
    assert each["auroc"] == pytest.approx(roc_auc_score(targets, probs, average=None).tolist())
    assert each["ap"] == pytest.approx(average_precision_score(targets, probs, average=None).tolist())
    assert each["samples"] == targets.sum(0).tolist()
    ensemble = found.scores["ensemble"]
    assert ensemble["mean_ap"] == pytest.approx(average_precision_score(targets, probs, average="macro"))
    assert ensemble["mean_auroc"] == pytest.approx(np.mean(each["auroc"]))
    assert ensemble["f1"] == pytest.approx(f1_score(targets, probs > 0.5, average="micro"))
    assert ensemble["brier"] == pytest.approx(np.mean((probs - targets.numpy()) ** 2), abs=1e-6)
    assert ensemble["nll"] == pytest.approx(
        float(F.binary_cross_entropy(torch.tensor(probs), targets)), abs=1e-6
    )
    assert ensemble["exact"] == pytest.approx(((probs > 0.5) == (targets.numpy() > 0)).all(1).mean())
    assert found.scores["members"][0]["mean_ap"] == pytest.approx(
        average_precision_score(targets, logits[0].numpy(), average="macro")
    )
    said = logits.numpy() > 0
    pairs = [np.mean(said[i] != said[j]) for i in range(3) for j in range(3) if i != j]
    assert found.scores["diversity"]["disagreement"] == pytest.approx(np.mean(pairs))
    again = Evaluation.from_dict(found.to_dict())
    assert again.scores == found.scores
    assert "3 members, 200 test samples, 4 labels" in str(found)


def test_calibration_error_by_loops() -> None:
    generator = np.random.default_rng(0)
    probs = generator.random(300)
    true = generator.random(300) < probs**2
    total = 0.0
    for left in range(15):
        inside = (probs >= left / 15) & (probs < (left + 1) / 15)
        total += abs(probs[inside].mean() - true[inside].mean()) * inside.mean()
    found = calibration_error(torch.tensor(probs), torch.tensor(true))
    assert found == pytest.approx(total)
    assert calibration_error(torch.rand(5), torch.ones(5)) is None


def test_uncertainty_is_said_for_each_label() -> None:
    logits, _ = made_up(members=5)
    answer = MultiLabel(logits.double())
    by_hand = []
    for member in logits.double():
        by_hand.append(torch.distributions.Bernoulli(logits=member).entropy())
    expected = torch.stack(by_hand).mean(0)
    torch.testing.assert_close(answer.expected_entropy, expected)
    total = torch.distributions.Bernoulli(probs=answer.probs).entropy()
    torch.testing.assert_close(answer.mutual_information, total - expected)
    torch.testing.assert_close(answer.log_odds.sigmoid(), answer.probs)
    extreme = MultiLabel(torch.full((2, 1, 1), 200.0))
    assert extreme.log_odds.item() == pytest.approx(200)
    assert "label" in str(answer)
    assert repr(answer) == "MultiLabel(members=5, batch=(200,), labels=4)"


def test_a_label_that_is_never_true_is_left_out_and_noted() -> None:
    logits, targets = made_up()
    targets[:, 2] = 0
    found = score(Record(logits, targets, task="multilabel"))
    assert found.scores["per_label"]["ap"][2] is None
    assert found.scores["ensemble"]["mean_ap"] is not None
    assert any("always or never true" in note and "2" in note for note in found.notes)


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (torch.zeros(200), r"several labels may be true, so expected targets of shape \(200, 4\)"),
        (torch.full((200, 4), 0.3), "are 0 or 1; some are neither"),
    ],
)
def test_bad_targets(targets: torch.Tensor, told: str) -> None:
    with pytest.raises(EvaluationError, match=told):
        Record(made_up()[0], targets, task="multilabel")


def converted() -> covey.Ensemble:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    return covey.convert(network, covey.DeepEnsemble(members=2), example=torch.zeros(2, 3), task="multilabel")


def test_an_ensemble_answers_trains_and_is_stored(tmp_path: Path) -> None:
    ensemble, x = converted(), torch.randn(20, 3)
    y = (x @ torch.randn(3, 4) > 0).float()
    found = evaluate(ensemble, (x, y))
    assert found.about["task"] == "multilabel"
    outputs = ensemble(x)
    expected = sum(F.binary_cross_entropy_with_logits(out, y) for out in outputs)
    assert ensemble.loss(x, y).item() == pytest.approx(expected.item(), abs=1e-5)
    covey.save(ensemble, tmp_path / "stored")
    again = covey.load(
        tmp_path / "stored", network=nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    )
    assert isinstance(again.predict(x), MultiLabel)
    with pytest.raises(DataError, match="in row 0"):
        ensemble.predict(torch.full((1, 3), torch.nan))
    with pytest.raises(EvaluationError, match="the data are for classification"):
        evaluate(ensemble, (x, torch.zeros(20).long()), task="classification")
    ensemble.temperature = Temperature("pooled", (2.0,))
    with pytest.raises(OptionError, match="a temperature calibrates a classification"):
        ensemble.predict(x)


def test_arrays_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5)).astype(np.float32)
    y = (x @ generator.normal(size=(5, 3)) > 0).astype(int)
    np.savez("own.npz", x=x, y=y)
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "2",
        "--data",
        "own.npz",
        "--epochs",
        "8",
        "--batch",
        "20",
    ]
    assert main([*words, "--lr", "0.1", "--no-progress", "--folder", "run"]) == 0
    out = capsys.readouterr().out
    assert "mean_ap" in out
    assert main(["evaluate", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Mean AP" in page
    assert "AUROC / average precision / ECE in % by label" in page
    assert Evaluation.load("run").scores["ensemble"]["mean_ap"] > 0.8
    np.save("new.npy", x[:4])
    capsys.readouterr()
    assert main(["predict", "run", "new.npy"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {"prediction", "entropy", "mutual_information", "p(label 0)", "p(label 2)"} <= rows[0].keys()
    assert main(["train", "single", "--data", "own.npz", "--loss", "cross-entropy", "--folder", "no"]) != 0
    assert "have the loss 'binary'" in capsys.readouterr().err


def test_arrays_that_are_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((9, 2)), y=np.full((9, 2), 3))
    with pytest.raises(DataError, match="several may be true are 0 or 1; y has other values"):
        load(tmp_path / "own.npz")
