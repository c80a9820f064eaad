"""Complex weights: gradients that are those of complex numbers, beside real weights, and stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import covey


class Waves(nn.Module):
    """Real layers before and behind complex ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 12, dtype=torch.float64)
        self.one = nn.Linear(12, 12, dtype=torch.complex128)
        self.two = nn.Linear(12, 12, dtype=torch.complex128)
        self.head = nn.Linear(12, 3, dtype=torch.float64)
        self.register_buffer("phase", torch.polar(torch.ones(12), torch.rand(12)).to(torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.fft(self.first(x)) * self.phase
        return self.head(self.two(self.one(z).tanh()).abs())


METHODS = {
    "batch-ensemble": covey.BatchEnsemble(members=2, gamma=1.0),
    "tabm": covey.TabM(members=2, gamma=1.0),
    "masksembles": covey.Masksembles(members=2, gamma=1.0),
    "low-rank": covey.LowRank(members=2),
    "shared-low-rank": covey.SharedLowRank(members=2, gamma=1.0),
    "mixture": covey.Mixture(members=2),
    "mixture, recomputed": covey.Mixture(members=2, recompute=True),
    "superweights": covey.SuperWeights(members=2),
    "superweights, recomputed": covey.SuperWeights(members=2, recompute=True),
}


def _converted(method: covey.Method) -> tuple[covey.Ensemble, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    ens = covey.convert(Waves(), method, example=x)
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ens.run = "loop"
    return ens.train(), x


@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_those_of_complex_numbers(name: str) -> None:
    ens, x = _converted(METHODS[name])
    targets = torch.tensor([0, 1, 2, 0, 1])
    ens.loss(x, targets).backward()
    step = 1e-6
    for label, parameter in ens.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None
        way = torch.randn_like(parameter)
        expected = (parameter.grad.conj() * way).sum().real.item()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(way, alpha=sign * step)
                losses.append(ens.loss(x, targets).item())
                parameter.sub_(way, alpha=sign * step)
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(expected, rel=1e-4, abs=1e-6), label


def test_complex_tensors_are_stored(tmp_path: Path) -> None:
    ens, _ = _converted(covey.DeepEnsemble(members=2))
    covey.save(ens, tmp_path)
    stored, expected = covey.load(tmp_path, Waves()).state_dict(), ens.state_dict()
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert stored[name].dtype == tensor.dtype
        assert torch.equal(stored[name], tensor)
