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
