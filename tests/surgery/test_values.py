"""Narrowing what is computed with values: masks that choose, systems that are solved, rows that go to experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.surgery import narrow

ROWS = 4, 6


class Own(nn.Module):
    """A network of a first layer, a head and what a function does between them."""

    def __init__(self, run: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 16), nn.Linear(16, 5)
        for name, part in parts.items():
            setattr(self, name, part)
        self.__dict__["run"] = run

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.run(self, self.first(x)))


def _written_where_positive(net: Any, h: Tensor) -> Tensor:
    chosen = h.mean(-1) > 0
    out = torch.zeros_like(h)
    out[chosen] = net.inner(h[chosen])
    return out


def _routed(net: Any, h: Tensor) -> Tensor:
    expert = net.gate(h).argmax(-1)
    out = torch.zeros_like(h)
    for number, inner in enumerate(net.experts):
        (rows,) = torch.where(expert == number)
        out.index_add_(0, rows, inner(h[rows]))
    return out


def _mean_of_neighbours(net: Any, h: Tensor) -> Tensor:
    start, end = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 0, 2])
    count = torch.bincount(end, minlength=h.shape[0])
    return net.inner(torch.zeros_like(h).index_add_(0, end, h[start]) / count.clamp(min=1)[:, None])


def _gram(h: Tensor) -> Tensor:
    return h @ h.T + torch.eye(h.shape[0])


def _determinant(net: Any, h: Tensor) -> Tensor:
    return net.inner(h) + torch.linalg.slogdet(net.inner.weight)[1]


RUNS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "rows behind a mask": _written_where_positive,
    "rows for experts": _routed,
    "counts of neighbours": _mean_of_neighbours,
    "a triangular system": lambda net, h: torch.linalg.solve_triangular(_gram(h).tril(), h, upper=False),
    "a system": lambda net, h: torch.linalg.solve(_gram(h), net.inner(h)),
    "an inverse of channels": lambda net, h: h @ torch.linalg.inv(h.T @ h + 1.0),
    "a factor": lambda net, h: torch.cholesky_solve(h, torch.linalg.cholesky(_gram(h))),
    "vectors of channels": lambda net, h: h @ torch.linalg.eigh(h.T @ h)[1],
    "a determinant of weights": _determinant,
    "an identity": lambda net, h: h @ (torch.eye(h.shape[1]) + net.inner.weight),
    "a diagonal": lambda net, h: (h[:, None] @ torch.diag_embed(h)).squeeze(1),
    "a mean without gaps": lambda net, h: h.nanmean(0, keepdim=True) + h,
}


def made(name: str) -> nn.Module:
    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    return Own(RUNS[name], inner=nn.Linear(16, 16), gate=nn.Linear(16, 3), experts=experts)


@pytest.mark.parametrize("name", RUNS)
def test_it_narrows(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(*ROWS)
    small = narrow(made(name), 0.5, x, tolerance=math.inf).network
    assert small.first.weight.shape == (8, 6)
    assert small(x).shape == made(name)(x).shape


def _drawn(net: Any, h: Tensor) -> Tensor:
    mean, scale = net.inner(h), F.softplus(net.inner(h)) + 0.1
    spread = torch.distributions.Independent(torch.distributions.Normal(mean, scale), 1)
    return spread.mean + spread.log_prob(mean)[:, None]


def test_distributions_are_followed_and_checked_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look at their parameters' values, which a run on sizes alone does not have."""
    monkeypatch.setattr(
        torch.distributions.Distribution, "_validate_args", True
    )  # torch.compile turns it off
    small = narrow(Own(_drawn, inner=nn.Linear(16, 16)), 0.5, torch.randn(*ROWS)).network
    assert small.inner.weight.shape == (8, 8)
    with pytest.raises(ValueError, match="constraint"):
        torch.distributions.Normal(0.0, -1.0)


def test_a_mask_of_channels_keeps_them() -> None:
    """Channels have no order that a mask could follow, so a narrow network would choose others."""
    net = Own(lambda net, h: h[:, net.mask])
    net.head = nn.Linear(8, 5)
    net.register_buffer("mask", torch.arange(16) % 2 == 0)
    with pytest.raises(ConversionError):
        narrow(net, 0.5, torch.randn(*ROWS))


