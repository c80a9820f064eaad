"""A linear layer of low-rank members: x W^T + scaling (x A^T) B^T, and its gradients in the order that is quick.

Products with a side of `rank` take as long as memory does, so what counts is how often activations are read and
written. The update is added in place, and each product is taken with its short side first: on a CPU the other order
takes up to ten times as long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.parts.acting import as_it_was, mapped, members_of, remembered, unflattened


class LowRankLayer(torch.autograd.Function):
    """y_k = x_k W^T + b_k + scaling (z_k A_k^T) B_k^T for all members k at once.

    x (M, R, in), W (out, in), the bias (M, out), or (1, out) if it is all members', A (M, rank, in), B (M, out, rank).
    z is x after dropout, or None where there is none. The second output is z A^T, kept for the backward pass.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, z: Tensor | None, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """One product of the weight with all members' rows."""
        shared = bias[0] if bias is not None and len(bias) == 1 else None
        y = unflattened(F.linear(x.flatten(0, 1), weight, shared), x.shape[:2])
        if bias is not None and shared is None:
            y = y + bias[:, None]
        inner = torch.bmm(x if z is None else z, a.mT)
        return _add(y, inner, b.mT, scaling), inner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keep the input and what is small."""
        x, weight, bias, a, b, z, ctx.scaling = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, a, b, z, output[1])
        ctx.then = remembered(weight)
        ctx.shared_bias = bias is not None and len(bias) == 1
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Of the input, the weight, the bias, A, B and what is left after dropout."""
        if grad is None:
            return (None,) * 7
        x, weight, a, b, z, inner = ctx.saved_tensors
        weight = as_it_was(weight, ctx.then)
        to_x = to_weight = to_bias = to_b = None
        needs, source = ctx.needs_input_grad, x if z is None else z
        if torch.is_grad_enabled():  # for a second derivative, which what was kept has no part in
            inner = torch.bmm(source, a.mT)
        rows = grad.reshape(-1, grad.shape[-1])  # which a batch of gradients takes, other than flatten
        if needs[0]:
            to_x = (rows @ weight).view_as(x)
        if needs[1]:
            to_weight = rows.T @ x.flatten(0, 1)
        if needs[2]:
            to_bias = grad.sum((0, 1))[None] if ctx.shared_bias else grad.sum(1)
        if needs[4]:
            to_b = torch.bmm((inner * ctx.scaling).mT, grad).mT
        back = torch.bmm(b.mT.contiguous() * ctx.scaling, grad.mT)  # (M, rank, R)
        to_a = torch.bmm(back, source) if needs[3] else None
        to_z = torch.bmm(back.mT, a) if needs[5] else None
        if z is None and to_x is not None:
            to_x = _add(to_x, back.mT, a)
        return to_x, to_weight, to_bias, to_a, to_b, to_z, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, weight: Tensor, *others: Any) -> Any:
        """Members that vmap brings are members like any other; each brings an axis of one of its own."""
        if in_dims[1] is not None:
            raise NotImplementedError("the shared weight of a low-rank layer cannot be mapped over")
        size = info.batch_size
        bias, a, b, z, scaling = others
        if in_dims[2] is not None:
            bias = members_of(bias, in_dims[2], size)
        x, a, b, z = (  # type: ignore[assignment]
            members_of(tensor, in_dims[at], size) for tensor, at in ((x, 0), (a, 3), (b, 4), (z, 5))
        )
        y, inner = LowRankLayer.apply(x, weight, bias, a, b, z, scaling)
        return (y.unflatten(0, (size, -1)), inner), (0, None)


def _add(total: Tensor, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """total + factor (left @ right), in place unless a derivative is taken of it or it stands for several."""
    if torch.is_grad_enabled() or mapped(total) or mapped(left):
        return torch.baddbmm(total, left, right, alpha=factor)
    return total.baddbmm_(left, right, alpha=factor)
