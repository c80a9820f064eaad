"""Follows sizes through operators: what the network's code gave, what one rule serves for all, and who knows better."""

from __future__ import annotations

import functools
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
    sizes_of,
    values,
)
from covey.surgery.torch_internals import leaves, require_operators

Named = dict[str, Any]  # an operator's arguments by keyword
Rule = Callable[["Facts", tuple, Named, list[Tensor]], list[Sizes]]

RULES: dict[str, Rule] = {}
"""What operators that do not work element by element do to sizes, by their names; filled by `rule`."""

INSTEAD: dict[str, Callable[..., Tensor | None]] = {}
"""What makes the results of operators that need values; None where they cannot be made without; filled by `instead`."""

GIVEN: dict[str, Callable[[Recorder, tuple], tuple]] = {}
"""What operators are given in place of arguments of which they need the values; filled by `given`."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of the operators of these names."""

    def register(each: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, each))
        return each

    return register


def instead(name: str) -> Callable:
    """Register what is run in the place of the operator of this name."""
    return functools.partial(_entered, INSTEAD, (name,))


def given(*names: str) -> Callable:
    """Register what changes the arguments of the operators of these names."""
    return functools.partial(_entered, GIVEN, names)


def _entered(table: dict[str, Callable], names: Sequence[str], each: Callable) -> Callable:
    table.update(dict.fromkeys(names, each))
    return each


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
        run: Callable[..., Any],
    ) -> Any:
        """Run one operator and follow its sizes."""
        if name in GIVEN:
            args = GIVEN[name](self.recorder, args)
        out = INSTEAD[name](*args, **kwargs) if name in INSTEAD else None
        if out is None:
            out = run(*args)
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


def _default(
    facts: Facts,
    name: str,
    args: tuple,
    kwargs: Named,
    out: Tensor,
) -> Sizes:
    shapes = [sizes_of(leaf) for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not shapes:
        return fresh(facts, out)
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


def fresh(facts: Facts, out: Tensor) -> Sizes:
    """A tensor made from numbers alone has the sizes that the network's code gave."""
    shape = values(out.shape)
    given = facts.call.given(shape)
    sizes = []
    for size, value in zip(given, shape, strict=True):
        sizes.append(facts.call.guess(value) if size is None else size)
    return tuple(sizes)
