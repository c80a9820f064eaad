"""Linear layers, convolutions, and what makes windows for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from covey.surgery.attributes import as_tuple
from covey.surgery.operators import (
    fix_constant,
    space_sizes,
)
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, product, sizes_of


def linear(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Sizes:
    """(..., in) -> (..., out), with a weight of (out, in)."""
    fix_constant(rec, input)
    *batch, features = sizes_of(input)
    *outputs, inputs = sizes_of(weight)
    rec.width(*outputs, inputs)
    rec.sum_over(inputs)
    rec.equate(features, inputs)
    if bias is not None:
        rec.equate(sizes_of(bias)[0], outputs[0])
    return (*batch, *outputs)


def bilinear(
    rec: Recorder,
    made: Tensor,
    /,
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Sizes:
    """(..., in1) and (..., in2) -> (..., out), with a weight of (out, in1, in2)."""
    *batch, features1 = sizes_of(input1)
    features2 = sizes_of(input2)[-1]
    outputs, inputs1, inputs2 = sizes_of(weight)
    rec.width(outputs, inputs1, inputs2)
    rec.sum_over(inputs1, inputs2)
    rec.equate(features1, inputs1)
    rec.equate(features2, inputs2)
    if bias is not None:
        rec.equate(sizes_of(bias)[0], outputs)
    return (*batch, outputs)


def convolution(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Sizes:
    """(B, in, ...) -> (B, out, ...), with a weight of (out, in / groups, ...)."""
    fix_constant(rec, input)
    outputs, inputs_per_group, *kernel = sizes_of(weight)
    *batch, channels = sizes_of(input)[: -len(kernel)]
    inputs = inputs_per_group * groups
    rec.width(outputs, inputs_per_group)
    rec.sum_over(inputs)
    rec.equate(channels, inputs)
    rec.divide(outputs, groups)
    if bias is not None:
        rec.equate(sizes_of(bias)[0], outputs)
    return (*batch, outputs, *_space_of_convolution(rec, input, made, len(kernel)))


def transposed_convolution(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Sizes:
    """(B, in, ...) -> (B, out, ...), with a weight of (in, out / groups, ...)."""
    inputs, outputs_per_group, *kernel = sizes_of(weight)
    *batch, channels = sizes_of(input)[: -len(kernel)]
    outputs = outputs_per_group * groups
    rec.width(inputs, outputs_per_group)
    rec.sum_over(inputs)
    rec.equate(channels, inputs)
    rec.divide(inputs, groups)
    if bias is not None:
        rec.equate(sizes_of(bias)[0], outputs)
    return (*batch, outputs, *_space_of_convolution(rec, input, made, len(kernel)))


def _space_of_convolution(rec: Recorder, input: Tensor, made: Tensor, rank: int) -> Sizes:
    """The axes over which a kernel moves. Where it keeps their size they may even be channels."""
    return space_sizes(rec, sizes_of(input), made, rank)[-rank:]


def pad(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    pad: Sequence[int],
    *rest: Any,
    **options: Any,
) -> Sizes:
    """Axes grow, the last one first. A padded position is the data's; a padded channel is still a channel."""
    shape = list(sizes_of(input))
    pairs = zip(pad[::2], pad[1::2], strict=False)
    for place, (before, after) in enumerate(pairs):
        axis = -1 - place
        new = shape[axis] + before + after
        shape[axis] = new if rec.is_width(shape[axis]) else rec.from_data(new)
    return tuple(shape)


def unfold(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    kernel_size: Any,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(B, C, H, W) -> (B, C x kernel, positions)."""
    *batch, channels = sizes_of(input)[:-2]
    kernel = _kernel_entries(kernel_size)
    rec.compose(channels * kernel, "product", (channels, kernel))
    return (*batch, channels * kernel, rec.from_data(made.shape[-1]))


def fold(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    output_size: Any,
    kernel_size: Any,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(B, C x kernel, positions) -> (B, C, H, W)."""
    *batch, entries, _ = sizes_of(input)
    kernel = _kernel_entries(kernel_size)
    channels = entries // kernel
    rec.compose(entries, "product", (channels, kernel))
    return (*batch, channels, *map(rec.from_data, made.shape[-2:]))


def _kernel_entries(kernel_size: Any) -> int:
    sides = as_tuple(kernel_size)
    return product(sides * 2 if len(sides) == 1 else sides)
