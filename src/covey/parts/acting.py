"""Weights that act: a member's weight that is never made, because what it does to activations is known.

A rank-one weight W * (s r^T) turns x into ((x r) W^T) s. `RankOneWeight` stands in the skeleton in the weight's place,
answers `F.linear`, the convolutions and `F.embedding` so, and makes itself dense for everything else. Nothing but what
a plain layer keeps is kept for the backward pass: its input and the shared weight.

Per layer the cheaper of two equal ways is taken, by size: scale activations, or make the weight, use it and drop it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from covey.networks.layers import Axes

KEPT = (
    1 / 16
)  # outputs before scaling are kept for the backward pass if they are at most this much of the weight


@dataclass(frozen=True)
class Layer:
    """A linear layer or a convolution without its tensors, for M members at once: x is (M, B, ...)."""

    groups: int = 1
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether features are on the last axis, as in a linear layer; else on the one after the batch."""
        return not self.stride

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        """One weight for all: (M, B, ...)."""
        if self.is_linear:  # as one product of two tables, where torch may take one for each of the batch
            return F.linear(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])
        options = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        return torch.ops.aten.convolution(x.flatten(0, 1), weight, None, *options).unflatten(0, x.shape[:2])

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Gradients of the input and of the one weight."""
        if self.is_linear:
            rows = grad.flatten(0, -2)
            inputs = (rows @ weight).view_as(x) if needs[0] else None
            return inputs, (rows.T @ x.flatten(0, -2) if needs[1] else None)
        sizes = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        flat = grad.flatten(0, 1), x.flatten(0, 1)
        found = torch.ops.aten.convolution_backward(*flat, weight, None, *sizes, (*needs, False))
        return (found[0].view_as(x) if needs[0] else None), found[1]

    def spread(self, vector: Tensor, like: Tensor) -> Tensor:
        """A vector of each member (M, n) along the features of activations (M, B, ...)."""
        if self.is_linear:
            return vector.view(len(vector), *(1,) * (like.ndim - 2), -1)
        return vector.view(len(vector), 1, -1, *(1,) * (like.ndim - 3))

    def total(self, product: Tensor) -> Tensor:
        """Sum activations over all but members and features: (M, n)."""
        if self.is_linear:
            return product.flatten(1, -2).sum(1)
        return product.sum((1, *range(3, product.ndim)))


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
    table = product.flatten(2).sum(2) if product.ndim > 2 else product
    table = table.view(groups, -1, table.shape[1])
    grad_r = grad_s = None
    if r is not None:
        grad_r = (table.sum(1) if s is None else s.view(groups, 1, -1) @ table).flatten()
    if s is not None:
        grad_s = (table.sum(2) if r is None else table @ r.view(groups, -1, 1)).flatten()
    return grad_r, grad_s


class RankOneLayer(torch.autograd.Function):
    """y_k = ((x_k r_k) W^T) s_k for all members k at once; x (M, B, ...), r (M, in), s (M, out), either may be None.

    The second output is y before it is scaled, where it is kept for the backward pass, else empty.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, r: Tensor | None, s: Tensor | None, layer: Layer
    ) -> tuple[Tensor, Tensor]:
        """The cheaper of both ways."""
        if not _acts(x, weight):
            each = []
            for k, one in enumerate(x.split(1)):
                each.append(layer.run(one, weight * outer(weight, _row(r, k), _row(s, k), layer.groups)))
            return _joined(each), x.new_empty(0)
        before = layer.run(x if r is None else x * layer.spread(r, x), weight)
        if s is None:
            return before, x.new_empty(0)
        kept = before if before[0].numel() <= KEPT * weight.numel() else x.new_empty(0)
        return before * layer.spread(s, before), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keep the input and the shared tensors."""
        x, weight, r, s, ctx.layer = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, r, s, output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Of the input, the weight, r and s."""
        if grad is None:
            return (None,) * 5
        x, weight, r, s, before = ctx.saved_tensors
        way = _backward_acting if _acts(x, weight) else _backward_dense
        return (*way(ctx.layer, grad, x, weight, r, s, before, ctx.needs_input_grad), None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, weight: Tensor, r: Any, s: Any, layer: Layer) -> Any:
        """Members that vmap brings are members like any other; each brings an axis of one of its own."""
        if in_dims[1] is not None:
            raise NotImplementedError("the shared weight of a rank-one layer cannot be mapped over")
        size = info.batch_size
        x, r, s = (  # type: ignore[assignment]
            _members(tensor, dim, size) for tensor, dim in ((x, in_dims[0]), (r, in_dims[2]), (s, in_dims[3]))
        )
        y, before = RankOneLayer.apply(x, weight, r, s, layer)
        return (y.unflatten(0, (size, -1)), before), (0, None)


