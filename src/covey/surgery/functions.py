"""What the functions that a network calls say about sizes: one short rule each, looked up in a table.

A rule takes the recorder, the function's result and its own arguments, writes down what it learns, and returns the
sizes of the result. A function without a rule here is followed through the operators that it runs (`operators`).

To teach narrowing another function, write such a rule and add it to `RULES`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from covey.surgery.attributes import as_tuple
from covey.surgery.operators import (
    Call,
    Facts,
    broadcast,
    fix_constant,
    matrix_product,
    note_origin,
    space_sizes,
    split_sizes,
)
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Size, Sizes, mark, product, sizes_of
from covey.surgery.source import is_torchs
from covey.surgery.torch_internals import leaves


class Following(TorchFunctionMode):
    """While active, every size that the network's code reads remembers where it comes from."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        named = kwargs or {}
        read = READ.get(func)
        if read is not None:
            return read(*args, **named)
        rule = RULES.get(func)
        with self.facts.during(Call(args, named), is_silent=rule is not None):
            # Fake tensors take long over norms, whose result looks like what they are given.
            out = torch.empty_like(args[0]) if func in LIKE_INPUT else func(*args, **named)
        if rule is None:
            return out
        made = [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]
        sizes = rule(self.facts.recorder, made[0], *args, **named)
        every = sizes if isinstance(sizes, list) else [sizes]
        for tensor, its_sizes in zip(made, every, strict=False):
            mark(tensor, its_sizes)
        note_origin((args, named), made)
        return out


# --- reading sizes -----------------------------------------------------------------------------------------------


def _shape(tensor: Tensor) -> Any:
    return torch.Size(sizes_of(tensor))


def _size(tensor: Tensor, dim: int | None = None) -> Any:
    return _shape(tensor) if dim is None else sizes_of(tensor)[dim]


def _count(tensor: Tensor) -> int:
    return product(sizes_of(tensor))


def _truth(tensor: Tensor) -> bool:
    """PyTorch's own layers look whether a mask is causal, to run faster if it is; networks may not ask."""
    caller = sys._getframe(2).f_code.co_filename
    return False if is_torchs(caller) else Tensor.__bool__(tensor)


READ: dict[Callable, Callable[..., Any]] = {
    Tensor.shape.__get__: _shape,  # type: ignore[attr-defined]
    Tensor.size: _size,
    Tensor.numel: _count,
    Tensor.nelement: _count,
    torch.numel: _count,
    Tensor.__bool__: _truth,
}


# --- linear layers and convolutions ------------------------------------------------------------------------------


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


# --- channels as space -------------------------------------------------------------------------------------------


def pixel_shuffle(rec: Recorder, made: Tensor, /, input: Tensor, upscale_factor: int) -> Sizes:
    """(..., C r r, H, W) -> (..., C, H r, W r)."""
    *batch, channels = sizes_of(input)[:-2]
    factor = int(upscale_factor)
    fewer = channels // (factor * factor)
    rec.compose(channels, "product", (fewer, factor * factor))
    return (*batch, fewer, *map(rec.from_data, made.shape[-2:]))


def pixel_unshuffle(rec: Recorder, made: Tensor, /, input: Tensor, downscale_factor: int) -> Sizes:
    """(..., C, H r, W r) -> (..., C r r, H, W)."""
    *batch, channels = sizes_of(input)[:-2]
    factor = int(downscale_factor)
    more = channels * (factor * factor)
    rec.compose(more, "product", (channels, factor * factor))
    return (*batch, more, *map(rec.from_data, made.shape[-2:]))


def channel_shuffle(rec: Recorder, made: Tensor, /, input: Tensor, groups: int) -> Sizes:
    """(B, C, ...) with C in groups."""
    sizes = sizes_of(input)
    rec.divide(sizes[1], groups)
    return sizes


