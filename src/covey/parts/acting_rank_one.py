"""Rank-one weights that act: W * (s r^T) turns x into ((x r) W^T) s, and is never made.

Nothing but what a plain layer keeps is kept for the backward pass: its input and the shared weight. Per layer the
cheaper of two equal ways is taken, by size: scale activations, or make the weight, use it and drop it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.networks.layers import Axes
from covey.parts.acting import ActingWeight, Layer, as_autocast, as_it_was, members_of, remembered
from covey.tensors import scale_gradient

# outputs before scaling are kept for the backward pass if they are at most this much of the weight
KEPT = 1 / 16


def outer(weight: Tensor, r: Tensor | None, s: Tensor | None, groups: int) -> Tensor:
    """One member's s r^T, to multiply a weight (out, in / groups, ...) by; r has the inputs of all groups."""
    ones = (1,) * (weight.ndim - 2)
    columns = None if s is None else s.view(-1, 1, *ones)
    if r is None:
        return weight.new_ones(()) if columns is None else columns
    rows = r.view(groups, 1, -1, *ones)
    if groups > 1:
        rows = rows.expand(groups, len(weight) // groups, *rows.shape[2:])
    rows = rows.flatten(0, 1)
    return rows if columns is None else rows * columns


def parts_of(
    product: Tensor, r: Tensor | None, s: Tensor | None, groups: int
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of one member's r and s, from the weight times the gradient of the member's weight."""
    table = product.sum(tuple(range(2, product.ndim))) if product.ndim > 2 else product
    table = table.view(groups, -1, table.shape[1])
    grad_r = grad_s = None
    if r is not None:
        grad_r = (table.sum(1) if s is None else s.view(groups, 1, -1) @ table).reshape(-1)
    if s is not None:
        grad_s = (table.sum(2) if r is None else table @ r.view(groups, -1, 1)).reshape(-1)
    return grad_r, grad_s


class RankOneLayer(torch.autograd.Function):
    """y_k = ((x_k r_k) W^T) s_k + b_k for all members k at once; the gradient of W is multiplied by gamma.

    x (M, B, ...), r (M, in), s (M, out), the bias (M, out), or (1, out) if it is all members'; r, s and the bias may be
    None. The second output is y before it is scaled, where it is kept for the backward pass, else empty.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        r: Tensor | None,
        s: Tensor | None,
        bias: Tensor | None,
        layer: Layer,
        gamma: float,
    ) -> tuple[Tensor, Tensor]:
        """The cheaper of both ways."""
        nothing = x.new_empty(0)
        if not _acts(x, weight):
            each = []
            for k, one in enumerate(x.split(1)):
                made = weight * outer(weight, _row(r, k), _row(s, k), layer.groups)
                each.append(layer.run(one, made, _row(bias, k)))
            return _joined(each), nothing
        before = layer.run(x if r is None else x * layer.spread(r, x), weight)
        added = None if bias is None else layer.spread(bias, before)
        if s is None:
            return before if added is None else before + added, nothing
        kept = before if before[0].numel() <= KEPT * weight.numel() else nothing
        factor = layer.spread(s, before)
        return before * factor if added is None else torch.addcmul(added, before, factor), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keep the input and the shared tensors."""
        x, weight, r, s, bias, ctx.layer, ctx.gamma = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, r, s, output[1])
        ctx.then = remembered(weight)
        ctx.biases = 0 if bias is None else len(bias)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Of the input, the weight, r, s and the bias."""
        if grad is None:
            return (None,) * 7
        x, weight, r, s, before = ctx.saved_tensors
        weight = scale_gradient(as_it_was(weight, ctx.then), ctx.gamma)  # for a second derivative
        way = _backward_acting if _acts(x, weight) else _backward_dense
        found = way(ctx.layer, grad, x, weight, r, s, before, ctx.gamma, ctx.needs_input_grad)
        to_bias = ctx.layer.total(grad) if ctx.needs_input_grad[4] else None
        if to_bias is not None and ctx.biases < len(to_bias):
            to_bias = to_bias.sum(0, keepdim=True)
        return *found, to_bias, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, x: Tensor, weight: Tensor, r: Any, s: Any, bias: Any, *rest: Any
    ) -> Any:
        """Members that vmap brings are members like any other; each brings an axis of one of its own."""
        if in_dims[1] is not None:
            raise NotImplementedError("the shared weight of a rank-one layer cannot be mapped over")
        size = info.batch_size
        x, r, s = (  # type: ignore[assignment]
            members_of(tensor, dim, size)
            for tensor, dim in ((x, in_dims[0]), (r, in_dims[2]), (s, in_dims[3]))
        )
        if in_dims[4] is not None:
            bias = members_of(bias, in_dims[4], size)
        y, before = RankOneLayer.apply(x, weight, r, s, bias, *rest)
        return (y.unflatten(0, (size, -1)), before), (0, None)


def _acts(x: Tensor, weight: Tensor) -> bool:
    """Whether scaling a member's activations is cheaper than making its weight."""
    return weight.numel() > 2 * x[0].numel()


def _joined(each: list[Tensor]) -> Tensor:
    """Members along their axis, without a copy where there is one."""
    return torch.cat(each) if len(each) > 1 else each[0]


def _row(vectors: Tensor | None, k: int) -> Tensor | None:
    """Member k's vector; the only one, if it is all members'."""
    return None if vectors is None else vectors[k if len(vectors) > 1 else 0]


