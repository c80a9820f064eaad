"""What the functions of torch.nn say about sizes: one short rule each, looked up in a table.

A rule writes the equations down and makes an output of the right shape, without computing anything. That is some ten
times faster than PyTorch's own symbolic rules and gives shorter formulas. A function without a rule here runs as it
is; it asks its questions, and `operators` watches what it does.

To teach narrowing another function, write a rule that takes the recorder and the function's own arguments, and add it
to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from covey.surgery.attributes import as_tuple
from covey.surgery.recorder import Recorder, Size, as_int

# The output is as large as the first argument, whatever the others are.
SAME_SHAPE = frozenset(
    {
        F.alpha_dropout,
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.elu,
        F.feature_alpha_dropout,
        F.gelu,
        F.hardsigmoid,
        F.hardswish,
        F.hardtanh,
        F.leaky_relu,
        F.log_softmax,
        F.mish,
        F.normalize,
        F.prelu,
        F.relu,
        F.relu6,
        F.selu,
        F.sigmoid,
        F.silu,
        F.softmax,
        F.softplus,
        F.tanh,
        torch.dropout,
        torch.erf,
        torch.exp,
        torch.log_softmax,
        torch.prelu,
        torch.relu,
        torch.relu_,
        torch.selu,
        torch.sigmoid,
        torch.softmax,
        torch.tanh,
        Tensor.clone,
        Tensor.contiguous,
        Tensor.detach,
        Tensor.exp,
        Tensor.relu,
        Tensor.relu_,
        Tensor.sigmoid,
        Tensor.sigmoid_,
        Tensor.softmax,
        Tensor.tanh,
    }
)


class Shortcuts(TorchFunctionMode):
    """While active, functions that have a rule are answered by it, and all others run."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in SAME_SHAPE:
            return _like(args[0])
        rule = RULES.get(func)
        if rule is None:
            return func(*args, **named)
        return rule(self.recorder, *args, **named)


def _like(tensor: Tensor) -> Tensor:
    """A tensor of the same shape; whole numbers become floats, as activations make of them."""
    dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
    return tensor.new_empty(tensor.shape, dtype=dtype)


# --- linear layers and convolutions ------------------------------------------------------------------------------