def test_a_count_that_only_values_tell_is_refused() -> None:
    net = Own(lambda net, h: h + torch.bincount(h.argmax(-1)).sum())
    with pytest.raises(ConversionError, match="decides by the values of its data.*bincount"):
        narrow(net, 0.5, torch.randn(*ROWS))


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no products of groups")
def test_groups_of_rows_are_multiplied_by_a_matrix_each() -> None:
    """In float32, which torch's product of groups refuses on tensors without content."""

    def run(net: Any, h: Tensor) -> Tensor:
        ends = torch.tensor([1, 3, 4], dtype=torch.int32)
        wide = F.grouped_mm(h, net.up, offs=ends)
        return F.grouped_mm(wide.relu(), net.down.transpose(1, 2), offs=ends)

    parts = dict(up=nn.Parameter(torch.randn(3, 16, 32)), down=nn.Parameter(torch.randn(3, 16, 32)))
    small = narrow(Own(run, **parts), 0.5, torch.randn(*ROWS)).network
    assert small.up.shape == (3, 8, 16)
    assert small.down.shape == (3, 8, 16)


class Stepping(nn.Module):
    """Gets its state as an input, and so keeps its width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(6, 64), nn.LSTMCell(64, 4), nn.LSTM(64, 4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        x = self.first(x)
        step, _ = self.cell(x, (h, c))
        steps, _ = self.last(x[None], (h[None], c[None]))
        return self.head(torch.cat([step, steps[0]], 1))


def test_a_state_that_is_given_keeps_its_width() -> None:
    state = torch.zeros(4, 4)
    small = narrow(Stepping(), 0.5, (torch.randn(*ROWS), state, state), tolerance=math.inf).network
    assert small.cell.weight_ih.shape == (16, 32)
    assert small.last.weight_ih_l0.shape == (16, 32)


def test_what_was_pooled_goes_back_to_its_place() -> None:
    class Unpooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            h, places = F.max_pool2d(self.first(x), 2, return_indices=True)
            return self.head(F.max_unpool2d(h, places, 2))

    small = narrow(Unpooled(), 0.5, torch.randn(2, 3, 8, 8)).network
    assert small.first.weight.shape == (8, 3, 3, 3)


# --- sizes that tell each other apart ------------------------------------------------------------------------------


class Stage(nn.Module):
    """Projects where it widens, which it finds out by its attributes; one of the two is used for nothing else."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.body, self.skip = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).view(-1, self.outputs)
        return h + (self.skip(x) if self.inputs != self.outputs else x)


def test_an_attribute_that_is_only_compared_is_scaled() -> None:
    """16 and 32 differ; 16 and 16, where only one of them is scaled, do not."""
    net = nn.Sequential(nn.Linear(6, 16), Stage(16, 32), nn.Linear(32, 5))
    small = narrow(net, 0.5, torch.randn(*ROWS)).network
    assert (small[1].inputs, small[1].outputs) == (8, 16)
    assert small(torch.randn(*ROWS)).shape == (4, 5)


def test_sizes_that_are_told_apart_do_not_become_the_same() -> None:
    net = nn.Sequential(nn.Linear(6, 15), Stage(15, 16), nn.Linear(16, 5))
    with pytest.raises(ConversionError, match=r"'1.inputs' is 15, which.*tells apart.*both would be 8"):
        narrow(net, 0.5, torch.randn(*ROWS))


class Edges(nn.Module):
    """Attention over edges with parts that are not called heads."""

    def __init__(self, inputs: int, outputs: int, parts: int) -> None:
        super().__init__()
        self.h, self.o = parts, outputs
        self.lin = nn.Linear(inputs, parts * outputs)
        self.weigh = nn.Parameter(torch.randn(1, parts, outputs))
        self.bias = nn.Parameter(torch.randn(parts * outputs))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin(x).view(-1, self.h, self.o)
        weight = (x * self.weigh).sum(-1).softmax(0)
        return (x * weight[..., None]).view(-1, self.h * self.o) + self.bias


def test_a_width_of_two_factors_is_scaled_once() -> None:
    """However many sizes there are before them, whose names decide nothing."""
    net = nn.Sequential(Edges(6, 4, 4), nn.ELU(), Edges(16, 8, 2), nn.Linear(16, 5))
    small = narrow(net, 0.5, torch.randn(7, 6)).network
    assert small[0].lin.weight.shape == (8, 6)
    assert small[2].lin.weight.shape == (8, 8)


class Pictures(nn.Module):
    """Two sizes of pictures, and a width that is as large as one of them by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [12, 8]
        self.first, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for size in self.sizes:
            if x.shape[-1] != size:
                x = F.interpolate(x, size=(size, size))
        return self.head(self.first(x).mean((2, 3)))


def test_an_attribute_that_is_compared_with_the_input_stays() -> None:
    small = narrow(Pictures(), 0.5, torch.randn(2, 3, 12, 12)).network
    assert small.sizes == [12, 8]
    assert small.first.weight.shape == (4, 3, 4, 4)
