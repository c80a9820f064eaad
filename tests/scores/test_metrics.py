from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.scores import metrics


def answers(samples: int = 500, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = 2 * torch.randn(samples, classes, generator=generator)
    logits[torch.arange(samples), labels] += 2
    return logits.log_softmax(-1), labels


def test_against_sklearn_and_numpy() -> None:
    log_probs, labels = answers()
    probs, y = log_probs.exp().double().numpy(), labels.numpy()
    scores = metrics.answer_scores(log_probs, labels, language=True)
    assert scores["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(y, probs.argmax(1)))
    assert scores["top5"] == pytest.approx(sklearn.metrics.top_k_accuracy_score(y, probs, k=5))
    normed = probs / probs.sum(1, keepdims=True)
    assert scores["nll"] == pytest.approx(sklearn.metrics.log_loss(y, normed), rel=1e-5)
    assert scores["bits_per_character"] == pytest.approx(scores["nll"] / math.log(2))
    assert scores["brier"] == pytest.approx(((probs - np.eye(7)[y]) ** 2).sum(1).mean(), rel=1e-5)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_by_hand(bins: int) -> None:
    log_probs, labels = answers()
    probs, y = log_probs.exp().numpy(), labels.numpy()
    confidence, correct = probs.max(1), probs.argmax(1) == y
    expected = 0.0
    for low in np.arange(bins) / bins:
        inside = (confidence > low) & (confidence <= low + 1 / bins)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert metrics.ece(log_probs, labels, bins=bins) == pytest.approx(expected, abs=1e-6)


def test_ece_counts_samples_of_full_confidence() -> None:
    # Half of the samples are wrong at a confidence of exactly 1, so the error is one half.
    log_probs = torch.tensor([[0.0, -200.0]]).repeat(20, 1)
    labels = torch.tensor([0, 1] * 10)
    assert metrics.ece(log_probs, labels) == pytest.approx(0.5)
    assert metrics.adaptive_ece(log_probs, labels, bins=10) == pytest.approx(0.5)
    assert metrics.reliability(log_probs, labels)["accuracy"] == [0.5]


def test_adaptive_ece_by_hand() -> None:
    log_probs, labels = answers(497)
    probs, y = log_probs.exp().double().numpy(), labels.numpy()
    order = np.argsort(probs.max(1), kind="stable")
    expected = sum(
        abs((probs[part].argmax(1) == y[part]).mean() - probs[part].max(1).mean()) * len(part) / len(y)
        for part in np.array_split(order, 15)
    )
    assert metrics.adaptive_ece(log_probs, labels) == pytest.approx(expected, abs=1e-9)


def test_reliability_adds_up_to_ece() -> None:
    log_probs, labels = answers()
    table = metrics.reliability(log_probs, labels)
    assert sum(table["share"]) == pytest.approx(1)
    gaps = zip(table["share"], table["accuracy"], table["confidence"], strict=True)
    expected = sum(s * abs(a - c) for s, a, c in gaps)
    assert metrics.ece(log_probs, labels) == pytest.approx(expected, abs=1e-6)


def test_member_scores_and_their_mean() -> None:
    logits = torch.randn(3, 50, 4)
    labels = torch.randint(4, (50,))
    scores = metrics.classification_scores(Prediction(logits), labels)
    singles = [metrics.answer_scores(logits[k].log_softmax(-1), labels) for k in range(3)]
    assert scores["members"] == singles
    assert scores["member_mean"]["nll"] == pytest.approx(np.mean([s["nll"] for s in singles]))
    assert scores["ensemble"]["nll"] < scores["member_mean"]["nll"], "Jensen's inequality"
    assert scores["ensemble"]["top5"] is None, "four classes have no top-5"


def test_fewer_samples_than_bins() -> None:
    log_probs, labels = answers(7)
    for function in (metrics.ece, metrics.adaptive_ece):
        with pytest.raises(EvaluationError, match="15 bins needs as many samples or more, got 7"):
            function(log_probs, labels)
    assert metrics.answer_scores(log_probs, labels)["ece"] is None
    with pytest.raises(EvaluationError, match="bins: expected 1 or more"):
        metrics.ece(log_probs, labels, bins=0)
