"""How sizes pass through PyTorch's operators, and what operators tell about them.

`functions` works on what a network calls, this module on what is run below. Most operators work element by element, and
one rule serves them all: axes that are not broadcast are the same. The others have a rule in `RULES`, which writes
down what it learns and returns the sizes of the result. An operator that is neither is refused if its result could
have a width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from covey.surgery.recorder import Recorder
from covey.surgery.sizes import (
    Size,
    Sizes,
    carries_data,
    is_learnt,
    mark,
    mark_data,
    mark_learnt,
    product,
    sizes_of,
    values,
)
from covey.surgery.source import user_line
from covey.surgery.torch_internals import leaves, require_operators

Named = dict[str, Any]  # an operator's arguments by keyword


class Call:
    """What the network's code handed to the function that is running.

    Operators are given plain numbers. Those that the network's code gave, and where they come from, are told by value.
    """

    def __init__(self, args: Any = (), kwargs: Any = None) -> None:
        self._given = (args, kwargs or {})
        self._numbers: list[int] | None = None
        self._axes: list[Size] | None = None

    @property
    def numbers(self) -> list[int]:
        """All whole numbers among the arguments, in order."""
        if self._numbers is None:
            self._numbers = list(_whole_numbers(leaves(self._given)))
        return self._numbers

    @property
    def axes(self) -> list[Size]:
        """The sizes of all tensors among the arguments."""
        if self._axes is None:
            self._axes = []
            for leaf in leaves(self._given):
                if isinstance(leaf, Tensor):
                    self._axes += [size for size in sizes_of(leaf) if isinstance(size, Size)]
        return self._axes

    def given(self, wanted: Sequence[int]) -> list[int | None]:
        """For each number that an operator got: what the network's code gave for it, or None if it gave none."""
        plain = values(wanted)
        numbers = self.numbers
        for start in range(len(numbers) - len(plain) + 1):
            some = numbers[start : start + len(plain)]
            if _agree(values(some), plain):
                return [None if int(number) == -1 else number for number in some]
        left = list(numbers)  # each is used once
        found = []
        for value in plain:
            number = _of_value(value, left)
            if number is not None:
                del left[_place(number, left)]
            found.append(number)
        return found

    def number(self, value: int) -> int | None:
        """What the network's code gave for one number."""
        return _of_value(value, self.numbers)

    def guess(self, value: int) -> int:
        """A number that PyTorch's own code worked out: an axis of this size, if the arguments have one."""
        for size in self.axes:
            if int(size) == value:
                return size
        return value


