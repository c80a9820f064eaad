"""Weights that act: a member's weight that is never made, because what it does to activations is known.

An `ActingWeight` stands in the skeleton in the weight's place, answers `F.linear`, the convolutions, `F.embedding` and
`torch.addmm`, and makes itself dense for everything else.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from covey.errors import TrainingError


def unflattened(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """A new tensor's first axis as several, as a tensor of its own: what is no view may be changed in place.

    Autograd forbids that for views which a function of one's own makes, and networks do it (`nn.ReLU(inplace=True)`).
    """
    return torch.ops.aten._unsafe_view(rows, (*sizes, *rows.shape[1:]))


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

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One weight and one bias for all: (M, B, ...)."""
        if self.is_linear:  # as one product of two tables, where torch may take one for each of the batch
            return unflattened(F.linear(x.flatten(0, -2), weight, bias), x.shape[:-1])
        options = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        return unflattened(torch.ops.aten.convolution(x.flatten(0, 1), weight, bias, *options), x.shape[:2])

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Gradients of the input and of the one weight."""
        if self.is_linear:
            rows = grad.reshape(-1, grad.shape[-1])  # which a batch of gradients takes, other than flatten
            inputs = (rows @ weight).view_as(x) if needs[0] else None
            return inputs, (rows.T @ x.flatten(0, -2) if needs[1] else None)
        sizes = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        flat = grad.reshape(-1, *grad.shape[2:]), x.flatten(0, 1)
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
            return product.sum(tuple(range(1, product.ndim - 1)))
        return product.sum((1, *range(3, product.ndim)))


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

    def turned(self) -> ActingWeight | None:
        """The transpose of a matrix, for layers that store it inputs first; None where it must be made."""
        return None

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}{tuple(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rule = None if forward_mode() else _RULES.get(func)
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


def _maker(weight: ActingWeight) -> Callable[[], Tensor]:
    """What makes a weight's values, without the weight: one that its own node leads to would never be freed."""
    standing: Any = SimpleNamespace(**vars(weight))
    return partial(type(weight).dense, standing)


class _Standing(torch.autograd.Function):
    """Weights that act, as autograd has them; their gradients go on to what they are made of."""

    @staticmethod
    def forward(ctx: Any, weights: list[ActingWeight], *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.makers = [_maker(weight) for weight in weights]
        ctx.sources = sources
        ctx.set_materialize_grads(False)
        return tuple(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        used = [(make, given) for make, given in zip(ctx.makers, gradients, strict=True) if given is not None]
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            made = [make() for make, _ in used]
        wanted = [
            source for source, needed in zip(ctx.sources, ctx.needs_input_grad[1:], strict=True) if needed
        ]
        given = [gradient for _, gradient in used]
        found = iter(torch.autograd.grad(made, wanted, given, create_graph=again, allow_unused=True))
        return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])


def differentiable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One member's tensors, where those that act have a gradient for whoever uses them as any other tensor.

    torch asks a tensor of a class of its own before it runs a function on it, but neither before the `apply` of
    somebody's autograd function nor before compiled extensions. To those it is a tensor like any other, and its
    gradient would end there without a word.
    """
    # torch.func's transforms need a rule for every autograd function
    transformed = torch._C._are_functorch_transforms_active()
    if transformed or not torch.is_grad_enabled():
        return tensors
    made_of = {}
    for name, each in tensors.items():
        if isinstance(each, ActingWeight):
            inside = tree_leaves(vars(each))
            made_of[name] = [leaf for leaf in inside if isinstance(leaf, Tensor) and leaf.requires_grad]
    learning = [name for name, sources in made_of.items() if sources]
    if not learning:
        return tensors
    sources = {id(source): source for name in learning for source in made_of[name]}
    standing = _Standing.apply([tensors[name] for name in learning], *sources.values())
    return tensors | dict(zip(learning, standing, strict=True))


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _densely(value: Any) -> Any:
    return value.dense() if isinstance(value, ActingWeight) else value


def _linear(_: Callable, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, ActingWeight) or isinstance(input, ActingWeight):
        return NotImplemented
    return weight.linear(input, bias)


def _addmm(
    _: Callable, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """A linear layer that stores its weight inputs first, as GPT-2's do: the bias, the rows, the weight."""
    if not isinstance(mat2, ActingWeight) or isinstance(mat1, ActingWeight):
        return NotImplemented
    weight = mat2.turned() if input.ndim == 1 and beta == alpha == 1 else None
    return NotImplemented if weight is None else weight.linear(mat1, input)


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


def forward_mode() -> bool:
    """Whether forward-mode differentiation is at work, of which functions of one's own know nothing."""
    return forward_ad._current_level >= 0


def as_autocast(x: Tensor, *others: Tensor | None) -> Any:
    """A layer's tensors in the dtype that autocast, where it is on, would give them."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, *others
    dtype = torch.get_autocast_dtype(kind)
    return x.to(dtype), *(None if other is None else other.to(dtype) for other in others)


def members_of(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """(mapped, members, ...) as one axis of members."""
    if tensor is None:
        return None
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def mapped(tensor: Tensor) -> bool:
    """Whether it stands for several: of torch.func.vmap, or of `torch.autograd.grad(is_grads_batched=True)`."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(tensor) or functorch.is_legacy_batchedtensor(tensor)


def remembered(parameter: Tensor) -> Tensor | None:
    """The values of now, for `as_it_was`; what autograd saves of a parameter is what its `data` is by then."""
    return None if torch._C._functorch.is_functorch_wrapped_tensor(parameter) else parameter.detach()


def as_it_was(saved: Tensor, then: Tensor | None) -> Tensor:
    """A parameter in the backward pass, as it was in the forward pass; refused where a derivative of it is wanted."""
    if then is None or saved.data_ptr() == then.data_ptr():
        return saved
    if torch.is_grad_enabled():
        raise TrainingError(
            "the data of a parameter was replaced between the forward pass and a backward pass that itself has a "
            "gradient. Call backward() before the parameters change."
        )
    return then


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
    torch.addmm: _addmm,
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.embedding: _embedding,
}
_OPENED: Mapping[Any, Callable] = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}
