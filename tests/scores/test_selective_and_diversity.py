from __future__ import annotations

import numpy as np
import pytest
import torch

from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.scores import diversity, selective
from covey.scores.metrics import brier


def test_risk_coverage_by_hand() -> None:
    confidence = torch.tensor([0.9, 0.5, 0.8, 0.6])
    correct = torch.tensor([True, False, False, True])
    coverage, risk = selective.risk_coverage(confidence, correct)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    scores = selective.selective_scores(confidence, correct)
    assert scores["aurc"] == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert scores["accuracy_at_50"] == pytest.approx(0.5)
    assert scores["accuracy_at_80"] == pytest.approx(0.5)


def test_ties_do_not_depend_on_the_order() -> None:
    confidence = torch.randint(3, (100,)) / 3
    correct = torch.rand(100) < confidence
    order = torch.randperm(100)
    first = selective.selective_scores(confidence, correct)
    assert first == pytest.approx(selective.selective_scores(confidence[order], correct[order]))
    # The mean over random orders of the tied samples tends to the same area.
    noisy = [
        selective.selective_scores(confidence.double() + 1e-9 * torch.rand(100).double(), correct)["aurc"]
        for _ in range(400)
    ]
    assert first["aurc"] == pytest.approx(np.mean(noisy), abs=3e-3)


def test_thinned_curve_keeps_its_ends() -> None:
    confidence, correct = torch.rand(5000), torch.rand(5000) < 0.7
    curve = selective.thinned(confidence, correct)
    assert len(curve["risk"]) == 200
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(1 - correct.double().mean().item())


def test_selective_shapes() -> None:
    with pytest.raises(EvaluationError, match=r"one shape \(N,\)"):
        selective.risk_coverage(torch.zeros(3), torch.zeros(4))


def test_disagreement_by_loops() -> None:
    logits, labels = torch.randn(3, 200, 4), torch.randint(4, (200,))
    plain, matrix = diversity.disagreement(logits), diversity.normalised_disagreement(logits, labels)
    votes = logits.argmax(-1).numpy()
    for i in range(3):
        error = np.mean(votes[i] != labels.numpy())
        for j in range(3):
            assert plain[i, j].item() == pytest.approx(np.mean(votes[i] != votes[j]))
            assert matrix[i, j].item() == pytest.approx(np.mean(votes[i] != votes[j]) / error)
    expected = np.mean([matrix[i, j].item() for i in range(3) for j in range(3) if i != j])
    assert diversity.mean_of_pairs(matrix) == pytest.approx(expected)


def test_error_correlation_against_numpy() -> None:
    logits, labels = torch.randn(4, 300, 3), torch.randint(3, (300,))
    errors = (logits.argmax(-1) != labels).double().numpy()
    assert np.allclose(diversity.error_correlation(logits, labels), np.corrcoef(errors))


def test_ambiguity_is_the_gain_in_brier_score() -> None:
    logits, labels = torch.randn(5, 100, 6), torch.randint(6, (100,))
    prediction = Prediction(logits)
    members = np.mean([brier(p, labels) for p in prediction.member_log_probs])
    expected = members - brier(prediction.log_probs, labels)
    assert diversity.ambiguity(prediction) == pytest.approx(expected, abs=1e-6)


def test_a_member_without_errors_has_no_disagreement() -> None:
    labels = torch.tensor([0, 1, 1])
    perfect = torch.nn.functional.one_hot(labels, 2).float()
    logits = torch.stack((perfect, perfect.flip(0)))
    assert diversity.normalised_disagreement(logits, labels)[0].isnan().all()
    scores = diversity.diversity_scores(Prediction(logits), labels, {})
    assert scores["disagreement"] == pytest.approx(2 / 3)
    assert scores["normalised_disagreement"] is None
    assert scores["error_correlation"] is None
    assert scores["normalised_disagreement_matrix"][0] == [None, None]


def test_one_member() -> None:
    logits, labels = torch.randn(1, 10, 3), torch.randint(3, (10,))
    with pytest.raises(EvaluationError, match="pairs of members, got 1 member"):
        diversity.disagreement(logits)
    scores = diversity.diversity_scores(Prediction(logits), labels, {})
    assert scores["disagreement"] is None
    assert scores["mutual_information"]["test"] == pytest.approx(0, abs=1e-6)
    assert scores["ambiguity"] == pytest.approx(0, abs=1e-12)