def _agree(some: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether numbers are those that an operator got; it may have got something else for -1."""
    return all(one in (other, -1) for one, other in zip(some, wanted, strict=True))


def _of_value(value: int, numbers: Sequence[int]) -> int | None:
    """The first number of this value, one that knows where it comes from if there is one."""
    same = [number for number in numbers if int(number) == value]
    sizes = [number for number in same if isinstance(number, Size)]
    return next(iter(sizes or same), None)


def _place(number: int, numbers: Sequence[int]) -> int:
    """Where a number stands; `index` would compare sizes, and the recorder would hear it."""
    return next(place for place, other in enumerate(numbers) if other is number)


def _whole_numbers(found: Sequence[Any]) -> Iterator[int]:
    for leaf in found:
        if isinstance(leaf, slice):
            yield from _whole_numbers((leaf.start, leaf.stop, leaf.step))
        elif isinstance(leaf, int) and not isinstance(leaf, bool):
            yield leaf


class Facts:
    """Follows sizes through operators; made for `torch_internals.watch_operators`.

    Attributes:
        recorder: where what is learnt is written down.
        call: the function of the network's code that is running.
    """

    def __init__(self, recorder: Recorder) -> None:
        require_operators(RULES.keys())
        self.recorder = recorder
        self.call = Call()
        self.is_silent = False

    def observe(
        self,
        name: str,
        args: tuple,
        kwargs: Named,
        run: Callable[[], Any],
    ) -> Any:
        """Run one operator and follow its sizes."""
        out = run()
        if self.is_silent or name.startswith("prim."):
            return out
        made = [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]
        if not made:
            return out
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if rule is None:
            sizes = [_default(self, name, args, kwargs, tensor) for tensor in made]
        else:
            sizes = rule(self, args, kwargs, made)
        for tensor, its_sizes in zip(made, sizes, strict=False):
            mark(tensor, _short(self.recorder, its_sizes))
        note_origin((args, kwargs), made)
        return out

    @contextmanager
    def during(self, call: Call, is_silent: bool = False) -> Iterator[None]:
        """While a function of the network's code runs; silent if it has a rule of its own."""
        before = self.call, self.is_silent
        self.call, self.is_silent = call, is_silent
        try:
            yield
        finally:
            self.call, self.is_silent = before


def note_origin(given: Any, made: Sequence[Tensor]) -> None:
    """What was computed from data is data, and what was computed from parameters is learnt."""
    found = leaves(given)
    is_data = any(map(carries_data, found))
    learnt = any(map(is_learnt, found))
    for tensor in made:
        if is_data:
            mark_data(tensor)
        if learnt:
            mark_learnt(tensor)


def fix_constant(rec: Recorder, tensor: Tensor) -> None:
    """A layer that reads a constant (a table of coordinates) takes its sizes as they are, like the network's input."""
    if carries_data(tensor) or is_learnt(tensor):
        return
    for size in sizes_of(tensor):
        if isinstance(size, Size):
            rec.equate(size, rec.from_data(size))


def _short(rec: Recorder, sizes: Sequence[int]) -> Sizes:
    """Sizes that follow from the input's as symbols of their own; as formulas they grow with depth."""
    short = []
    for size in sizes:
        if isinstance(size, Size) and not size.formula.is_Symbol and size.formula.free_symbols <= rec.data:
            size = rec.from_data(size)
        short.append(size)
    return tuple(short)


# --- element by element ------------------------------------------------------------------------------------------


def _default(
    facts: Facts,
    name: str,
    args: tuple,
    kwargs: Named,
    out: Tensor,
) -> Sizes:
    shapes = [sizes_of(leaf) for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not shapes:
        return _fresh(facts, out)
    if values(_widest(shapes)) == values(out.shape):
        return broadcast(facts.recorder, shapes)
    for shape in shapes:
        if any(map(facts.recorder.is_width, shape)):
            raise NotImplementedError(f"covey does not know what {name} does to sizes")
    return tuple(map(facts.recorder.from_data, out.shape))


def _widest(shapes: Sequence[Sizes]) -> Sizes:
    """The largest size of each axis, counted from the last."""
    length = max(map(len, shapes))
    widest = [1] * length
    for shape in shapes:
        for place, size in enumerate(reversed(shape)):
            if size > widest[-1 - place] or (size == 0):
                widest[-1 - place] = size
    return tuple(widest)


def broadcast(rec: Recorder, shapes: Sequence[Sizes]) -> Sizes:
    """The sizes of an operation element by element: axes are the same, counted from the last, where none is 1."""
    out = list(_widest(shapes))
    for shape in shapes:
        for place, size in enumerate(reversed(shape)):
            wide = out[-1 - place]
            if int(size) != int(wide) or size is wide:
                continue
            if int(size) > 1:
                rec.equate(wide, size)
            if rec.is_data(size) or not isinstance(wide, Size):
                out[-1 - place] = size
    return tuple(out)


def _fresh(facts: Facts, out: Tensor) -> Sizes:
    """A tensor made from numbers alone has the sizes that the network's code gave."""
    shape = values(out.shape)
    given = facts.call.given(shape)
    sizes = []
    for size, value in zip(given, shape, strict=True):
        sizes.append(facts.call.guess(value) if size is None else size)
    return tuple(sizes)


def _new(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [_fresh(facts, made[0])]


def _as_the_first(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [sizes_of(args[0])] * len(made)


# --- axes in another order ---------------------------------------------------------------------------------------


def _axis(args: tuple, kwargs: Named, place: int = 1, default: int = 0) -> int:
    """The axis that an operator was given, counted from the first."""
    axis = args[place] if len(args) > place else kwargs.get("dim", default)
    rank = _rank(args[0])
    return int(axis) % rank if rank else 0


def _rank(given: Any) -> int:
    tensor = given if isinstance(given, Tensor) else given[0]
    return tensor.dim()


def _weight_norm(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    direction, length = sizes_of(args[0]), sizes_of(args[1])
    return [broadcast(facts.recorder, [direction, length]), length]


def _transpose(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = list(sizes_of(args[0]))
    if len(args) > 2 and sizes:
        one, other = args[1:3]
        sizes[one], sizes[other] = sizes[other], sizes[one]
    else:
        sizes.reverse()
    return [tuple(sizes)]


def _permute(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    return [tuple(sizes[axis] for axis in args[1])]


def _unsqueeze(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = list(sizes_of(args[0]))
    axis = args[1] % (len(sizes) + 1)
    sizes.insert(axis, 1)
    return [tuple(sizes)]


def _squeeze(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axes = range(len(sizes)) if len(args) < 2 else args[1]
    if isinstance(axes, int):
        axes = [axes]
    gone = {axis % len(sizes) for axis in axes}
    return [tuple(size for axis, size in enumerate(sizes) if axis not in gone or size != 1)]


def _without(sizes: Sizes, axis: int) -> Sizes:
    return sizes[:axis] + sizes[axis + 1 :]


def _complex_as_real(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [(*sizes_of(args[0]), 2)]


def _real_as_complex(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [sizes_of(args[0])[:-1]]


# --- axes that are cut or looked up ------------------------------------------------------------------------------


def _fix(facts: Facts, tensor: Tensor, size: int) -> None:
    """Write down that an axis is read at fixed places; where it carries data it is a width, but one that stays."""
    if not carries_data(tensor) and not is_learnt(tensor) and isinstance(size, Size):
        # the rows of a constant, such as a grid's points, are no widths, nor what is made as long as they are
        facts.recorder.equate(size, facts.recorder.from_data(size))
    facts.recorder.position(size)
    if carries_data(tensor):
        facts.recorder.sum_over(size)


def _embedding(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rows, width = sizes_of(args[0])
    facts.recorder.position(rows)
    return [(*sizes_of(args[1]), width)]


def _index(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Indexing by tensors: the indices' own shape takes the place of the axes that they look up."""
    sizes = sizes_of(args[0])
    indices = {axis: index for axis, index in enumerate(args[1]) if index is not None}
    for axis in indices:
        _fix(facts, args[0], sizes[axis])
    looked_up = broadcast(facts.recorder, [sizes_of(index) for index in indices.values()])
    looked_up = _picked(facts, [sizes[axis] for axis in indices], looked_up)
    kept = [size for axis, size in enumerate(sizes) if axis not in indices]
    first, last = min(indices), max(indices)
    is_together = last - first + 1 == len(indices)
    place = first if is_together else 0
    return [(*kept[:place], *looked_up, *kept[place:])]


def _picked(facts: Facts, axes: Sequence[int], looked_up: Sizes) -> Sizes:
    """How many a list of indices picks; of an axis of the data, by a list that is a constant, that is data too."""
    if not all(facts.recorder.is_data(size) for size in axes):
        return looked_up
    return tuple(size if isinstance(size, Size) else facts.recorder.from_data(size) for size in looked_up)


def _index_put(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    for axis, index in enumerate(args[1]):
        if index is not None:
            facts.recorder.position(sizes[axis])
    return [sizes]


def _index_along_axis(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """`index_select`: one axis is as long as the list of indices."""
    sizes = list(sizes_of(args[0]))
    axis = _axis(args, kwargs)
    _fix(facts, args[0], sizes[axis])
    (sizes[axis],) = _picked(facts, [sizes[axis]], sizes_of(args[2]) or (1,))
    return [tuple(sizes)]


def _gather(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    _fix(facts, args[0], sizes[_axis(args, kwargs)])
    return [sizes_of(args[2])]


def _index_add(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Rows of a tensor go to the places that an index says; the other axes are the same."""
    axis = _axis(args, kwargs)
    sizes = sizes_of(args[0])
    facts.recorder.position(sizes[axis])
    rows = _without(sizes_of(args[3]), axis)
    broadcast(facts.recorder, [_without(sizes, axis), rows])
    return [sizes]


def _spectrum(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """The last axis of a Fourier transform of real numbers is about half as long."""
    old = sizes_of(args[0])
    sizes = []
    for size, value in zip(old, values(made[0].shape), strict=True):
        if int(size) == value:
            sizes.append(size)
            continue
        facts.recorder.position(size)
        sizes.append(facts.recorder.from_data(value))
    return [tuple(sizes)]


def _bag(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rows, width = sizes_of(args[0])
    facts.recorder.position(rows)
    return [(facts.recorder.from_data(made[0].shape[0]), width)]


def _scatter(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    facts.recorder.position(sizes[_axis(args, kwargs)])
    return [sizes]


def _select(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axis = _axis(args, kwargs)
    if int(args[2]) not in (0, -1):  # every axis has a first and a last entry
        _fix(facts, args[0], sizes[axis])
    return [_without(sizes, axis)]


def _unbind(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axis = _axis(args, kwargs)
    _fix(facts, args[0], sizes[axis])
    return [_without(sizes, axis)] * len(made)


def _slice(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """An axis that is cut at a fixed place is made of positions: channels have no order that a cut could follow."""
    sizes = list(sizes_of(args[0]))
    axis = _axis(args, kwargs)
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


def _split(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Parts of one size each, or of sizes from a list; only the last may be shorter."""
    sizes = sizes_of(args[0])
    axis = _axis(args, kwargs, place=2)
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


def _top(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """The largest k of an axis."""
    sizes = list(sizes_of(args[0]))
    axis = _axis(args, kwargs, place=2, default=-1)
    _fix(facts, args[0], sizes[axis])
    known = facts.call.number(int(args[1]))
    sizes[axis] = args[1] if known is None else known
    return [tuple(sizes)] * len(made)


# --- axes that are summed over -----------------------------------------------------------------------------------


def _reduction(place: int) -> Callable[..., list[Sizes]]:
    """The rule of an operator that reduces the axes in its argument `place`, or all."""

    def rule(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
        sizes = sizes_of(args[0])
        axes = args[place] if len(args) > place else kwargs.get("dim")
        if isinstance(axes, int):
            axes = [axes]
        if not axes:
            axes = range(len(sizes))
        gone = {int(axis) % len(sizes) for axis in axes} if sizes else set()
        facts.recorder.sum_over(*[sizes[axis] for axis in gone])
        if made[0].dim() == len(sizes):
            return [tuple(1 if axis in gone else size for axis, size in enumerate(sizes))] * len(made)
        return [tuple(size for axis, size in enumerate(sizes) if axis not in gone)] * len(made)

    return rule


def contract(rec: Recorder, left: Tensor, right: Tensor) -> None:
    """Write down that a product of matrices sums over the last axis of one and the last but one of the other."""
    ours, theirs = sizes_of(left), sizes_of(right)
    for sizes in (ours, theirs):
        if not any(map(rec.is_data, sizes)):  # a weight
            rec.width(*sizes[-2:])
    rec.sum_over(ours[-1])
    rec.equate(ours[-1], theirs[-2] if len(theirs) > 1 else theirs[-1])


def matrix_product(rec: Recorder, left: Tensor, right: Tensor) -> Sizes:
    """(..., n, k) and (..., k, m) -> (..., n, m); a vector lacks its outer axis."""
    contract(rec, left, right)
    ours, theirs = sizes_of(left), sizes_of(right)
    batches = [shape for shape in (ours[:-2], theirs[:-2]) if shape]
    batch = broadcast(rec, batches) if batches else ()
    rows = ours[-2:-1]
    columns = theirs[-1:] if len(theirs) > 1 else ()
    return (*batch, *rows, *columns)


def _matrix_product(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [matrix_product(facts.recorder, args[0], args[1])]


def _added_matrix_product(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    out = matrix_product(facts.recorder, args[1], args[2])
    return [broadcast(facts.recorder, [out, sizes_of(args[0])])]


def _distances(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """(..., n, k) and (..., m, k) -> (..., n, m)."""
    (*batch, rows, width), (*other_batch, columns, other_width) = sizes_of(args[0]), sizes_of(args[1])
    facts.recorder.equate(width, other_width)
    facts.recorder.sum_over(width)
    return [(*broadcast(facts.recorder, [tuple(batch), tuple(other_batch)]), rows, columns)]


# --- axes that are put together ----------------------------------------------------------------------------------


def _concatenation(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    rec = facts.recorder
    # PyTorch lets an empty list of numbers be joined to anything.
    tensors = [tensor for tensor in args[0] if tensor.dim() > 1 or tensor.numel() > 0]
    if not tensors:
        return [tuple(made[0].shape)]
    axis = _axis((tensors, *args[1:]), kwargs)
    shapes = [sizes_of(tensor) for tensor in tensors]
    parts = tuple(shape[axis] for shape in shapes)
    if any(map(rec.is_data, parts)):
        for tensor, part in zip(tensors, parts, strict=True):
            if not carries_data(tensor):
                rec.position(part)  # class tokens and the like, put next to the data
        parts = tuple(part if isinstance(part, Size) else rec.number(part) for part in parts)
    whole = sum(parts[1:], parts[0])
    rec.compose(whole, "sum", parts)
    others = broadcast(rec, [_without(shape, axis) for shape in shapes])
    return [(*others[:axis], whole, *others[axis:])]


def _stack(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    sizes = list(broadcast(facts.recorder, [sizes_of(tensor) for tensor in args[0]]))
    sizes.insert(int(axis) % (len(sizes) + 1), len(args[0]))
    return [tuple(sizes)]


def _repeat(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    times = facts.call.given(args[1])
    old = sizes_of(args[0])
    old = (1,) * (len(times) - len(old)) + tuple(old)
    sizes = []
    for size, given, plain in zip(old, times, args[1], strict=True):
        sizes.append(size * (plain if given is None else given))
    return [tuple(sizes)]


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


# --- space -------------------------------------------------------------------------------------------------------


def _space(axes: int) -> Callable[..., list[Sizes]]:
    """The rule of an operator that changes the last axes, which are the data's, and keeps the others."""

    def rule(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
        return [space_sizes(facts.recorder, sizes_of(args[0]), made[0], axes)] * len(made)

    return rule


def space_sizes(rec: Recorder, sizes: Sizes, out: Tensor, axes: int) -> Sizes:
    """Sizes where the last axes were pooled or resized."""
    changed = []
    for before, after in zip(sizes[-axes:], out.shape[-axes:], strict=True):
        if int(before) == int(after):
            changed.append(before)
            continue
        if int(after) > 1:
            rec.position(before)
        changed.append(rec.from_data(after))
    return (*sizes[:-axes], *changed)


def _windows(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """`x.unfold(axis, size, step)`: windows along an axis, their entries last."""
    sizes = list(sizes_of(args[0]))
    axis = args[1] % len(sizes)
    facts.recorder.position(sizes[axis])
    sizes[axis] = facts.recorder.from_data(made[0].shape[axis])
    return [(*sizes, made[0].shape[-1])]


Rule = Callable[[Facts, tuple, Named, list[Tensor]], list[Sizes]]

RULES: dict[str, Rule] = {
    "aten._weight_norm_interface": _weight_norm,
    "aten.transpose": _transpose,
    "aten.t": _transpose,
    "aten.permute": _permute,
    "aten.unsqueeze": _unsqueeze,
    "aten.squeeze": _squeeze,
    "aten.view_as_real": _complex_as_real,
    "aten.view_as_complex": _real_as_complex,
    "aten.embedding": _embedding,
    "aten.index": _index,
    "aten.index_put": _index_put,
    "aten.index_select": _index_along_axis,
    "aten._embedding_bag": _bag,
    "aten._embedding_bag_forward_only": _bag,
    "aten.index_add": _index_add,
    "aten.index_copy": _index_add,
    "aten._fft_r2c": _spectrum,
    "aten._fft_c2r": _spectrum,
    "aten.gather": _gather,
    "aten.scatter": _scatter,
    "aten.scatter_add": _scatter,
    "aten.select": _select,
    "aten.unbind": _unbind,
    "aten.slice": _slice,
    "aten.split": _split,
    "aten.split_with_sizes": _split,
    "aten.topk": _top,
    "aten.sort": _as_the_first,
    "aten.sum": _reduction(1),
    "aten.mean": _reduction(1),
    "aten.prod": _reduction(1),
    "aten.amax": _reduction(1),
    "aten.amin": _reduction(1),
    "aten.argmax": _reduction(1),
    "aten.argmin": _reduction(1),
    "aten.any": _reduction(1),
    "aten.all": _reduction(1),
    "aten.var": _reduction(1),
    "aten.std": _reduction(1),
    "aten.var_mean": _reduction(1),
    "aten.std_mean": _reduction(1),
    "aten.median": _reduction(1),
    "aten.logsumexp": _reduction(1),
    "aten.norm": _reduction(2),
    "aten.linalg_vector_norm": _reduction(2),
    "aten.mm": _matrix_product,
    "aten.bmm": _matrix_product,
    "aten.mv": _matrix_product,
    "aten.dot": _matrix_product,
    "aten.vdot": _matrix_product,
    "aten.addmm": _added_matrix_product,
    "aten.baddbmm": _added_matrix_product,
    "aten.addmv": _added_matrix_product,
    "aten._cdist_forward": _distances,
    "aten._euclidean_dist": _distances,
    "aten.cat": _concatenation,
    "aten.stack": _stack,
    "aten.repeat": _repeat,
    "aten.expand": _expand,
    "aten.view": _view,
    "aten._unsafe_view": _view,
    "aten.reshape": _view,
    "aten._reshape_alias": _view,
    "aten.new_empty": _new,
    "aten.new_zeros": _new,
    "aten.new_ones": _new,
    "aten.new_full": _new,
    "aten.max_pool2d_with_indices": _space(2),
    "aten.max_pool3d_with_indices": _space(3),
    "aten.avg_pool1d": _space(1),
    "aten.avg_pool2d": _space(2),
    "aten.avg_pool3d": _space(3),
    "aten._adaptive_avg_pool2d": _space(2),
    "aten._adaptive_avg_pool3d": _space(3),
    "aten.adaptive_max_pool2d": _space(2),
    "aten.adaptive_max_pool3d": _space(3),
    "aten.upsample_nearest1d": _space(1),
    "aten.upsample_nearest2d": _space(2),
    "aten.upsample_nearest3d": _space(3),
    "aten.upsample_linear1d": _space(1),
    "aten.upsample_bilinear2d": _space(2),
    "aten._upsample_bilinear2d_aa": _space(2),
    "aten.upsample_bicubic2d": _space(2),
    "aten._upsample_bicubic2d_aa": _space(2),
    "aten.upsample_trilinear3d": _space(3),
    "aten.reflection_pad1d": _space(1),
    "aten.reflection_pad2d": _space(2),
    "aten.replication_pad2d": _space(2),
    "aten.unfold": _windows,
}
for name in ("aten.max", "aten.min"):
    RULES[name] = _reduction(1)