def _backward_dense(
    layer: Layer,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    r: Any,
    s: Any,
    _: Tensor,
    gamma: float,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The members' weights are made once more; their gradients hold those of the weight, of r and of s."""
    inputs: list[Any] = []
    grads_r: list[Any] = []
    grads_s: list[Any] = []
    shared: Tensor | None = None
    for k in range(len(x)):
        factor = outer(weight, _row(r, k), _row(s, k), layer.groups)
        wanted = (needs[0], any(needs[1:4]))
        to_input, to_weight = layer.gradients(grad[k : k + 1], x[k : k + 1], weight * factor, wanted)
        inputs.append(to_input)
        if to_weight is None:
            continue
        if shared is not None:
            shared = torch.addcmul(shared, to_weight, factor, value=gamma)
        elif needs[1]:
            shared = (to_weight * factor).mul_(gamma)
        grad_r, grad_s = parts_of(to_weight * weight, _row(r, k), _row(s, k), layer.groups)
        grads_r.append(grad_r)
        grads_s.append(grad_s)
    return (
        _joined(inputs) if needs[0] else None,
        shared,
        torch.stack(grads_r) if needs[2] else None,
        torch.stack(grads_s) if needs[3] else None,
    )


def _backward_acting(
    layer: Layer,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    r: Any,
    s: Any,
    before: Tensor,
    gamma: float,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Scaled activations are made once more; where the unscaled outputs were not kept, s is led back to the weight."""
    behind = grad if s is None else grad * layer.spread(s, grad)
    scaled = x if r is None else x * layer.spread(r, x)
    grad_s = None
    shared: Tensor | None = None
    if needs[3] and not before.numel():
        each = []
        for k in range(len(x)):
            _, own = layer.gradients(grad[k : k + 1], scaled[k : k + 1], weight, (False, True))
            assert own is not None
            each.append((own * weight).sum(tuple(range(1, weight.ndim))))
            if needs[1]:
                mine = own * (gamma * s[k]).view(-1, *(1,) * (weight.ndim - 1))
                shared = mine if shared is None else shared + mine
        grad_s = torch.stack(each)
    elif needs[3]:
        if torch.is_grad_enabled():  # for a second derivative, which what was kept has no part in
            before = layer.run(scaled, weight)
        grad_s = layer.total(grad * before)
    wanted = (needs[0] or needs[2], needs[1] and shared is None)
    to_input, to_weight = layer.gradients(behind, scaled, weight, wanted) if any(wanted) else (None, None)
    if to_weight is not None:
        shared = to_weight.mul_(gamma)
    grad_x, grad_r = to_input, None
    if r is not None and to_input is not None:
        grad_x = to_input * layer.spread(r, x)
        grad_r = layer.total(to_input * x) if needs[2] else None
    return grad_x if needs[0] else None, shared, grad_r, grad_s


class RankOneWeight(ActingWeight):
    """W * (s r^T), one member's; r or s may be None. The gradient of W is multiplied by gamma."""

    def __init__(
        self, weight: Tensor, r: Tensor | None, s: Tensor | None, axes: Axes, gamma: float = 1.0
    ) -> None:
        super().__init__()
        self.weight, self.r, self.s, self.axes, self.gamma = weight, r, s, axes, gamma

    def dense(self) -> Tensor:
        """Made now, and not kept here."""
        weight = scale_gradient(self.weight, self.gamma)
        if self.axes.inputs_first:  # an embedding's rows are its inputs
            return weight if self.s is None else weight * self.s
        return weight * outer(weight, self.r, self.s, self.axes.groups)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Without making the weight, or keeping it; the layer's own backward pass is that of real numbers."""
        if self._is_foreign(x) or self.weight.is_complex():
            return F.linear(x, self.dense(), bias)
        return self._apply(Layer(), x, bias)

    def turned(self) -> RankOneWeight | None:
        """W^T * (r s^T)."""
        if self.axes.inputs_first:
            return None
        return RankOneWeight(self.weight.T, self.s, self.r, self.axes, self.gamma)

    def convolution(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Any:
        """Likewise."""
        alone_or_anothers = x.ndim != self.weight.ndim or layer.groups != self.axes.groups
        if alone_or_anothers or self._is_foreign(x) or self.weight.is_complex():
            return NotImplemented
        return self._apply(layer, x, bias)

    def _is_foreign(self, x: Tensor) -> bool:
        """Whether a plain layer would refuse x for its type, where scaling would make it fit without a word."""
        return x.dtype != self.weight.dtype and not torch.is_autocast_enabled(x.device.type)

    def embedding(self, tokens: Tensor, padding: int | None) -> Tensor:
        """The rows of W, scaled; the padding's row learns nothing."""
        if not self.axes.inputs_first:  # a table that is no nn.Embedding: its rows were taken for outputs
            return super().embedding(tokens, padding)
        found = F.embedding(tokens, scale_gradient(self.weight, self.gamma))
        if self.s is not None:
            found = found * self.s
        if padding is None:
            return found
        return torch.where((tokens == padding)[..., None], found.detach(), found)

    def _apply(self, layer: Layer, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.axes.inputs_first or x.ndim < 2:  # an embedding that is the head too, or one sample alone
            return F.linear(x, self.dense(), bias)
        x, weight, r, s, bias = as_autocast(x, self.weight, self.r, self.s, bias)
        with torch.autocast(x.device.type, enabled=False):
            y, _ = RankOneLayer.apply(x[None], weight, _one(r), _one(s), _one(bias), layer, self.gamma)
        return y.squeeze(0)


def _one(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector[None]