def _members(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """(mapped, members, ...) as one axis of members."""
    if tensor is None:
        return None
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _acts(x: Tensor, weight: Tensor) -> bool:
    """Whether scaling a member's activations is cheaper than making its weight."""
    return weight.numel() > 2 * x[0].numel()


def _joined(each: list[Tensor]) -> Tensor:
    """Members along their axis, without a copy where there is one."""
    return torch.cat(each) if len(each) > 1 else each[0]


def _row(vectors: Tensor | None, k: int) -> Tensor | None:
    return None if vectors is None else vectors[k]


def _backward_dense(
    layer: Layer, grad: Tensor, x: Tensor, weight: Tensor, r: Any, s: Any, _: Tensor, needs: Sequence[bool]
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
        if needs[1]:
            shared = to_weight * factor if shared is None else torch.addcmul(shared, to_weight, factor)
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
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Scaled activations are made once more; where the unscaled outputs were not kept, s is led back to the weight."""
    scaled = x if r is None else x * layer.spread(r, x)
    behind = grad if s is None else grad * layer.spread(s, grad)
    grad_s = None
    shared: Tensor | None = None
    if needs[3] and not before.numel():
        each = []
        for k in range(len(x)):
            _, own = layer.gradients(grad[k : k + 1], scaled[k : k + 1], weight, (False, True))
            assert own is not None
            each.append((own * weight).flatten(1).sum(1))
            if needs[1]:
                mine = own * s[k].view(-1, *(1,) * (weight.ndim - 1))
                shared = mine if shared is None else shared + mine
        grad_s = torch.stack(each)
    elif needs[3]:
        if torch.is_grad_enabled():  # for a second derivative, which what was kept has no part in
            before = layer.run(scaled, weight)
        grad_s = layer.total(grad * before)
    wanted = (needs[0] or needs[2], needs[1] and shared is None)
    to_input, to_weight = layer.gradients(behind, scaled, weight, wanted) if any(wanted) else (None, None)
    grad_x, grad_r = to_input, None
    if r is not None and to_input is not None:
        grad_x = to_input * layer.spread(r, x)
        grad_r = layer.total(to_input * x) if needs[2] else None
    return grad_x if needs[0] else None, to_weight if shared is None else shared, grad_r, grad_s


class ActingWeight(Tensor):
    """A weight that has a shape but no values; functions that it has no answer to get `dense()`."""

    @staticmethod
    def __new__(cls, like: Tensor, *_: Any) -> Any:
        """A tensor of the same shape and kind, without memory."""
        return Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
        )

    def dense(self) -> Tensor:
        """The weight's values."""
        raise NotImplementedError

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """As `F.linear` with this weight."""
        return F.linear(x, self.dense(), bias)

    def convolution(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Any:
        """As F.conv1d, 2d or 3d with this weight; NotImplemented where it must be made."""
        return NotImplemented

    def embedding(self, tokens: Tensor, padding: int | None) -> Tensor:
        """As `F.embedding` with this weight."""
        return F.embedding(tokens, self.dense(), padding)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}{tuple(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rule = _RULES.get(func)
        if rule is not None:
            found = rule(func, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if func in _OPENED:
            return _OPENED[func](*args, **kwargs)
        args, kwargs = tree_map(_densely, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Where torch does not ask by `__torch_function__`."""
        args, kwargs = tree_map(_densely, (args, kwargs or {}))
        return func(*args, **kwargs)


class RankOneWeight(ActingWeight):
    """W * (s r^T), one member's; r or s may be None."""

    def __init__(self, weight: Tensor, r: Tensor | None, s: Tensor | None, axes: Axes) -> None:
        super().__init__()
        self.weight, self.r, self.s, self.axes = weight, r, s, axes

    def dense(self) -> Tensor:
        """Made now, and not kept here."""
        if self.axes.inputs_first:  # an embedding's rows are its inputs
            return self.weight if self.s is None else self.weight * self.s
        return self.weight * outer(self.weight, self.r, self.s, self.axes.groups)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Without making the weight, or keeping it."""
        if self._is_foreign(x):
            return F.linear(x, self.dense(), bias)
        return self._apply(Layer(), x, bias)

    def convolution(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Any:
        """Likewise."""
        alone_or_anothers = x.ndim != self.weight.ndim or layer.groups != self.axes.groups
        if alone_or_anothers or self._is_foreign(x):
            return NotImplemented
        return self._apply(layer, x, bias)

    def _is_foreign(self, x: Tensor) -> bool:
        """Whether a plain layer would refuse x for its type, where scaling would make it fit without a word."""
        return x.dtype != self.weight.dtype and not torch.is_autocast_enabled(x.device.type)

    def embedding(self, tokens: Tensor, padding: int | None) -> Tensor:
        """The rows of W, scaled; the padding's row learns nothing."""
        found = F.embedding(tokens, self.weight)
        if self.s is not None:
            found = found * self.s
        if padding is None:
            return found
        return torch.where((tokens == padding)[..., None], found.detach(), found)

    def _apply(self, layer: Layer, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.axes.inputs_first or x.ndim < 2:  # an embedding that is the head too, or one sample alone
            return F.linear(x, self.dense(), bias)
        kind = x.device.type
        tensors: Sequence[Tensor | None] = (x, self.weight, self.r, self.s, bias)
        if torch.is_autocast_enabled(kind):  # as autocast itself does for a layer's tensors
            dtype = torch.get_autocast_dtype(kind)
            tensors = [None if t is None else t.to(dtype) for t in tensors]
        x, weight, r, s, bias = tensors  # type: ignore[assignment]
        with torch.autocast(kind, enabled=False):
            y, _ = RankOneLayer.apply(x[None], weight, _one(r), _one(s), layer)
        y = y.squeeze(0)
        return y if bias is None else y + (bias if layer.is_linear else bias.view(-1, *(1,) * (y.ndim - 2)))


def _one(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector[None]


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _densely(value: Any) -> Any:
    return value.dense() if isinstance(value, ActingWeight) else value


def _linear(_: Callable, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, ActingWeight) or isinstance(input, ActingWeight):
        return NotImplemented
    return weight.linear(input, bias)


def _convolution(
    function: Callable,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    if not isinstance(weight, ActingWeight) or isinstance(input, ActingWeight) or isinstance(padding, str):
        return NotImplemented
    dims = weight.ndim - 2
    layer = Layer(groups, _each(stride, dims), _each(padding, dims), _each(dilation, dims))
    return weight.convolution(layer, input, bias)


def _embedding(
    _: Callable,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not isinstance(weight, ActingWeight) or max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    return weight.embedding(input, padding_idx)


def _opened(function: Any) -> Callable:
    """A function of torch's in Python that goes on with its own lines instead of asking its arguments first."""
    inside = {**function.__globals__, "has_torch_function": lambda *_: False}
    made = types.FunctionType(
        function.__code__, inside, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# questions about a tensor that need no values
_ASKED = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.layout.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
    Tensor.is_sparse.__get__,  # type: ignore[attr-defined]
    Tensor.is_quantized.__get__,  # type: ignore[attr-defined]
    Tensor.is_meta.__get__,  # type: ignore[attr-defined]
    Tensor.is_nested.__get__,  # type: ignore[attr-defined]
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.__len__,
    Tensor.__hash__,
    Tensor.__repr__,
}
_RULES: Mapping[Any, Callable] = {
    F.linear: _linear,
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.embedding: _embedding,
}
_OPENED: Mapping[Any, Callable] = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}