def linear(
    rec: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """(..., in) -> (..., out), with a weight of (out, in)."""
    *batch, features = input.shape
    *outputs, inputs = weight.shape
    rec.width(*outputs, inputs)
    rec.sum_over(inputs)
    rec.equate(features, inputs)
    if bias is not None:
        rec.equate(bias.shape[0], weight.shape[0])
    return input.new_empty((*batch, *outputs))


def convolution(
    rec: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Tensor:
    """(B, in, ...) -> (B, out, ...), with a weight of (out, in / groups, ...)."""
    rank = weight.dim() - 2
    *batch, channels = input.shape[:-rank]
    outputs, inputs_per_group = weight.shape[:2]
    inputs = inputs_per_group * groups
    rec.width(outputs, inputs_per_group)
    rec.sum_over(inputs)
    rec.equate(channels, inputs)
    rec.divide(outputs, groups)
    if bias is not None:
        rec.equate(bias.shape[0], outputs)

    strides = _per_axis(stride, rank)
    dilations = _per_axis(dilation, rank)
    space = []
    for axis in range(rank):
        kernel = as_int(weight.shape[2 + axis])
        size = as_int(input.shape[axis - rank])
        reach = dilations[axis] * (kernel - 1)
        padded = size + _padding(padding, axis, rank, reach)
        positions = (padded - reach - 1) // strides[axis] + 1
        space.append(rec.from_data(positions))
    return input.new_empty((*batch, outputs, *space))


def _padding(
    padding: Any,
    axis: int,
    rank: int,
    reach: int,
) -> int:
    """How much a convolution adds to an axis, both ends together."""
    if isinstance(padding, str):
        return {"same": reach, "valid": 0}[padding]
    return 2 * _per_axis(padding, rank)[axis]


def transposed_convolution(
    rec: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Size = 1,
    dilation: Any = 1,
) -> Tensor:
    """(B, in, ...) -> (B, out, ...), with a weight of (in, out / groups, ...)."""
    rank = weight.dim() - 2
    *batch, channels = input.shape[:-rank]
    inputs, outputs_per_group = weight.shape[:2]
    outputs = outputs_per_group * groups
    rec.width(inputs, outputs_per_group)
    rec.sum_over(inputs)
    rec.equate(channels, inputs)
    rec.divide(inputs, groups)
    if bias is not None:
        rec.equate(bias.shape[0], outputs)

    strides = _per_axis(stride, rank)
    paddings = _per_axis(padding, rank)
    extras = _per_axis(output_padding, rank)
    dilations = _per_axis(dilation, rank)
    space = []
    for axis in range(rank):
        kernel = as_int(weight.shape[2 + axis])
        size = as_int(input.shape[axis - rank])
        spread = strides[axis] * (size - 1)
        reach = dilations[axis] * (kernel - 1)
        cut = 2 * paddings[axis]
        positions = spread + reach - cut + extras[axis] + 1
        space.append(rec.from_data(positions))
    return input.new_empty((*batch, outputs, *space))


def _per_axis(value: Any, rank: int) -> list[int]:
    """An option of a convolution for each spatial axis; one number stands for all."""
    numbers = list(map(as_int, as_tuple(value)))
    if len(numbers) == 1:
        return numbers * rank
    return numbers


def pad(
    rec: Recorder,
    input: Tensor,
    pad: Sequence[Size],
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Axes grow, the last one first. A padded position is the data's; a padded channel is still a channel."""
    shape: list[Size] = list(input.shape)
    pairs = zip(pad[::2], pad[1::2], strict=False)
    for place, (before, after) in enumerate(pairs):
        axis = -1 - place
        old = shape[axis]
        new = old + before + after
        is_width = isinstance(old, torch.SymInt) and not rec.is_data(old)
        shape[axis] = new if is_width else rec.from_data(new)
    return input.new_empty(shape)


# --- norms -------------------------------------------------------------------------------------------------------


def _given_tensors(rest: tuple, options: dict[str, Any]) -> list[Tensor]:
    """The tensors among a norm's arguments: statistics, weight and bias, as far as it has them."""
    given = []
    for value in (*rest, *options.values()):
        if isinstance(value, Tensor):
            given.append(value)
    return given


def batch_norm(
    rec: Recorder,
    input: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """(B, C, ...): statistics, weight and bias have C entries."""
    for tensor in _given_tensors(rest, options):
        rec.equate(input.shape[1], tensor.shape[0])
    return input.new_empty(input.shape)


def layer_norm(
    rec: Recorder,
    input: Tensor,
    normalized_shape: Sequence[Size],
    *rest: Any,
    **options: Any,
) -> Tensor:
    """The last axes have the normalised shape, and so have weight and bias."""
    tensors = _given_tensors(rest, options)
    for axis, size in enumerate(normalized_shape):
        rec.equate(input.shape[axis - len(normalized_shape)], size)
        for tensor in tensors:
            rec.equate(tensor.shape[axis], size)
    return input.new_empty(input.shape)


def group_norm(
    rec: Recorder,
    input: Tensor,
    num_groups: Size,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """(B, C, ...) in groups that divide C. One group per channel stays one per channel."""
    channels = input.shape[1]
    rec.divide(channels, num_groups)
    if as_int(num_groups) == as_int(channels):
        rec.equate(num_groups, channels)
    return batch_norm(rec, input, *rest, **options)


# --- attention ---------------------------------------------------------------------------------------------------


def attention(
    rec: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """(..., heads, L, E), (..., heads, S, E), (..., heads, S, V) -> (..., heads, L, V)."""
    *batch, length, width = query.shape
    key_length, key_width = key.shape[-2:]
    value_length, value_width = value.shape[-2:]
    rec.sum_over(width, value_width)
    rec.equate(width, key_width)
    rec.equate(key_length, value_length)
    heads_axis = len(batch) - 1
    is_grouped = options.get("enable_gqa", False)
    for axis, size in enumerate(batch):
        key_size = key.shape[axis]
        rec.equate(key_size, value.shape[axis])
        if is_grouped and axis == heads_axis:
            # Several heads of queries share one head of keys and values.
            rec.divide(size, key_size)
        elif as_int(size) == as_int(key_size):
            rec.equate(size, key_size)
    mask = rest[0] if rest else options.get("attn_mask")
    if mask is not None:
        _equate_broadcast(rec, mask.shape, (*batch, length, key_length))
    return query.new_empty((*batch, length, value_width))


def _equate_broadcast(rec: Recorder, shape: Sequence[Size], target: Sequence[Size]) -> None:
    """Axes are the same, counted from the last, where the smaller tensor does not broadcast."""
    for size, wanted in zip(reversed(shape), reversed(target), strict=False):
        if as_int(size) > 1:
            rec.equate(size, wanted)


RULES: dict[Callable, Callable[..., Tensor]] = {
    F.linear: linear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.conv_transpose1d: transposed_convolution,
    F.conv_transpose2d: transposed_convolution,
    F.conv_transpose3d: transposed_convolution,
    F.pad: pad,
    F.batch_norm: batch_norm,
    F.instance_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.rms_norm: layer_norm,
    F.group_norm: group_norm,
    F.scaled_dot_product_attention: attention,
}
