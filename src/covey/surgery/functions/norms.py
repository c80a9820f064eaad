"""Norms and activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from covey.surgery.attributes import as_tuple
from covey.surgery.functions.given import chunk
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, sizes_of


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
