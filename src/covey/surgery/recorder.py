"""Every size in a network becomes a symbol; running the network once tells which equations hold between them.

A width is not a property of one layer: convolutions, norms, residual sums, concatenations and attention heads
tie the axes of many tensors together. Instead of a rule for every architecture, the sizes of tensors and the whole
numbers that modules keep (heads, groups, normalised shapes) remember where they come from (`sizes`), and the network
is run once. Wherever an operation needs two sizes to be equal, that is an equation of the network. `Recorder` collects
them, together with the line of the network's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sympy import Expr, Symbol

from covey.surgery.sizes import Demands, Size, formula_of
from covey.surgery.source import ModuleNames, Where, user_line

SymbolSizes = dict[Symbol, int]
Multiples = list[tuple[Expr, Expr]]  # the first of a pair is a multiple of the second


@dataclass(frozen=True)
class Equation:
    """left == right for every width that the network can have.

    Args:
        left: a formula.
        right: another.
        where: the line of the network's code that needs it.
        is_cut: whether it only says that an axis is cut or looked up at fixed places.
    """

    left: Expr
    right: Expr
    where: Where | None
    is_cut: bool = False


@dataclass(frozen=True)
class Composition:
    """How an axis is put together: the "sum" of parts one after another, or the "product" of nested ones."""

    kind: Literal["sum", "product"]
    parts: tuple[int, ...]


class Recorder:
    """Collects what one run of a network tells about its sizes.

    Args:
        modules: the network's modules, for the place of each equation.

    Attributes:
        sizes: every symbol's size in the original network.
        labels: which tensor's axis or which attribute a symbol was made for.
        data: symbols of sizes that the input decides.
        equations: pairs of sizes that are always equal.
        multiples: pairs (a, b) where a must stay a multiple of b.
        widths: sizes of axes that belong to a layer's weight.
        summed: sizes of axes that some operation sums over.
        compositions: how an axis of this size is put together.
        is_listening: whether comparisons in the network's code count.
        viewed: sizes that each module reshaped tensors to, by the module's path.
        numbers: symbols of numbers in the network's code that may stand in the place of a width.
        unequal: pairs of sizes that the network's code found to differ, each both ways round.
    """

    def __init__(self, modules: ModuleNames) -> None:
        self.modules = modules
        self.is_listening = False
        self.sizes: SymbolSizes = {}
        self.labels: dict[Symbol, str] = {}
        self.data: set[Symbol] = set()
        self.equations: list[Equation] = []
        self.multiples: Multiples = []
        self.widths: set[Expr] = set()
        self.summed: set[Expr] = set()
        self.compositions: dict[Expr, Composition] = {}
        self.viewed: dict[str, set[Expr]] = {}
        self.numbers: set[Symbol] = set()
        self.unequal: set[tuple[Expr, Expr]] = set()
        self._met: set[tuple[Expr, Expr]] = set()
        self._demanded: set[tuple[Expr, Expr]] = set()
        self._data_symbols: dict[int, Size] = {}

    # --- making symbols ------------------------------------------------------------------------------------------

    def symbol(self, size: int, label: str) -> int:
        """A fresh symbol of this size, or the size itself where it is below 2 (such axes broadcast)."""
        if size < 2:
            return size
        symbol = Symbol(f"s{len(self.sizes)}", positive=True, integer=True)
        self.sizes[symbol] = int(size)
        self.labels[symbol] = label
        return Size(size, symbol, self)

    def from_data(self, size: int) -> int:
        """The symbol for a size that the input decides: one for each value."""
        value = int(size)
        if value < 2:
            return value
        if value not in self._data_symbols:
            made = self.symbol(value, f"input size {value}")
            assert isinstance(made, Size)
            self.data.add(made.formula)
            self._data_symbols[value] = made
        return self._data_symbols[value]

    def number(self, size: int) -> int:
        """A symbol for a number in the network's code, where adding it to the input's sizes would hide it."""
        made = self.symbol(size, f"number {size}")
        if isinstance(made, Size):
            self.numbers.add(made.formula)
            self.equate(made, int(size))
        return made

    def is_data(self, size: int) -> bool:
        """Whether the input has a part in this size."""
        return isinstance(size, Size) and not size.formula.free_symbols.isdisjoint(self.data)

    def is_width(self, size: int) -> bool:
        """Whether this size may be a width: it is no plain number, and the input has no part in it."""
        return isinstance(size, Size) and size.formula.free_symbols.isdisjoint(self.data)

    # --- writing down --------------------------------------------------------------------------------------------

    def equate(self, left: int, right: int, is_cut: bool = False) -> None:
        """Write down that two sizes are the same."""
        if int(left) != int(right):
            raise RuntimeError(
                f"covey took two sizes for the same, and they are {int(left)} and {int(right)}"
            )
        one, other = self._used(left), self._used(right)
        if one == other or (one, other) in self._met:
            return
        self._met.add((one, other))
        self.equations.append(Equation(one, other, user_line(self.modules), is_cut))

    def divide(self, size: int, divisor: int) -> None:
        """Write down that a size is a multiple of another."""
        self._demand(((self._used(size), self._used(divisor)),))

    def position(self, size: int) -> None:
        """Write down that a size counts positions or rows of a table: the data's business, not a width."""
        if self.is_width(size):
            self.equate(size, self.from_data(size), is_cut=True)

    def width(self, *sizes: int) -> None:
        """Write down that these axes belong to a layer's weight, so they are widths."""
        for size in sizes:
            if isinstance(size, Size):
                self.widths.add(size.formula)

    def sum_over(self, *sizes: int) -> None:
        """Write down that an operation sums over these axes. A width that nothing sums over is an answer of its own."""
        for size in sizes:
            if isinstance(size, Size):
                self.summed.add(size.formula)

    def compose(self, size: int, kind: Literal["sum", "product"], parts: tuple[int, ...]) -> None:
        """Write down how an axis is put together; what was seen first holds."""
        if isinstance(size, Size):
            self.compositions.setdefault(size.formula, Composition(kind, parts))

    def _used(self, size: int) -> Expr:
        """The formula of a size that the network really has; so its divisions must come out even."""
        if isinstance(size, Size):
            self._demand(size.demands)
        return formula_of(size)

    def _demand(self, demands: Demands) -> None:
        for demand in demands:
            if demand not in self._demanded:
                self._demanded.add(demand)
                self.multiples.append(demand)

    # --- what the network's code asks ----------------------------------------------------------------------------

    def heard_equal(self, left: int, right: int) -> None:
        """The network's code asked whether two sizes are the same, and they are; so they stay."""
        if self.is_listening:
            self.equate(left, right)

    def heard_unequal(self, left: int, right: int) -> None:
        """The network's code asked whether two sizes are the same, and they are not."""
        if self.is_listening:
            one, other = formula_of(left), formula_of(right)
            self.unequal |= {(one, other), (other, one)}

    def heard_multiple(self, size: int, divisor: int) -> None:
        """The network's code asked whether a size is a multiple of another, and it is; so it stays one."""
        if self.is_listening:
            self.divide(size, divisor)
