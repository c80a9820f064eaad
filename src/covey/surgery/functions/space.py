"""Functions that take channels for space, or change the extent of the data."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covey.surgery.operators import (
    space_sizes,
)
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, sizes_of


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
