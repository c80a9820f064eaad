"""Whole numbers that remember where they come from.

While a network is followed, its tensors have their real sizes, and each size is an int as ever. But it is a `Size`: it
also knows its formula in symbols, and what is computed from it (`channels // self.heads`) knows its own. The network's
code cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import sympy
from sympy import Expr
from torch import Tensor

if TYPE_CHECKING:
    from covey.surgery.recorder import Recorder

Demands = tuple[tuple[Expr, Expr], ...]  # the first of a pair must stay a multiple of the second
Sizes = tuple[int, ...]


class Size(int):
    """A whole number with the formula by which it follows from the network's sizes.

    Args:
        value: what it is in the original network.
        formula: what it is in symbols.
        recorder: hears which sizes are compared.
        demands: divisions in the formula that must come out even wherever it is used.
    """

    formula: Expr
    recorder: Recorder
    demands: Demands

    def __new__(cls, value: int, formula: Expr, recorder: Recorder, demands: Demands = ()) -> Size:
        """Make it; ints are made here, not in `__init__`."""
        size = super().__new__(cls, value)
        size.formula = formula
        size.recorder = recorder
        size.demands = demands
        return size

    def _made(self, value: Any, formula: Expr, *others: Any, demand: Demands = ()) -> Any:
        """What was computed from this size and others."""
        if value is NotImplemented or formula.is_Number:
            return value
        demands = self.demands + demand
        for other in others:
            if isinstance(other, Size) and other.demands != self.demands:
                demands += other.demands
        return Size(value, formula, self.recorder, demands)

    def __add__(self, other: Any) -> Any:
        value = super().__add__(other)
        return self._made(value, self.formula + formula_of(other), other) if _is_whole(other) else value

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        value = super().__sub__(other)
        return self._made(value, self.formula - formula_of(other), other) if _is_whole(other) else value

    def __rsub__(self, other: Any) -> Any:
        value = super().__rsub__(other)
        return self._made(value, formula_of(other) - self.formula, other) if _is_whole(other) else value

    def __mul__(self, other: Any) -> Any:
        value = super().__mul__(other)
        return self._made(value, self.formula * formula_of(other), other) if _is_whole(other) else value

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._made(super().__neg__(), -self.formula)

    def __pos__(self) -> Any:
        return self

    def __pow__(self, other: Any, *modulo: Any) -> Any:
        value = super().__pow__(other, *modulo)
        is_whole = _is_whole(other) and other > 0 and not modulo
        return self._made(value, self.formula ** int(other), other) if is_whole else value

    def __floordiv__(self, other: Any) -> Any:
        return self._quotient(self, other) if _is_whole(other) else super().__floordiv__(other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._quotient(other, self) if _is_whole(other) else super().__rfloordiv__(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _quotient(self, top: int, bottom: int) -> Any:
        """`top // bottom`, written as the exact division that it is in the original network.

        `(3 h d + 2) // 3` (a chunk into three) becomes `h d`.
        """
        value, rest = divmod(int(top), int(bottom))
        numerator = sympy.expand(formula_of(top) - rest)
        divisor = formula_of(bottom)
        formula = sympy.expand(numerator / divisor)
        if value == 0:
            return self._made(value, formula, top, bottom)
        positive = numerator if value > 0 else -numerator
        return self._made(value, formula, top, bottom, demand=((positive, divisor),))

    def __mod__(self, other: Any) -> Any:
        rest = super().__mod__(other)
        if rest == 0 and _is_whole(other):
            self.recorder.heard_multiple(self, other)
        return rest

    def __rmod__(self, other: Any) -> Any:
        rest = super().__rmod__(other)
        if rest == 0 and _is_whole(other):
            self.recorder.heard_multiple(other, self)
        return rest

    def __eq__(self, other: object) -> bool:
        is_same = super().__eq__(other)
        if not isinstance(other, Size):
            return is_same
        if is_same is True:
            self.recorder.heard_equal(self, other)
        else:
            self.recorder.heard_unequal(self, other)
        return is_same

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __copy__(self) -> Size:
        return self

    def __deepcopy__(self, memo: Any) -> Size:
        return self

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return int, (int(self),)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int)


def formula_of(size: int | Expr) -> Expr:
    """A size as a formula in symbols."""
    if isinstance(size, Size):
        return size.formula
    if isinstance(size, sympy.Basic):
        return size
    return sympy.Integer(int(size))


def product(sizes: Iterable[int]) -> int:
    """All sizes multiplied. (`math.prod` would forget where they come from.)"""
    total = 1
    for size in sizes:
        total = total * size
    return total


def values(sizes: Iterable[int]) -> tuple[int, ...]:
    """Sizes as plain numbers, which can be compared without anyone hearing it."""
    return tuple(map(int, sizes))


# --- tensors -----------------------------------------------------------------------------------------------------


def sizes_of(tensor: Tensor) -> Sizes:
    """The sizes of a tensor's axes; plain numbers for a tensor that nobody marked."""
    marked = getattr(tensor, "covey_sizes", None)
    if marked is not None and values(marked) == values(tensor.shape):
        return marked
    return tuple(tensor.shape)


def mark(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Write a tensor's sizes down on it."""
    if values(sizes) != values(tensor.shape):
        raise RuntimeError(f"sizes {values(sizes)} were followed to a tensor of {values(tensor.shape)}")
    tensor.covey_sizes = tuple(sizes)  # type: ignore[attr-defined]
    return tensor


def mark_data(leaf: Any) -> Any:
    """Mark a tensor as computed from the network's input, and not from parameters alone."""
    if isinstance(leaf, Tensor):
        leaf.covey_data = True  # type: ignore[attr-defined]
    return leaf


def carries_data(leaf: Any) -> bool:
    """Whether a tensor was computed from the network's input."""
    return isinstance(leaf, Tensor) and getattr(leaf, "covey_data", False)


def mark_learnt(leaf: Any) -> Any:
    """Mark a tensor as computed from parameters."""
    if isinstance(leaf, Tensor):
        leaf.covey_learnt = True  # type: ignore[attr-defined]
    return leaf


def is_learnt(leaf: Any) -> bool:
    """Whether a tensor was computed from parameters."""
    return isinstance(leaf, Tensor) and getattr(leaf, "covey_learnt", False)
