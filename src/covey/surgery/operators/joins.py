"""Operators that put axes together or take them apart: concatenation, repetition and views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, broadcast, rule
from covey.surgery.operators.order import axis_of, without
from covey.surgery.sizes import Size, Sizes, carries_data, product, sizes_of, values
from covey.surgery.source import user_line


@rule("aten.cat")
def _concatenation(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rec = facts.recorder
    # PyTorch lets an empty list of numbers be joined to anything.
    tensors = [tensor for tensor in args[0] if tensor.dim() > 1 or tensor.numel() > 0]
    if not tensors:
        return [tuple(made[0].shape)]
    axis = axis_of((tensors, *args[1:]), kwargs)
    shapes = [sizes_of(tensor) for tensor in tensors]
    parts = tuple(shape[axis] for shape in shapes)
    if any(map(rec.is_data, parts)):
        for tensor, part in zip(tensors, parts, strict=True):
            if not carries_data(tensor):
                rec.position(part)  # class tokens and the like, put next to the data
        parts = tuple(part if isinstance(part, Size) else rec.number(part) for part in parts)
    whole = sum(parts[1:], parts[0])
    rec.compose(whole, "sum", parts)
    others = broadcast(rec, [without(shape, axis) for shape in shapes])
    return [(*others[:axis], whole, *others[axis:])]


@rule("aten.stack")
def _stack(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    sizes = list(broadcast(facts.recorder, [sizes_of(tensor) for tensor in args[0]]))
    sizes.insert(int(axis) % (len(sizes) + 1), len(args[0]))
    return [tuple(sizes)]


@rule("aten.repeat")
def _repeat(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    times = facts.call.given(args[1])
    old = sizes_of(args[0])
    old = (1,) * (len(times) - len(old)) + tuple(old)
    sizes = []
    for size, given, plain in zip(old, times, args[1], strict=True):
        sizes.append(size * (plain if given is None else given))
    return [tuple(sizes)]


@rule("aten.expand")
def _expand(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    shape = values(made[0].shape)
    given = facts.call.given(args[1])
    old = (1,) * (len(shape) - args[0].dim()) + tuple(sizes_of(args[0]))
    sizes: list[int] = []
    for size, wanted, value in zip(old, given, shape, strict=True):
        if int(size) == value and value > 1:
            if wanted is not None and int(wanted) == value:
                facts.recorder.equate(size, wanted)
            sizes.append(size)
        elif wanted is not None and int(wanted) == value:
            sizes.append(wanted)
        else:
            sizes.append(facts.call.guess(value))
    return [tuple(sizes)]


@rule("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias")
def _view(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rec = facts.recorder
    sizes = view_sizes(facts, sizes_of(args[0]), args[1], values(made[0].shape))
    where = user_line(rec.modules)
    if where is not None:
        viewed = rec.viewed.setdefault(where.module, set())
        viewed.update(size.formula for size in sizes if isinstance(size, Size))
    return [sizes]


def view_sizes(facts: Facts, before: Sizes, wanted: Sequence[int], shape: Sizes) -> Sizes:
    """The sizes of a view: axes are matched from the left, one or several old ones to one or several new ones."""
    given = [None if size is None or int(size) == -1 else size for size in facts.call.given(wanted)]
    sizes: list[int] = []
    for olds, news in _matched(before, shape):
        start = len(sizes)
        some = given[start : start + len(news)]
        sizes += _reshaped(facts, olds, values(news), some)
    for size, value in zip(given[len(sizes) :], shape[len(sizes) :], strict=True):
        sizes.append(value if size is None else size)  # axes of 1 at the end
    return tuple(sizes)


def _matched(before: Sizes, after: Sizes) -> Iterator[tuple[Sizes, Sizes]]:
    """Pairs of neighbouring axes that hold as many entries, before and after a view."""
    i = j = 0
    while i < len(before) and j < len(after):
        i_end, j_end = i + 1, j + 1
        left, right = int(before[i]), int(after[j])
        while left != right:
            if left < right:
                left *= int(before[i_end])
                i_end += 1
            else:
                right *= int(after[j_end])
                j_end += 1
        yield before[i:i_end], after[j:j_end]
        i, j = i_end, j_end


def _reshaped(
    facts: Facts,
    olds: Sizes,
    news: Sizes,
    given: list[int | None],
) -> list[int]:
    """The new sizes of axes that were split or merged; what the network's code did not give follows from the rest."""
    rec = facts.recorder
    if len(olds) == len(news) == 1 and given[0] is None:
        return list(olds)
    whole = product(olds)
    sizes = list(given)
    unknown = [place for place, size in enumerate(sizes) if size is None and news[place] != 1]
    for place, size in enumerate(sizes):
        if size is None and (news[place] == 1 or place in unknown[:-1]):
            sizes[place] = 1 if news[place] == 1 else facts.call.guess(news[place])
    if unknown:
        others = product(size for size in sizes if size is not None)
        sizes[unknown[-1]] = whole // others if int(others) != 1 else whole
        if isinstance(whole, Size):
            rec.divide(whole, others)
    else:
        rec.equate(whole, product(size for size in sizes if size is not None))
        if not any(isinstance(size, Size) for size in sizes):
            rec.sum_over(*olds)  # numbers in the network's code: a width, but one that stays
    done = [size for size in sizes if size is not None]
    if len(olds) == 1 and len(done) > 1:
        rec.compose(olds[0], "product", tuple(done))
    elif len(done) == 1 and len(olds) > 1:
        rec.compose(done[0], "product", olds)
    return done
