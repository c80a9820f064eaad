"""Functions whose sizes the network's code gives."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covey.surgery.operators import (
    split_sizes,
)
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Size, Sizes, product, sizes_of


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
