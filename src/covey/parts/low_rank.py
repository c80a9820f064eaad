"""Low-rank updates of weights, the members' own or scaled for each member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.networks.layers import Axes
from covey.parameterization import Group, Parameterization
from covey.parts.acting import ActingWeight, Layer, as_autocast, differentiable
from covey.parts.acting_low_rank import LowRankLayer
from covey.parts.plain import rows
from covey.tensors import Tensors, scale_gradient

Pieces = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""W, A, B, r and s of one member."""


class LowRankUpdate(Parameterization):
    """w_k = W + scaling (B_k A_k), or with vectors W + scaling (s_k r_k^T) * (B A).

    theta: W by name, and where vectors are given A and B. phi: A (M, rank, in ...) and B (M, out, rank), or the vectors
    r (M, in) and s (M, out). A weight is read as a matrix (out, in ...); an embedding's as (dim, tokens).

    Args:
        weights: W by name.
        axes: how each is a matrix.
        a: by name; one row for each member, or a single one.
        b: likewise.
        r: vectors of the members, if A and B are shared.
        s: likewise.
        scaling: factor of the update.
        dropout: probability that an input of A is zeroed in training.
        base: factor of W's learning rate; 0 freezes it.
        gamma: factor of the gradient of what is shared.
    """

    acts = True
    role = "low-rank"

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        axes: Mapping[str, Axes],
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        *,
        r: Mapping[str, Tensor] | None = None,
        s: Mapping[str, Tensor] | None = None,
        scaling: float,
        dropout: float = 0.0,
        base: float = 0.0,
        gamma: float = 1.0,
    ) -> None:
        super().__init__()
        self.names, self.axes = tuple(weights), dict(axes)
        frozen = {name: base == 0 or not weight.requires_grad for name, weight in weights.items()}
        self.theta = Tensors(
            {
                name: nn.Parameter(weight.detach().clone(), not frozen[name])
                for name, weight in weights.items()
            }
        )
        self.a, self.b = Tensors(_parameters(a)), Tensors(_parameters(b))
        self.r, self.s = Tensors(_parameters(r or {})), Tensors(_parameters(s or {}))
        self.scaling, self.dropout, self.base, self.gamma = scaling, dropout, base, gamma
        self.draws = dropout > 0

    @property
    def shares_update(self) -> bool:
        """Whether A and B are all members', who have vectors of their own."""
        return bool(self.s.names)

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's weights."""
        own = {name: tensor[0] for name, tensor in self.own([k]).items()}
        return {name: updated(*self._pieces(name, own), self.scaling, self.axes[name]) for name in self.names}

    def update(self, k: int) -> dict[str, tuple[Tensor, Tensor]]:
        """A (rank, in ...) and B (out, rank) of member k's update by name, its vectors folded in."""
        own = {name: tensor[0] for name, tensor in self.own([k]).items()}
        found = {}
        for name in self.names:
            _, a, b, r, s = self._pieces(name, own)
            found[name] = _folded(a, b, r, s)
        return found

    def own(self, members: Sequence[int]) -> dict[str, Tensor]:
        """A and B of the members, or their vectors."""
        stores = {"r": self.r, "s": self.s} if self.shares_update else {"a": self.a, "b": self.b}
        return {f"{label} {n}": rows(t, members) for label, store in stores.items() for n, t in store.items()}

    def acting(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights that add their update to what the base gives; a transposed convolution's is made."""
        found: dict[str, Tensor] = {}
        dropout = self.dropout if self.training else 0.0
        for name in self.names:
            axes, pieces = self.axes[name], self._pieces(name, own)
            transposed = axes.inputs_first and axes.inputs is not None
            if transposed:
                found[name] = updated(*pieces, self.scaling, axes)
            else:
                found[name] = LowRankWeight(*pieces, self.scaling, dropout, axes)
        return differentiable(found)

    def _pieces(self, name: str, own: Mapping[str, Tensor]) -> Pieces:
        if self.shares_update:
            a, b = (scale_gradient(store[name][0], self.gamma) for store in (self.a, self.b))
        else:
            a, b = own["a " + name], own["b " + name]
        return scale_gradient(self.theta[name], self.gamma), a, b, own.get("r " + name), own.get("s " + name)

    def groups(self) -> list[Group]:
        """The base, and what members learn; vectors do not decay."""
        update = [*self.a.parameters(), *self.b.parameters()]
        found = [
            Group(list(self.theta.parameters()), "shared", self.base),
            Group(update, "shared" if self.shares_update else "member"),
        ]
        if self.shares_update:
            found.append(Group([*self.r.parameters(), *self.s.parameters()], "member", decay=0.0))
        return found

    def parameter_count(self, name: str) -> int:
        """The weight's and the update's."""
        stores = (self.theta, self.a, self.b, self.r, self.s)
        return sum(store[name].numel() for store in stores if name in store)

    def note(self, name: str) -> str:
        """The rank, and whether the base learns."""
        rank = self.a[name].shape[1]
        update = "one update, vectors of the members" if self.shares_update else "updates of the members"
        base = "" if self.theta[name].requires_grad else ", base frozen"
        return f"rank {rank}, {update}{base}"

    def collapsed(self) -> dict[str, Tensor]:
        """The mean of the members' weights."""
        store = self.s if self.shares_update else self.a
        members = len(store[self.names[0]])
        each = [self.member(k) for k in range(members)]
        return {name: torch.stack([tensors[name] for tensors in each]).mean(0) for name in self.names}


class LowRankWeight(ActingWeight):
    """W + scaling (s r^T) * (B A), one member's; the vectors may be None."""

    def __init__(
        self,
        weight: Tensor,
        a: Tensor,
        b: Tensor,
        r: Tensor | None,
        s: Tensor | None,
        scaling: float,
        dropout: float,
        axes: Axes,
    ) -> None:
        super().__init__()
        self.weight, self.a, self.b, self.r, self.s = weight, a, b, r, s
        self.scaling, self.dropout, self.axes = scaling, dropout, axes

    def dense(self) -> Tensor:
        """The weight's values; dropout is for activations only."""
        return updated(self.weight, self.a, self.b, self.r, self.s, self.scaling, self.axes)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + (x A^T) B^T; the layer's own backward pass is that of real numbers."""
        if self.axes.inputs_first or x.ndim < 2 or self.weight.is_complex():
            return F.linear(x, self.dense(), bias)
        rows = x.flatten(0, -2)  # products of two tables, where torch may take one for each of the batch
        a, given = _scaled(self.a, self.r, 1, self._dropped(rows), -1)
        b, _ = _scaled(self.b, self.s, 0, None, -1)
        another = None if given is rows else given
        tensors = as_autocast(rows, self.weight, bias, a, b, another)
        rows, weight, *others = tensors
        alone = [None if other is None else other[None] for other in others]
        with torch.autocast(x.device.type, enabled=False):
            y, _ = LowRankLayer.apply(rows[None], weight, *alone, self.scaling)
        return y.squeeze(0).unflatten(0, x.shape[:-1])

    def turned(self) -> LowRankWeight | None:
        """W^T + scaling (r s^T) * (A^T B^T)."""
        if self.axes.inputs_first:
            return None
        options = self.scaling, self.dropout, self.axes
        return LowRankWeight(self.weight.T, self.b.T, self.a.T, self.s, self.r, *options)

    def convolution(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Any:
        """A convolution to `rank` channels and one of a single pixel from there; groups need the weight."""
        if layer.groups > 1 or x.ndim != self.weight.ndim:
            return NotImplemented
        function = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        options = layer.stride, layer.padding, layer.dilation
        a, given = _scaled(self.a, self.r, 1, self._dropped(x), 1)
        b, _ = _scaled(self.b, self.s, 0, None, 1)
        pixel = b[(...,) + (None,) * (x.ndim - 2)]
        update = function(function(given, a, None, *options), pixel)
        return function(x, self.weight, bias, *options) + self.scaling * update

    def embedding(self, tokens: Tensor, padding: int | None) -> Tensor:
        """Rows of W, and of A^T B^T; the padding's row learns nothing."""
        if not self.axes.inputs_first:  # a table that is no nn.Embedding: its rows were taken for outputs
            return super().embedding(tokens, padding)
        a = self.a if self.r is None else self.a * self.r
        b, _ = _scaled(self.b, self.s, 0, None, -1)
        found = F.embedding(tokens, self.weight) + self.scaling * F.linear(F.embedding(tokens, a.T), b)
        if padding is None:
            return found
        return torch.where((tokens == padding)[..., None], found.detach(), found)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.dropout else x


def updated(
    weight: Tensor, a: Tensor, b: Tensor, r: Tensor | None, s: Tensor | None, scaling: float, axes: Axes
) -> Tensor:
    """W + scaling (s r^T) * (B A) in the weight's shape."""
    a, b = _folded(a, b, r, s)
    update = b @ a.flatten(1)
    if axes.inputs_first:
        return weight + scaling * update.unflatten(1, a.shape[1:]).transpose(0, 1)
    return weight + scaling * update.view(weight.shape)


def _folded(a: Tensor, b: Tensor, r: Tensor | None, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """A and B of the same update without the vectors."""
    a = a if r is None else a * r.view(-1, *(1,) * (a.ndim - 2))
    b = b if s is None else b * s[:, None]
    return a, b


def _scaled(matrix: Tensor, vector: Tensor | None, axis: int, x: Any, features: int) -> tuple[Tensor, Any]:
    """A matrix scaled along an axis, or the activations that it is given, whichever is smaller."""
    if vector is None:
        return matrix, x
    if x is None or matrix.numel() <= x.numel():
        return matrix * vector.view(*(1,) * axis, -1, *(1,) * (matrix.ndim - axis - 1)), x
    return matrix, x * (vector if features == -1 else vector.view(-1, *(1,) * (x.ndim - 2)))


def _parameters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: nn.Parameter(tensor) for name, tensor in tensors.items()}
