"""Operators that cut axes or look entries up in them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, broadcast, rule
from covey.surgery.operators.order import axis_of, without
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Size, Sizes, carries_data, is_learnt, sizes_of, values


def _fix(facts: Facts, tensor: Tensor, size: int) -> None:
    """Write down that an axis is read at fixed places; where it carries data it is a width, but one that stays."""
    if not carries_data(tensor) and not is_learnt(tensor) and isinstance(size, Size):
        # the rows of a constant, such as a grid's points, are no widths, nor what is made as long as they are
        facts.recorder.equate(size, facts.recorder.from_data(size))
    facts.recorder.position(size)
    if carries_data(tensor):
        facts.recorder.sum_over(size)


@rule("aten.embedding")
def _embedding(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rows, width = sizes_of(args[0])
    facts.recorder.position(rows)
    return [(*sizes_of(args[1]), width)]


@rule("aten.index")
def _index(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Indexing by tensors: the indices' own shape takes the place of the axes that they look up."""
    sizes = sizes_of(args[0])
    indices = {axis: index for axis, index in enumerate(args[1]) if index is not None}
    for axis in indices:
        _fix(facts, args[0], sizes[axis])
    return [_indexed(facts, sizes, indices)]


def _indexed(facts: Facts, sizes: Sizes, indices: dict[int, Tensor]) -> Sizes:
    """The sizes of what indices by axis pick of a tensor."""
    looked_up = broadcast(facts.recorder, [sizes_of(index) for index in indices.values()])
    looked_up = _picked(facts, [sizes[axis] for axis in indices], looked_up)
    kept = [size for axis, size in enumerate(sizes) if axis not in indices]
    first, last = min(indices), max(indices)
    is_together = last - first + 1 == len(indices)
    place = first if is_together else 0
    return (*kept[:place], *looked_up, *kept[place:])


def _picked(facts: Facts, axes: Sequence[int], looked_up: Sizes) -> Sizes:
    """How many a list of indices picks; of an axis of the data, by a list that is a constant, that is data too."""
    if not all(facts.recorder.is_data(size) for size in axes):
        return looked_up
    return tuple(size if isinstance(size, Size) else facts.recorder.from_data(size) for size in looked_up)


