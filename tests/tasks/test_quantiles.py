"""Quantile regression: the pinball loss, the members' mean, intervals and their coverage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Quantiles
from covey.errors import EvaluationError, OptionError
from covey.train import Machine, Recipe

LEVELS = Quantiles((0.05, 0.5, 0.95))


def noisy(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise that grows with x, of which the true quantiles are known."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, 1, generator=generator)
    return x, x[:, 0] + (0.1 + x[:, 0]) * torch.randn(samples, generator=generator)


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, outputs))


def test_the_loss_is_smallest_at_the_quantiles() -> None:
    targets = torch.randn(2001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = torch.tensor(np.quantile(targets.numpy(), LEVELS.levels))
    best = LEVELS.losses(true.expand(2001, 3), targets).mean(0)
    for step in (-0.1, 0.1):
        assert (LEVELS.losses((true + step).expand(2001, 3), targets).mean(0) > best).all()
    assert torch.autograd.gradcheck(
        lambda q: LEVELS(q, targets[:4]), torch.randn(4, 3).double().requires_grad_()
    )


def test_members_are_averaged_and_put_in_order() -> None:
    members = torch.tensor([[[0.0, 5.0, 4.0]], [[2.0, 3.0, 2.0]]])  # their mean is 1, 4, 3
    found = LEVELS.answer(members)
    assert found.quantiles.tolist() == [[1.0, 3.0, 4.0]]
    assert found.crossing == 1.0
    assert found.epistemic.tolist() == [[1.0, 1.0, 1.0]]
    scores = found.scores(torch.tensor([4.5]))
    assert scores["coverage"] == 0.0
    assert scores["width"] == 3.0
    assert scores["pinball"] == pytest.approx((0.05 * 3.5 + 0.5 * 1.5 + 0.95 * 0.5) / 3)
    assert scores["nominal"] == pytest.approx(0.9)


def test_it_trains_and_covers() -> None:
    x, y = noisy(1500, 0)
    recipe = Recipe(epochs=60, batch=100, optimizer="adam", lr=0.02, decay=0.0, run="loop")
    machine = Machine(accelerator="cpu", progress=False)
    history = covey.fit(
        network(), (x, y), recipe, method=covey.BatchEnsemble(members=2), loss=LEVELS, machine=machine
    )
    made = history.ensemble.eval()
    (known, known_y), (new, new_y) = noisy(500, 1), noisy(2000, 2)
    with pytest.raises(EvaluationError, match=r"expected targets of shape \(500, 3\)"):
        covey.evaluate(made, (known, known_y))
    assert history.last["rmse"] < 0.9  # of the median; the noise itself has about 0.66
    with torch.no_grad():
        validation, test = (LEVELS.answer(made(given)) for given in (known, new))
    scores = test.scores(new_y)
    assert scores["coverage"] == pytest.approx(0.9, abs=0.04)
    widths = (test.high - test.low)[new[:, 0].argsort()]
    assert widths[-200:].mean() > 2 * widths[:200].mean()  # as the noise is
    wider = test.conformal(validation, known_y, alpha=0.02)
    assert wider.margin > 0
    assert wider.scores(new_y)["coverage"] == pytest.approx(0.98, abs=0.02)


def test_two_levels_are_no_mean_and_variance() -> None:
    pair = Quantiles((0.1, 0.9))
    assert pair.centre(torch.tensor([[1.0, 3.0]])).tolist() == [[2.0]]
    assert LEVELS.centre(torch.tensor([[1.0, 3.0, 9.0]])).tolist() == [[3.0]]
    history = covey.fit(
        network(2), noisy(40, 0), Recipe(epochs=1, run="loop"), method=covey.DeepEnsemble(members=2), loss=pair,
        machine=Machine(accelerator="cpu", progress=False),
    )  # fmt: skip
    assert history.ensemble.task == "regression"


def test_what_does_not_fit() -> None:
    for levels in ((), (0.0, 0.5), (0.9, 0.1), (0.5, 0.5)):
        with pytest.raises(OptionError, match="between 0 and 1 and rise"):
            Quantiles(levels)
    with pytest.raises(OptionError, match=r"3 quantiles need as many"):
        LEVELS(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(OptionError, match=r"targets have shape \(3, 1\); expected .*\(4, 1\)"):
        LEVELS(torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(OptionError, match=r"members' outputs \(M, B, 3\)"):
        LEVELS.answer(torch.zeros(4, 3))
    found = LEVELS.answer(torch.zeros(2, 4, 3))
    with pytest.raises(OptionError, match="4 validation samples are too few for alpha=0.1; it takes 9"):
        found.conformal(found, torch.zeros(4))
    with pytest.raises(OptionError, match=r"targets have shape \(5,\); the answer is for \(4,\)"):
        found.scores(torch.zeros(5))
