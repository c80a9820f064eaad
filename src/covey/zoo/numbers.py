"""Piecewise-linear embeddings of numbers, for tables (Gorishniy, Rubachev, Babenko, 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from covey.errors import DataError, OptionError
from covey.options import check_whole

LARGEST = torch.finfo(torch.float32).max


def quantile_edges(inputs: Tensor, bins: int = 48) -> list[Tensor]:
    """For each column of a table (N, D) the edges of its bins: quantiles, each once.

    >>> quantile_edges(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), bins=3)
    [tensor([0., 1., 2., 3.])]
    """
    check_whole("bins", bins)
    if inputs.ndim != 2 or not len(inputs) or not inputs.isfinite().all():
        raise DataError(
            f"edges are quantiles of a table (rows, columns) of finite numbers; got shape {tuple(inputs.shape)}"
            + ("." if inputs.isfinite().all() else ", with NaN or infinite ones among them.")
        )
    found = []
    places = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    for column in inputs.double().T:
        edges = column.quantile(places).unique()
        if len(edges) == 1:  # a column that is always the same
            edges = torch.stack([edges[0], edges[0] + 1])
        found.append(edges.to(inputs.dtype))
    return found


class PiecewiseLinear(nn.Module):
    """Each number as a line plus a function that is linear between edges, `width` of both.

    In bin t of a feature, e_t(x) is how far x has gone through the bin: 0 below it, 1 above it; the first bin goes on
    below and the last above. The embedding is x w + b + relu(sum_t e_t V_t) with V of zeros at the start.

    Args:
        edges: of each feature's bins, in rising order, at least two; see `quantile_edges`.
        width: numbers that each feature becomes.

    Takes (B, D), returns (B, D * width).
    """

    left: Tensor
    size: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, edges: Sequence[Tensor], width: int = 16) -> None:
        super().__init__()
        check_whole("width", width)
        _check_edges(edges)
        most = max(len(each) for each in edges) - 1
        left, size = torch.zeros(len(edges), most), torch.ones(len(edges), most)
        low, high = torch.zeros(len(edges), most), torch.ones(len(edges), most)
        for j, each in enumerate(edges):
            bins = len(each) - 1
            left[j, :bins], size[j, :bins] = each[:-1], each.diff()
            low[j, 0], high[j, bins - 1] = -LARGEST, LARGEST
            high[j, bins:] = 0.0  # bins that only other features have are never entered
        for name, tensor in (("left", left), ("size", size), ("low", low), ("high", high)):
            self.register_buffer(name, tensor)
        self.weight = nn.Parameter(torch.empty(len(edges), width))
        self.bias = nn.Parameter(torch.empty(len(edges), width))
        self.pieces = nn.Parameter(torch.empty(len(edges), most, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A line of random slope; the pieces are learnt from zero."""
        nn.init.uniform_(self.weight, -1, 1)
        nn.init.uniform_(self.bias, -1, 1)
        nn.init.zeros_(self.pieces)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (B, D * width)."""
        if x.shape[-1] != len(self.left):  # one column would be taken for each of them
            raise DataError(f"the embedding has edges for {len(self.left)} columns, and got {x.shape[-1]}.")
        through = ((x[..., None] - self.left) / self.size).clamp(self.low, self.high)
        bent = torch.einsum("...dt,dtw->...dw", through, self.pieces).relu()
        return (x[..., None] * self.weight + self.bias + bent).flatten(-2)


def _check_edges(edges: Sequence[Tensor]) -> None:
    """Refuse bins that are none: of a single edge, or of no positive width."""
    if not edges:
        raise OptionError("edges has an entry for each feature, and there is none.")
    for j, each in enumerate(edges):
        if len(each) < 2 or not (each.diff() > 0).all():
            raise OptionError(
                f"edges[{j}] are at least two numbers in rising order; got {each.tolist()[:5]}."
            )
