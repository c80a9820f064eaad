"""One gradient of the templates for a whole backward pass, to which every layer adds its own in place.

Each layer that is mixed of a bank has a gradient as large as the bank, and autograd would hold that of the layer and
the sum of all so far. Here a layer adds to the sum directly and gives autograd nothing; an anchor, which autograd
reaches when all layers are done, hands the sum over.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from covey.parts.acting import as_it_was, mapped, remembered
from covey.tensors import scale_gradient


class Readable(Protocol):
    """Templates in one tensor, out of which a piece reads its own."""

    def read(self, theta: Tensor, piece: Any) -> Tensor:
        """The piece's templates, (t, n)."""
        ...

    def add_(self, total: Tensor, piece: Any, mix: Tensor, gradient: Tensor) -> None:
        """Add to the gradient of all templates what a piece mix (1, t) @ (t, n) with this gradient (1, n) gives."""
        ...


class _Sum:
    """The templates' gradient in one backward pass; None when it was handed over."""

    def __init__(self, theta: Tensor) -> None:
        self.total: Tensor | None = torch.zeros_like(theta, memory_format=torch.contiguous_format)


class Sums:
    """The sums that are under way, one for each backward pass, and the anchor that hands them over.

    A sum belongs to the nodes that added to it, so that one which is never handed over goes with its graph.
    """

    def __init__(self) -> None:
        self._sums: WeakValueDictionary[int, _Sum] = WeakValueDictionary()
        self._anchor: tuple[Tensor, tuple, Tensor] | None = None

    def anchor(self, theta: Tensor) -> Tensor:
        """A number that all layers are given, so that what made it comes after them on the way back."""
        kind = (theta.dtype, theta.device, theta.shape)
        if self._anchor is None or self._anchor[0] is not theta or self._anchor[1] != kind:
            self._anchor = theta, kind, _Anchor.apply(theta, self)
        return self._anchor[2]

    def present(self, theta: Tensor) -> _Sum:
        """The sum of this backward pass, to add to and to hold."""
        number = torch._C._current_graph_task_id()
        found = self._sums.get(number)
        if found is None:
            found = self._sums[number] = _Sum(theta)
        return found

    def take(self) -> Tensor | None:
        """The sum of this backward pass, which is nobody else's any more."""
        found = self._sums.pop(torch._C._current_graph_task_id(), None)
        if found is None:
            return None
        total, found.total = found.total, None
        return total

    def __deepcopy__(self, memo: Any) -> Sums:
        """Copies have graphs of their own."""
        return Sums()

    def __reduce__(self) -> Any:
        return Sums, ()


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, sums: Sums) -> Tensor:
        ctx.sums = sums
        return theta.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None]:
        return ctx.sums.take(), None


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        mix: Tensor,
        theta: Tensor,
        anchor: Tensor,
        bank: Readable,
        sums: Sums,
        piece: Any,
        gamma: float,
    ) -> Tensor:
        ctx.save_for_backward(mix, theta)
        ctx.then = remembered(theta)
        ctx.bank, ctx.sums, ctx.piece, ctx.gamma = bank, sums, piece, gamma
        return mix @ bank.read(theta, piece)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mix, theta = ctx.saved_tensors
        theta = as_it_was(theta, ctx.then)
        twice = torch.is_grad_enabled()
        # A second derivative has no part in a sum in place, and a batch of gradients has a sum for each.
        apart = twice or mapped(gradient)
        with torch.set_grad_enabled(apart):
            templates = ctx.bank.read(theta, ctx.piece)
        to_mix = gradient @ templates.T
        nothing = (None,) * 4
        if apart:
            own = ctx.gamma * (mix.T @ gradient)
            (to_theta,) = torch.autograd.grad(templates, theta, own, create_graph=twice)
            return to_mix, to_theta, None, *nothing
        ctx.sum = ctx.sums.present(theta)
        ctx.bank.add_(ctx.sum.total, ctx.piece, ctx.gamma * mix, gradient)
        return to_mix, None, gradient.new_zeros(()), *nothing


def mixed(bank: Readable, sums: Sums, theta: Tensor, mix: Tensor, piece: Any, gamma: float) -> Tensor:
    """A piece, (1, n): its coefficients (1, t) times its templates.

    Args:
        bank: how a piece reads the templates.
        sums: of the templates' gradient.
        theta: the templates.
        mix: the coefficients.
        piece: which.
        gamma: factor of the templates' gradient.
    """
    if not (torch.is_grad_enabled() and theta.requires_grad):
        return mix @ bank.read(theta, piece)
    if theta.is_complex():  # the backward pass above is that of real numbers
        return mix @ bank.read(scale_gradient(theta, gamma), piece)
    return _Mixed.apply(mix, theta, sums.anchor(theta), bank, sums, piece, gamma)
