from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from covey.errors import EvaluationError
from covey.papers.figures import plot_sparsity_bound
from covey.papers.sparsity import sparsity_bound


def _divergence(weight: Tensor, mean: Tensor, variance: Tensor, kept: float, draws: int = 4000) -> float:
    """KL(z, sparse z) by sampling: z is Gaussian; the sparse layer is a mixture of Gaussians over sampled masks."""
    generator = torch.Generator().manual_seed(0)
    whole = Normal(weight @ mean, (weight.square() @ variance).sqrt())
    masks = (torch.rand(draws, len(weight), generator=generator, dtype=weight.dtype) < kept).to(weight.dtype)
    masks = masks[masks.sum(1) > 0]
    sparse = Normal((masks * weight) @ mean, ((masks * weight.square()) @ variance).sqrt())
    z = whole.mean + whole.stddev * torch.randn(draws, 1, generator=generator, dtype=weight.dtype)
    density = torch.logsumexp(sparse.log_prob(z), 1) - math.log(len(masks))
    return (whole.log_prob(z.squeeze(1)) - density).mean().item()


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("kept", [0.25, 0.5, 0.75, 0.9])
def test_sampled_divergence_lies_below_the_bound(shift: float, kept: float) -> None:
    generator = torch.Generator().manual_seed(7)
    weight = 0.2 * torch.randn(200, generator=generator, dtype=torch.float64)
    mean = shift * torch.ones(200, dtype=torch.float64)
    variance = 0.5 + torch.rand(200, generator=generator, dtype=torch.float64)
    bound = sparsity_bound(weight, mean, variance, kept).item()
    divergence = _divergence(weight, mean, variance, kept)
    assert -0.02 < divergence < bound


def test_the_formula_by_hand() -> None:
    """Two inputs, p = 1/2: 1/2 (1/2 + 2 - 2 + 1/4 (1 + 16) / 9 + (1/2 5)^2 / (9/2)), with s^2 = 1 + 8 = 9."""
    weight, mean = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])
    expected = 0.5 * (0.5 + 17 / 36 + 6.25 / 4.5)
    assert sparsity_bound(weight, mean, torch.tensor([1.0, 2.0]), 0.5).item() == pytest.approx(expected)
    diagonal = sparsity_bound(weight, mean, torch.diag(torch.tensor([1.0, 2.0])), 0.5)
    assert diagonal.item() == pytest.approx(expected)
    full = torch.tensor([[1.0, 0.5], [0.5, 2.0]])  # s^2 = 1 + 8 + 2 x 2 x 0.5 = 11
    expected = 0.5 * (0.5 + 17 / 44 + 6.25 / 5.5)
    assert sparsity_bound(weight[None], mean, full, 0.5).tolist() == pytest.approx([expected])


def test_nothing_cut_costs_nothing() -> None:
    assert sparsity_bound(torch.randn(3, 5), torch.randn(5), torch.ones(5), 1.0).tolist() == [0, 0, 0]


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_sparsity_bound(tmp_path / "bound.png")
    assert (tmp_path / "bound.png").stat().st_size > 5000


def test_bad_input_is_named() -> None:
    w = torch.ones(3, 4)
    with pytest.raises(EvaluationError, match="kept is a share"):
        sparsity_bound(w, torch.ones(4), torch.ones(4), 0.0)
    with pytest.raises(EvaluationError, match=r"mean should have shape \(4,\); got \(3,\)"):
        sparsity_bound(w, torch.ones(3), torch.ones(4), 0.5)
    with pytest.raises(
        EvaluationError, match=r"covariance should have shape \(4,\) \(variances\) or \(4, 4\)"
    ):
        sparsity_bound(w, torch.ones(4), torch.ones(3, 4), 0.5)
