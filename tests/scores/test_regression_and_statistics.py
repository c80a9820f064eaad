from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from covey.combine import Regression
from covey.errors import EvaluationError
from covey.scores import regression, statistics


def test_regression_against_scipy() -> None:
    mean, variance = torch.randn(400, 2), torch.rand(400, 2) + 0.1
    targets = mean + 1.3 * variance.sqrt() * torch.randn(400, 2)
    scores = regression.answer_scores(mean, variance, targets)
    m, s, y = mean.double().numpy(), variance.double().sqrt().numpy(), targets.double().numpy()
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((m - y) ** 2)))
    assert scores["mae"] == pytest.approx(np.mean(abs(m - y)))
    assert scores["gaussian_nll"] == pytest.approx(-scipy.stats.norm.logpdf(y, m, s).mean())
    for level in (0.5, 0.9, 0.95):
        low, high = scipy.stats.norm.interval(level, m, s)
        assert scores[f"coverage_{round(100 * level)}"] == pytest.approx(np.mean((low <= y) & (y <= high)))
    expected = []
    for level in np.arange(1, 20) / 20:
        low, high = scipy.stats.norm.interval(level, m, s)
        expected.append(abs(level - np.mean((low <= y) & (y <= high))))
    assert scores["interval_error"] == pytest.approx(np.mean(expected))
    assert scores["sharpness"] == pytest.approx(s.mean())


def test_ambiguity_is_the_gain_in_squared_error() -> None:
    means, targets = torch.randn(4, 50, 1), torch.randn(50, 1)
    scores = regression.regression_scores(Regression(means), targets)
    members = np.mean([row["rmse"] ** 2 for row in scores["members"]])
    gain = members - scores["ensemble"]["rmse"] ** 2
    assert scores["diversity"]["ambiguity"] == pytest.approx(gain, rel=1e-5)
    assert scores["member_mean"]["gaussian_nll"] is None, "a point has no density"


def test_regression_without_a_distribution() -> None:
    mean = torch.zeros(3, 1)
    assert regression.answer_scores(mean, torch.zeros(3, 1), mean)["gaussian_nll"] is None
    with pytest.raises(EvaluationError, match="expected positive values, got 0"):
        regression.gaussian_nll(mean, torch.zeros(3, 1), mean)
    with pytest.raises(EvaluationError, match="level: expected between 0 and 1, got 1"):
        regression.coverage(mean, torch.ones(3, 1), mean, level=1)


def test_summary() -> None:
    found = statistics.summary([1.0, 2.0, 4.0])
    assert (found.mean, found.count) == (pytest.approx(7 / 3), 3)
    assert found.std == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert statistics.summary([5.0]).std is None
    with pytest.raises(EvaluationError, match="one value or more"):
        statistics.summary([])


def test_paired_test_against_scipy() -> None:
    this = {0: 0.95, 1: 0.961, 2: 0.955, 9: 0.5}
    other = {0: 0.94, 1: 0.95, 2: 0.941, 7: 0.1}
    found = statistics.compare(this, other)
    reference = scipy.stats.ttest_rel([0.95, 0.961, 0.955], [0.94, 0.95, 0.941])
    interval = reference.confidence_interval(0.95)
    assert (found.seeds, found.verdict) == (3, "higher")
    assert found.p == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert statistics.compare(other, this).verdict == "lower"
    assert statistics.compare({0: 1.0, 1: 2.0, 2: 0.5}, {0: 1.1, 1: 1.8, 2: 0.6}).verdict == "within noise"


def test_overlapping_splits_are_less_evidence_than_as_many_seeds() -> None:
    this = {k: 0.5 + 0.1 * (k % 2) for k in range(20)}
    other = dict.fromkeys(range(20), 0.53)
    plain = statistics.compare(this, other)
    enlarged = statistics.compare(this, other, overlap=0.1 / 0.9)
    # Nadeau and Bengio (2003): the variance of the mean is s^2 (1/n + test / train)
    ratio = math.sqrt((1 / 20 + 1 / 9) / (1 / 20))
    assert enlarged.high - enlarged.low == pytest.approx(ratio * (plain.high - plain.low))
    t = scipy.stats.t.isf(enlarged.p / 2, 19)
    assert t == pytest.approx(scipy.stats.t.isf(plain.p / 2, 19) / ratio)
    assert (plain.verdict, enlarged.verdict) == ("within noise", "within noise")
    assert statistics.compare(this, dict.fromkeys(range(20), 0.52)).verdict == "higher"
    assert statistics.compare(this, dict.fromkeys(range(20), 0.52), overlap=1 / 9).verdict == "within noise"


def test_scores_that_are_no_numbers_are_not_compared() -> None:
    with pytest.raises(EvaluationError, match="seed 1 has nan and 0.5"):
        statistics.compare({0: 0.5, 1: math.nan}, {0: 0.4, 1: 0.5})


def test_differences_without_spread() -> None:
    assert statistics.compare({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}).verdict == "within noise"
    assert statistics.compare({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0}).verdict == "higher"
    one = statistics.compare({0: 2.0}, {0: 1.0})
    assert (one.verdict, one.p, one.difference) == ("not tested", None, 1.0)
    with pytest.raises(EvaluationError, match=r"no seed in common, \[0\] and \[1\]"):
        statistics.compare({0: 1.0}, {1: 1.0})
