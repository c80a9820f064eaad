"""Scores against closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import softmax

import covey
from covey.combine import Prediction, Regression, gaussian
from covey.errors import OptionError
from covey.losses import member_losses


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 7), st.integers(0, 10_000))
def test_scores_equal_scipys(members: int, batch: int, classes: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, (members, batch, classes))
    prediction = Prediction(torch.tensor(logits))
    each = softmax(logits, -1)
    mean = each.mean(0)
    np.testing.assert_allclose(prediction.probs, mean, rtol=1e-10)
    # a probability near 1 is rounded by 1e-16 before NumPy takes its logarithm
    np.testing.assert_allclose(prediction.log_probs, np.log(mean), rtol=1e-9, atol=4e-16)
    entropy = stats.entropy(mean, axis=-1)
    expected = stats.entropy(each, axis=-1).mean(0)
    np.testing.assert_allclose(prediction.entropy, entropy, atol=1e-12)
    np.testing.assert_allclose(prediction.expected_entropy, expected, atol=1e-12)
    np.testing.assert_allclose(prediction.mutual_information, entropy - expected, atol=1e-12)
    assert (prediction.mutual_information >= 0).all()
    modal = stats.mode(logits.argmax(-1), axis=0).count
    np.testing.assert_allclose(prediction.variation_ratio, 1 - modal / members, atol=1e-6)
    np.testing.assert_allclose(prediction.max_prob, mean.max(-1))
    np.testing.assert_array_equal(prediction.label, mean.argmax(-1))


def test_extreme_logits_give_finite_scores() -> None:
    prediction = Prediction(torch.tensor([[[1e4, 0.0, -1e4]], [[-1e4, 0.0, 1e4]]]))
    assert prediction.entropy.item() == pytest.approx(math.log(2), rel=1e-6)
    assert prediction.mutual_information.item() == pytest.approx(math.log(2), rel=1e-6)
    assert torch.isfinite(prediction.energy).all()
    assert torch.isfinite(prediction.log_probs[0, [0, 2]]).all()


def test_a_mixture_of_gaussians_has_the_moments_of_its_samples() -> None:
    rng = np.random.default_rng(0)
    mean, variance = torch.tensor([[1.0], [4.0], [-2.0]]), torch.tensor([[0.5], [2.0], [1.0]])
    combined = Regression(mean, variance)
    member = rng.integers(0, 3, 400_000)
    samples = rng.normal(mean.numpy()[member, 0], variance.numpy()[member, 0] ** 0.5)
    assert combined.mean.item() == pytest.approx(samples.mean(), abs=0.02)
    assert combined.variance.item() == pytest.approx(samples.var(), rel=0.01)
    # mean(variance + mean^2) - mean^2, the last term squared
    closed = (variance + mean**2).mean() - mean.mean() ** 2
    torch.testing.assert_close(combined.variance[0], closed)
    torch.testing.assert_close(combined.std, combined.variance.sqrt())
    assert Regression(mean).aleatoric.item() == 0


def test_gaussian_outputs_have_positive_variances() -> None:
    mean, variance = gaussian(torch.tensor([[1.0, -100.0], [2.0, 0.0]]))
    torch.testing.assert_close(mean, torch.tensor([[1.0], [2.0]]))
    torch.testing.assert_close(variance, torch.tensor([[1e-6], [math.log(2) + 1e-6]]))


def test_losses_equal_torchs_own_for_each_member() -> None:
    logits, labels = torch.randn(3, 5, 4), torch.randint(0, 4, (5,))
    each = [torch.nn.functional.cross_entropy(m, labels, label_smoothing=0.1) for m in logits]
    torch.testing.assert_close(member_losses(logits, labels, smoothing=0.1), torch.stack(each))
    torch.testing.assert_close(covey.loss(logits, labels, smoothing=0.1), torch.stack(each).sum())
    own = torch.randint(0, 4, (3, 5))
    each = [torch.nn.functional.cross_entropy(m, y) for m, y in zip(logits, own, strict=True)]
    torch.testing.assert_close(member_losses(logits, own), torch.stack(each))
    table = torch.rand(5, 4).softmax(-1)
    each = [torch.nn.functional.cross_entropy(m, table) for m in logits]
    torch.testing.assert_close(member_losses(logits, table), torch.stack(each))
    images, pixels = torch.randn(2, 3, 4, 6, 6), torch.randint(0, 4, (3, 6, 6))
    each = [torch.nn.functional.cross_entropy(m, pixels) for m in images]
    torch.testing.assert_close(member_losses(images, pixels), torch.stack(each))
    far, places = torch.randn(2, 3, 6, 5, 4), torch.randint(0, 4, (3, 6, 5))  # a linear layer over a map
    each = [torch.nn.functional.cross_entropy(m.movedim(-1, 1), places) for m in far]
    torch.testing.assert_close(member_losses(far, places), torch.stack(each))
    words, next_words = torch.randn(2, 3, 7, 4), torch.randint(0, 4, (3, 7))
    each = [torch.nn.functional.cross_entropy(m.transpose(1, 2), next_words) for m in words]
    torch.testing.assert_close(member_losses(words, next_words), torch.stack(each))


def test_the_binary_loss_takes_each_class_on_its_own() -> None:
    logits, labels = torch.randn(3, 5, 4), torch.randint(0, 4, (5,))
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    shares = 0.9 * torch.nn.functional.one_hot(labels, 4) + 0.1 / 4
    each = torch.stack([binary(m, shares) for m in logits])
    torch.testing.assert_close(member_losses(logits, labels, "binary", smoothing=0.1), each)
    table = torch.rand(5, 4)
    each = torch.stack([binary(m, table) for m in logits])
    torch.testing.assert_close(member_losses(logits, table, "binary"), each)


def test_regression_losses_equal_scipys() -> None:
    outputs, target = torch.randn(2, 6, 2, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    mean, variance = gaussian(outputs)
    expected = -stats.norm(mean.numpy(), variance.sqrt().numpy()).logpdf(target.numpy()[None]).mean((1, 2))
    np.testing.assert_allclose(member_losses(outputs, target, "gaussian"), expected)
    squared = ((outputs[..., :1] - target) ** 2).mean((1, 2))
    torch.testing.assert_close(member_losses(outputs[..., :1], target, "mse"), squared)


def test_targets_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(OptionError, match=r"shape \(4,\); for outputs of 3 members they should be \(5,\)"):
        covey.loss(torch.randn(3, 5, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(OptionError, match="'cross-entropy', 'binary', 'gaussian' or 'mse'; got 'x'"):
        covey.loss(torch.randn(3, 5, 2), torch.zeros(5, dtype=torch.long), kind="x")


def test_a_plain_networks_logits_are_refused_and_not_taken_for_members():
    with pytest.raises(OptionError, match=r"shape \(16, 3\).*For a plain network's logits .*cross_entropy"):
        covey.loss(torch.randn(16, 3), torch.zeros(16, dtype=torch.long))
