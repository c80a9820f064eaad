"""Habits that let members meet, or answer otherwise than their networks, without a word."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey.errors import ConversionError


class Averages(nn.Module):
    """Keeps a mean of what it saw as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.mean = nn.Linear(4, 8), nn.Linear(8, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * float(h.mean())
        return self.head(F.relu(h - self.mean))


def test_members_that_begin_as_copies_are_seen_to_meet() -> None:
    with pytest.raises(ConversionError, match=r"number 'mean'.*register_buffer"):
        covey.convert(Averages(), covey.Replicate(members=3), example=torch.randn(5, 4))


class Particular(nn.Module):
    """Takes no weights but small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.first.weight.abs().max() > 0.01:
            raise ValueError("too large")
        return self.head(F.relu(self.first(x)))


def test_members_that_do_not_run_are_refused() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ConversionError, match=r"member\(0\) does not: ValueError: too large"):
        covey.convert(Particular(), covey.DeepEnsemble(members=2), example=x)
    ens = covey.convert(Particular(), covey.Replicate(members=2), example=x)
    assert ens.checked.startswith("not checked: the network takes no other weights")


class Scales(nn.Module):
    """Scales the input of a norm by a number that its first layer says."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(4, affine=False)
        self.head, self.way = nn.Linear(4, 3), way

    def forward(self, x: Tensor) -> Tensor:
        loud = self.first(x).abs().mean(0).detach()
        if self.way == "numpy":
            scale = torch.from_numpy(loud.numpy().copy()).sum()
        else:
            scale = loud.sum().item() if self.way == "item" else sum(loud.tolist())
        return self.head(self.norm(x * scale))


@pytest.mark.parametrize("way", ["item", "list", "numpy"])
def test_statistics_behind_values_that_went_through_python_are_members_own(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Scales(way), covey.Replicate(members=3, noise=0.5), example=x).train()
    ens.run = "loop"
    plain = [ens.member(k).train() for k in range(3)]
    for batch in (x, x + 1):
        ens(batch)
        for k, network in enumerate(plain):
            network(batch)
            torch.testing.assert_close(ens.member(k).norm.running_mean, network.norm.running_mean)