@rule("aten.index_put")
def _index_put(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """What is written is as large as what it is written over."""
    sizes = sizes_of(args[0])
    indices = {axis: index for axis, index in enumerate(args[1]) if index is not None}
    for axis in indices:
        facts.recorder.position(sizes[axis])
    broadcast(facts.recorder, [_indexed(facts, sizes, indices), sizes_of(args[2])])
    return [sizes]


@rule("aten.index_select")
def _index_along_axis(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """`index_select`: one axis is as long as the list of indices."""
    sizes = list(sizes_of(args[0]))
    axis = axis_of(args, kwargs)
    _fix(facts, args[0], sizes[axis])
    (sizes[axis],) = _picked(facts, [sizes[axis]], sizes_of(args[2]) or (1,))
    return [tuple(sizes)]


@rule("aten.gather")
def _gather(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    _fix(facts, args[0], sizes[axis_of(args, kwargs)])
    return [sizes_of(args[2])]


@rule("aten.index_add", "aten.index_copy")
def _index_add(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Rows of a tensor go to the places that an index says; the other axes are the same."""
    axis = axis_of(args, kwargs)
    sizes = sizes_of(args[0])
    facts.recorder.position(sizes[axis])
    rows = without(sizes_of(args[3]), axis)
    broadcast(facts.recorder, [without(sizes, axis), rows])
    return [sizes]


@rule("aten._fft_r2c", "aten._fft_c2r", "aten.constant_pad_nd")
def _spectrum(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """The last axis of a Fourier transform of real numbers is about half as long; zeros may be put behind it before."""
    old = sizes_of(args[0])
    sizes = []
    for size, value in zip(old, values(made[0].shape), strict=True):
        if int(size) == value:
            sizes.append(size)
            continue
        facts.recorder.position(size)
        sizes.append(facts.recorder.from_data(value))
    return [tuple(sizes)]


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def _bag(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rows, width = sizes_of(args[0])
    facts.recorder.position(rows)
    return [(facts.recorder.from_data(made[0].shape[0]), width)]


@rule("aten.scatter", "aten.scatter_add")
def _scatter(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    facts.recorder.position(sizes[axis_of(args, kwargs)])
    return [sizes]


@rule("aten.select")
def _select(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axis = axis_of(args, kwargs)
    if int(args[2]) not in (0, -1):  # every axis has a first and a last entry
        _fix(facts, args[0], sizes[axis])
    return [without(sizes, axis)]


@rule("aten.unbind")
def _unbind(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axis = axis_of(args, kwargs)
    _fix(facts, args[0], sizes[axis])
    return [without(sizes, axis)] * len(made)


@rule("aten.slice")
def _slice(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """An axis that is cut at a fixed place is made of positions: channels have no order that a cut could follow."""
    sizes = list(sizes_of(args[0]))
    axis = axis_of(args, kwargs)
    size = sizes[axis]
    start, stop, step = [*args[2:5], None, None, None][:3]
    begin = _bound(facts, start, size, 0)
    end = _bound(facts, stop, size, size)
    is_every_other = step is not None and 1 < int(step) <= int(size) and int(start or 0) < int(step)
    if _is_cut(facts, (stop,) if is_every_other else (start, stop), size):
        _fix(facts, args[0], size)
    length = end - begin
    if step is not None and int(step) > 1:
        length = -(-length // step)
    value = made[0].shape[axis]
    sizes[axis] = length if int(length) == value else value
    return [tuple(sizes)]


def _bound(facts: Facts, bound: int | None, size: int, default: int) -> int:
    """The place where a slice begins or ends, counted from the first entry."""
    if bound is None:
        return default
    if int(bound) >= int(size):
        return size
    known = facts.call.number(int(bound))
    place = bound if known is None else known
    return place if int(bound) >= 0 else size + place


def _is_cut(facts: Facts, bounds: Sequence[int | None], size: int) -> bool:
    """Whether a slice cuts something off, at places that follow no width."""
    cuts = []
    for bound in bounds:
        if bound is not None and -int(size) < int(bound) < int(size) and int(bound) != 0:
            known = facts.call.number(int(bound))
            cuts.append(bound if known is None else known)
    return bool(cuts) and not any(map(facts.recorder.is_width, cuts))


@rule("aten.split", "aten.split_with_sizes")
def _split(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Parts of one size each, or of sizes from a list; only the last may be shorter."""
    sizes = sizes_of(args[0])
    axis = axis_of(args, kwargs, place=2)
    lengths = [tensor.shape[axis] for tensor in made]
    if isinstance(args[1], int):
        known = facts.call.number(int(args[1]))
        each = args[1] if known is None else known
        parts: list[int] = [each] * len(made)
        if int(lengths[-1]) != int(each):
            parts[-1] = sizes[axis] - each * (len(made) - 1)
    else:
        given = facts.call.given(args[1])
        parts = [length if size is None else size for size, length in zip(given, lengths, strict=True)]
    if not all(isinstance(part, Size) for part in parts):
        facts.recorder.sum_over(sizes[axis])
    return split_sizes(facts.recorder, sizes, axis, parts)


def split_sizes(rec: Recorder, sizes: Sizes, axis: int, parts: Sequence[int]) -> list[Sizes]:
    """The sizes of the parts into which an axis is split."""
    rec.equate(sizes[axis], sum(parts[1:], parts[0]))
    rec.compose(sizes[axis], "sum", tuple(parts))
    return [(*sizes[:axis], part, *sizes[axis + 1 :]) for part in parts]


@rule("aten.topk")
def _top(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """The largest k of an axis."""
    sizes = list(sizes_of(args[0]))
    axis = axis_of(args, kwargs, place=2, default=-1)
    _fix(facts, args[0], sizes[axis])
    known = facts.call.number(int(args[1]))
    sizes[axis] = args[1] if known is None else known
    return [tuple(sizes)] * len(made)
