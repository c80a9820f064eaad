"""Every size in a network becomes a symbol; running the network once tells which equations hold between them.

A width is not a property of one layer: convolutions, norms, residual sums, concatenations and attention heads
tie the axes of many tensors together. Instead of a rule for every architecture, the tensors and the whole
numbers that modules keep (heads, groups, normalised shapes) are given symbolic sizes, and the network is run on
fake tensors, which hold sizes only. Whenever PyTorch asks whether two sizes are equal, and they are, that is an
equation of the network. `Recorder` collects them, together with the line of the network's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from sympy import Expr, Symbol

from covey.surgery.source import ModuleNames, Where, user_line
from covey.surgery.torch_internals import (
    answering_environment,
    formula_kinds,
    original_size,
    size_formula,
    symbolic_size,
)

Size = int | torch.SymInt
SymbolSizes = dict[Symbol, int]
Multiples = list[tuple[Expr, Expr]]  # the first of a pair is a multiple of the second


@dataclass(frozen=True)
class Equation:
    """left == right for every width that the network can have."""

    left: Expr
    right: Expr
    where: Where | None


@dataclass(frozen=True)
class Composition:
    """How an axis is put together: the "sum" of parts one after another, or the "product" of nested ones."""

    kind: Literal["sum", "product"]
    parts: tuple[Size, ...]


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
        viewed: sizes that each module reshaped tensors to, by the module's path.
    """

    def __init__(self, modules: ModuleNames) -> None:
        self.environment = answering_environment(self._learn)
        self.modules = modules
        self.sizes: SymbolSizes = {}
        self.labels: dict[Symbol, str] = {}
        self.data: set[Symbol] = set()
        self.equations: list[Equation] = []
        self.multiples: Multiples = []
        self.widths: set[Expr] = set()
        self.summed: set[Expr] = set()
        self.compositions: dict[Expr, Composition] = {}
        self.viewed: dict[str, set[Expr]] = {}
        self._remainders: Any = formula_kinds().remainders
        self._met: set[tuple[Expr, Expr]] = set()
        self._data_symbols: dict[int, torch.SymInt] = {}

    # --- making symbols ------------------------------------------------------------------------------------------

    def symbol(self, size: int, label: str) -> Size:
        """A fresh symbol of this size, or the size itself where it is below 2 (such axes broadcast)."""
        if size < 2:
            return size
        symbol = Symbol(f"s{len(self.sizes)}", positive=True, integer=True)
        self.sizes[symbol] = size
        self.labels[symbol] = label
        return symbolic_size(symbol, size, self.environment)

    def from_data(self, size: Size) -> Size:
        """The symbol for a size that the input decides: one for each value."""
        value = as_int(size)
        if value < 2:
            return value
        if value not in self._data_symbols:
            made = self.symbol(value, f"input size {value}")
            assert isinstance(made, torch.SymInt)
            self.data.add(expression(made))
            self._data_symbols[value] = made
        return self._data_symbols[value]

    def is_data(self, size: Size) -> bool:
        """Whether the input has a part in this size."""
        if not isinstance(size, torch.SymInt):
            return False
        symbols = expression(size).free_symbols
        return not symbols.isdisjoint(self.data)

    # --- writing down --------------------------------------------------------------------------------------------

    def equate(self, left: Size, right: Size) -> None:
        """Write down that two sizes are the same."""
        self._equal(expression(left), expression(right))

    def divide(self, size: Size, divisor: Size) -> None:
        """Write down that a size is a multiple of another."""
        self.multiples.append((expression(size), expression(divisor)))

    def position(self, size: Size) -> None:
        """Write down that a size counts positions or rows of a table: the data's business, not a width."""
        if isinstance(size, torch.SymInt) and not self.is_data(size):
            self.equate(size, self.from_data(size))

    def width(self, *sizes: Size) -> None:
        """Write down that these axes belong to a layer's weight, so they are widths."""
        for size in sizes:
            if isinstance(size, torch.SymInt):
                self.widths.add(expression(size))

    def sum_over(self, *sizes: Size) -> None:
        """Write down that an operation sums over these axes. A width that nothing sums over is an answer of its own."""
        for size in sizes:
            if isinstance(size, torch.SymInt):
                self.summed.add(expression(size))

    def compose(self, size: Size, kind: Literal["sum", "product"], parts: tuple[Size, ...]) -> None:
        """Write down how an axis is put together; what was seen first holds."""
        if isinstance(size, torch.SymInt):
            self.compositions.setdefault(expression(size), Composition(kind, parts))

    # --- learning from questions ---------------------------------------------------------------------------------

    def _learn(self, question: sympy.Basic, holds: bool) -> None:
        """Take the equations out of a question about sizes that PyTorch asked."""
        if isinstance(question, sympy.Not):
            self._learn(question.args[0], not holds)
        elif isinstance(question, sympy.And) and holds:
            for part in question.args:
                self._learn(part, True)
        elif isinstance(question, sympy.Eq if holds else sympy.Ne):
            self._learn_equality(*question.args)

    def _learn_equality(self, left: Expr, right: Expr) -> None:
        """`a % b == 0` says that b divides a; all else is an equation."""
        if isinstance(left, self._remainders) and right == 0:
            self.multiples.append(left.args)
        elif isinstance(right, self._remainders) and left == 0:
            self.multiples.append(right.args)
        else:
            self._equal(left, right)

    def _equal(self, left: Expr, right: Expr) -> None:
        if left == right or (left, right) in self._met:
            return
        self._met.add((left, right))
        where = user_line(self.modules)
        self.equations.append(Equation(left, right, where))


def expression(size: Size | Expr) -> Expr:
    """The size as a sympy expression."""
    if isinstance(size, sympy.Basic):
        return size
    if isinstance(size, torch.SymInt):
        return size_formula(size)
    return sympy.Integer(size)


def as_int(size: Size) -> int:
    """The size in the original network."""
    if isinstance(size, torch.SymInt):
        return original_size(size)
    return int(size)