def resized(rec: Recorder, made: Tensor, /, input: Tensor, *rest: Any, **options: Any) -> Sizes:
    """(B, C, ...) -> (B, C, ...) with other positions."""
    return space_sizes(rec, sizes_of(input), made, input.dim() - 2)


def grid_sample(
    rec: Recorder, made: Tensor, /, input: Tensor, grid: Tensor, *rest: Any, **options: Any
) -> Sizes:
    """(B, C, ...) and (B, ..., 2) -> (B, C, ...) at the grid's positions."""
    batch, channels = sizes_of(input)[:2]
    return (batch, channels, *sizes_of(grid)[1:-1])


# --- norms and activations ---------------------------------------------------------------------------------------


def _given_tensors(rest: tuple, options: dict[str, Any]) -> list[Tensor]:
    """The tensors among a norm's arguments: statistics, weight and bias, as far as it has them."""
    return [value for value in (*rest, *options.values()) if isinstance(value, Tensor)]


def batch_norm(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(B, C, ...): statistics, weight and bias have C entries."""
    sizes = sizes_of(input)
    for tensor in _given_tensors(rest, options):
        rec.equate(sizes[1], sizes_of(tensor)[0])
    return sizes


def layer_norm(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    normalized_shape: Sequence[int],
    *rest: Any,
    **options: Any,
) -> Sizes:
    """The last axes have the normalised shape, and so have weight and bias."""
    sizes = sizes_of(input)
    tensors = _given_tensors(rest, options)
    for axis, size in enumerate(as_tuple(normalized_shape)):
        rec.equate(sizes[axis - len(as_tuple(normalized_shape))], size)
        for tensor in tensors:
            rec.equate(sizes_of(tensor)[axis], size)
    return sizes


def group_norm(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    num_groups: int,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(B, C, ...) in groups that divide C. One group per channel stays one per channel."""
    channels = sizes_of(input)[1]
    rec.divide(channels, num_groups)
    if int(num_groups) == int(channels):
        rec.equate(num_groups, channels)
    return batch_norm(rec, made, input, *rest, **options)


def prelu(rec: Recorder, made: Tensor, /, input: Tensor, weight: Tensor) -> Sizes:
    """(B, C, ...) with one slope for all channels or one for each."""
    sizes = sizes_of(input)
    if weight.numel() > 1:
        rec.equate(sizes[1], sizes_of(weight)[0])
    return sizes


def same(rec: Recorder, made: Tensor, /, input: Tensor, *rest: Any, **options: Any) -> Sizes:
    """As large as the first argument."""
    return sizes_of(input)


def glu(rec: Recorder, made: Tensor, /, input: Tensor, dim: int = -1) -> Sizes:
    """One half of an axis gates the other."""
    return chunk(rec, made, input, 2, dim)[0]


# --- products ----------------------------------------------------------------------------------------------------


def matmul(rec: Recorder, made: Tensor, /, input: Tensor, other: Tensor) -> Sizes:
    """Products of matrices, batched or not."""
    return matrix_product(rec, input, other)


def reversed_matmul(rec: Recorder, made: Tensor, /, input: Tensor, other: Tensor) -> Sizes:
    """`other @ input`."""
    return matrix_product(rec, other, input)


def einsum(rec: Recorder, made: Tensor, /, equation: str, *operands: Any) -> Sizes:
    """Each letter is one size; letters that the result lacks are summed over."""
    tensors = [leaf for leaf in leaves(operands) if isinstance(leaf, Tensor)]
    inputs, _, answer = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not answer and "->" not in equation:
        answer = "".join(sorted(letter for letter in set(inputs) - set(",.") if inputs.count(letter) == 1))
        answer = "..." + answer if "..." in inputs else answer
    found: dict[str, int] = {}
    batches = []
    for term, tensor in zip(terms, tensors, strict=True):
        sizes = sizes_of(tensor)
        before, dots, after = term.partition("...")
        if dots:
            batches.append(sizes[len(before) : len(sizes) - len(after)])
        ends = [*zip(before, sizes, strict=False), *zip(reversed(after), reversed(sizes), strict=False)]
        for letter, size in ends:
            if int(size) > 1 and int(found.get(letter, 1)) > 1:
                rec.equate(found[letter], size)
            if int(size) > 1 or letter not in found:
                found.setdefault(letter, size)
                found[letter] = found[letter] if int(found[letter]) > 1 else size
        if not any(map(rec.is_data, sizes)):  # a weight
            rec.width(*sizes)
    rec.sum_over(*[size for letter, size in found.items() if letter not in answer])
    before, dots, after = answer.partition("...")
    batch = broadcast(rec, batches) if dots else ()
    return (*[found[letter] for letter in before], *batch, *[found[letter] for letter in after])


def attention(
    rec: Recorder,
    made: Tensor,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(..., heads, L, E), (..., heads, S, E), (..., heads, S, V) -> (..., heads, L, V)."""
    *batch, length, width = sizes_of(query)
    *key_batch, key_length, key_width = sizes_of(key)
    *value_batch, value_length, value_width = sizes_of(value)
    rec.sum_over(width, value_width)
    rec.equate(width, key_width)
    rec.equate(key_length, value_length)
    heads_axis = len(batch) - 1
    is_grouped = options.get("enable_gqa", False)
    for axis, (size, key_size, value_size) in enumerate(zip(batch, key_batch, value_batch, strict=True)):
        if int(key_size) == int(value_size):
            rec.equate(key_size, value_size)
        if is_grouped and axis == heads_axis:
            # Several heads of queries share one head of keys and values.
            rec.divide(size, key_size)
        elif int(size) == int(key_size):
            rec.equate(size, key_size)
    if attn_mask is not None:
        target = (*batch, length, key_length)
        for size, wanted in zip(reversed(sizes_of(attn_mask)), reversed(target), strict=False):
            if int(size) > 1:
                rec.equate(size, wanted)
    return (*batch, length, value_width)


def multi_head_attention(
    rec: Recorder,
    made: Tensor,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    **options: Any,
) -> Sizes:
    """What nn.MultiheadAttention runs: (L, B, E) -> (L, B, E)."""
    *lengths, width = sizes_of(query)
    rec.equate(width, embed_dim_to_check)
    rec.divide(width, num_heads)
    for given in (query, key, value):
        rec.position(sizes_of(given)[0])  # learned queries are a list, not a width
    if in_proj_weight is not None and in_proj_weight.dim() == 2:
        rec.equate(sizes_of(key)[-1], width)
        rec.equate(sizes_of(value)[-1], width)
    rec.compose(width, "product", (num_heads, width // num_heads))
    projections = {
        "q_proj_weight": (width, width),
        "k_proj_weight": (width, sizes_of(key)[-1]),
        "v_proj_weight": (width, sizes_of(value)[-1]),
    }
    pairs: list[tuple[Tensor | None, Sizes]] = [
        (options.get(name), sizes) for name, sizes in projections.items()
    ]
    pairs.append((in_proj_weight, (3 * width, width)))
    pairs.append((in_proj_bias, (3 * width,)))
    pairs.append((out_proj_weight, (width, width)))
    pairs.append((out_proj_bias, (width,)))
    pairs.append((bias_k, (1, 1, width)))
    pairs.append((bias_v, (1, 1, width)))
    for tensor, wanted in pairs:
        if tensor is None or tensor.dim() != len(wanted):
            continue
        sizes = sizes_of(tensor)
        for size, other in zip(sizes, wanted, strict=True):
            rec.equate(size, other)
        if len(sizes) == 2:
            rec.width(*sizes)
            rec.sum_over(sizes[1])
    rec.compose(3 * width, "product", (3, width))
    return (*lengths, width)


# --- sizes that the network's code gives -------------------------------------------------------------------------


def chunk(rec: Recorder, made: Tensor, /, input: Tensor, chunks: int, dim: int = 0) -> list[Sizes]:
    """Equal parts of an axis; the last may be shorter."""
    sizes = sizes_of(input)
    axis = dim % len(sizes)
    each = made.shape[axis]
    count = -(-int(sizes[axis]) // each)
    if int(sizes[axis]) == each * count:
        part = sizes[axis] // count
        return split_sizes(rec, sizes, axis, [part] * count)
    rec.position(sizes[axis])
    return split_sizes(rec, sizes, axis, [each] * (count - 1) + [sizes[axis] - each * (count - 1)])


def repeat_interleave(
    rec: Recorder,
    made: Tensor,
    /,
    input: Tensor,
    repeats: Any,
    dim: int | None = None,
    **options: Any,
) -> Sizes:
    """Each entry of an axis several times."""
    sizes = list(sizes_of(input))
    if dim is None:
        sizes, dim = [product(sizes)], 0
    old = sizes[dim]
    if isinstance(repeats, int):
        sizes[dim] = old * repeats
        rec.compose(sizes[dim], "product", (old, repeats))
    else:
        sizes[dim] = rec.from_data(made.shape[dim])
    return tuple(sizes)


def as_other(rec: Recorder, made: Tensor, /, input: Tensor, other: Tensor) -> Sizes:
    """As large as the second argument."""
    return sizes_of(other)


def arange(rec: Recorder, made: Tensor, /, *numbers: Any, **options: Any) -> Sizes:
    """Numbers from start to end."""
    start = options.get("start", numbers[0] if len(numbers) > 1 else 0)
    end = options.get("end", numbers[1] if len(numbers) > 1 else (numbers or (0,))[0])
    step = options.get("step", numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(end, Size) and not isinstance(start, Size):
        return tuple(made.shape)
    length = end - start
    if step != 1 and isinstance(step, int):
        length = -(-length // step)
    return (length,) if int(length) == made.shape[0] and isinstance(length, int) else tuple(made.shape)


RULES: dict[Callable, Callable[..., Any]] = {
    F.linear: linear,
    F.bilinear: bilinear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.conv_transpose1d: transposed_convolution,
    F.conv_transpose2d: transposed_convolution,
    F.conv_transpose3d: transposed_convolution,
    F.pad: pad,
    F.unfold: unfold,
    F.fold: fold,
    F.pixel_shuffle: pixel_shuffle,
    F.pixel_unshuffle: pixel_unshuffle,
    F.channel_shuffle: channel_shuffle,
    F.interpolate: resized,
    F.adaptive_avg_pool1d: resized,
    F.adaptive_avg_pool2d: resized,
    F.adaptive_avg_pool3d: resized,
    F.grid_sample: grid_sample,
    F.batch_norm: batch_norm,
    F.instance_norm: batch_norm,
    F.local_response_norm: same,
    F.layer_norm: layer_norm,
    F.rms_norm: layer_norm,
    F.group_norm: group_norm,
    torch.batch_norm: batch_norm,
    torch.instance_norm: batch_norm,
    torch.layer_norm: layer_norm,
    torch.group_norm: group_norm,
    F.prelu: prelu,
    F.normalize: same,
    F.dropout: same,
    F.glu: glu,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    Tensor.__rmatmul__: reversed_matmul,
    torch.einsum: einsum,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
    torch.chunk: chunk,
    Tensor.chunk: chunk,
    torch.repeat_interleave: repeat_interleave,
    Tensor.repeat_interleave: repeat_interleave,
    Tensor.reshape_as: as_other,
    Tensor.view_as: as_other,
    Tensor.expand_as: as_other,
    torch.arange: arange,
}

LIKE_INPUT = frozenset(
    {
        F.batch_norm,
        F.instance_norm,
        F.layer_norm,
        F.rms_norm,
        F.group_norm,
        F.local_response_norm,
        F.normalize,
        F.prelu,
        F.dropout,
        torch.batch_norm,
        torch.instance_norm,
        torch.layer_norm,
        torch.group_norm,
    }
)
