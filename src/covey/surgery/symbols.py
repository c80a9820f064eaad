"""Every size in a network becomes a symbol; running the network once tells which equations hold between them.

A width is not a property of one layer: convolutions, norms, residual sums, concatenations and attention heads
tie the axes of many tensors together. Instead of a rule for every architecture, the tensors and the whole
numbers that modules keep (heads, groups, normalised shapes) are given symbolic sizes, and the network is run on
fake tensors, which hold sizes only. Whenever PyTorch asks whether two sizes are equal, and they are, that is an
equation of the network. `Recorder` collects them, together with the line of the network's own code.
"""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import sympy
import torch
from torch import nn
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import (
    CeilToInt,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    TruncToInt,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

Size = int | torch.SymInt

_NOT_THE_USERS = tuple(str(Path(package.__file__ or "").parent) for package in (torch, sympy))
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Where:
    """The line of the network's code that made an equation, and the module it belongs to."""

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        place = f"module '{self.module}', " if self.module else ""
        return f"{place}{Path(self.file).name}:{self.line}: {code}"


@dataclass(frozen=True)
class Equation:
    """left == right for every width that the network can have."""

    left: sympy.Expr
    right: sympy.Expr
    where: Where | None


class Recorder(ShapeEnv):
    """Symbols, their sizes in the original network, and the equations met on the way.

    Unlike its parent it decides nothing: each question about a size is answered by the size in the original
    network, and only the equalities are written down.
    """

    def __init__(self, modules: dict[int, str]) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=True)
        self.modules = modules
        self.sizes: dict[sympy.Symbol, int] = {}
        self.labels: dict[sympy.Symbol, str] = {}
        self.data: set[sympy.Symbol] = set()
        self.equations: list[Equation] = []
        self.multiples: list[tuple[sympy.Expr, sympy.Expr]] = []
        self.widths: set[sympy.Expr] = set()
        self.summed: set[sympy.Expr] = set()
        self.orders: dict[sympy.Expr, tuple[str, tuple[Size, ...]]] = {}
        self.seen: dict[str, set[sympy.Expr]] = {}
        self._met: set[tuple[sympy.Expr, sympy.Expr]] = set()
        self._data_symbols: dict[int, torch.SymInt] = {}

    def symbol(self, size: int, label: str) -> Size:
        """A fresh symbol of this size, or the size itself where it is below 2 (such axes broadcast)."""
        if size < 2:
            return size
        symbol = sympy.Symbol(f"s{len(self.sizes)}", positive=True, integer=True)
        self.sizes[symbol] = size
        self.var_to_range[symbol] = ValueRanges(2, int_oo)
        self.labels[symbol] = label
        return torch.SymInt(SymNode(symbol, self, int, size))

    def from_data(self, size: Size) -> Size:
        """The symbol for a size that the input decides: one for each value."""
        value = as_int(size)
        if value < 2:
            return value
        if value not in self._data_symbols:
            made = self.symbol(value, f"input size {value}")
            assert isinstance(made, torch.SymInt)
            self.data.add(made.node.expr)
            self._data_symbols[value] = made
        return self._data_symbols[value]

    def is_data(self, size: Size) -> bool:
        """Whether the input has a part in this size."""
        return isinstance(size, torch.SymInt) and bool(expression(size).free_symbols & self.data)

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
        self.widths.update(expression(size) for size in sizes if isinstance(size, torch.SymInt))

    def sum_over(self, *sizes: Size) -> None:
        """Write down that an operation sums over these axes. A width that nothing sums over is an answer of its own."""
        self.summed.update(expression(size) for size in sizes if isinstance(size, torch.SymInt))

    def order(self, size: Size, kind: str, parts: tuple[Size, ...]) -> None:
        """Write down how an axis is put together: "sum" of parts one after another, or "product" of nested ones."""
        if isinstance(size, torch.SymInt):
            self.orders.setdefault(expression(size), (kind, parts))

    def evaluate_sym_node(
        self, sym_node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> sympy.Basic:
        """Answer by the size in the original network (PyTorch calls this for every question)."""
        answer = sym_node.hint
        if answer is None:
            raise RuntimeError("the network decides by the values of its data, which symbols do not have")
        if isinstance(answer, bool | sympy.logic.boolalg.BooleanAtom):
            self._learn(sym_node.expr, bool(answer))
            return sympy.true if answer else sympy.false
        return sympy.sympify(answer)

    def _maybe_evaluate_static(self, expr: sympy.Basic, **options: object) -> sympy.Basic | None:  # type: ignore[override]
        return expr if expr.is_Number or expr in (sympy.true, sympy.false) else None

    def replace(self, expr: sympy.Basic) -> sympy.Basic:  # type: ignore[override]
        """Leave the expression as it is (PyTorch would put known values in)."""
        return expr

    def _learn(self, expr: sympy.Basic, holds: bool) -> None:
        if isinstance(expr, sympy.Not):
            self._learn(expr.args[0], not holds)
        elif isinstance(expr, sympy.And) and holds:
            for part in expr.args:
                self._learn(part, True)
        elif (isinstance(expr, sympy.Eq) and holds) or (isinstance(expr, sympy.Ne) and not holds):
            left, right = expr.args
            for a, b in ((left, right), (right, left)):
                if isinstance(a, Mod | PythonMod) and b == 0:
                    self.multiples.append(a.args)
                    return
            self._equal(left, right)

    def _equal(self, left: sympy.Expr, right: sympy.Expr) -> None:
        if left == right or (left, right) in self._met:
            return
        self._met.add((left, right))
        self.equations.append(Equation(left, right, user_line(self.modules)))


def expression(size: Size | sympy.Expr) -> sympy.Expr:
    """The size as a sympy expression."""
    if isinstance(size, sympy.Basic):
        return size
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def as_int(size: Size) -> int:
    """The size in the original network."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def user_line(modules: dict[int, str], frame: FrameType | None = None) -> Where | None:
    """The innermost line of the network's own code that is being run, with the module whose forward it is in."""
    frame = frame or sys._getframe(1)
    found: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        theirs = name.startswith(_NOT_THE_USERS) or name.startswith((_HERE, "<frozen", "<string>"))
        if found is None and not theirs:
            found = frame
        owner = frame.f_locals.get("self")
        if found is not None and isinstance(owner, nn.Module) and id(owner) in modules:
            return Where(modules[id(owner)], found.f_code.co_filename, found.f_lineno)
        frame = frame.f_back
    return None


def exact(expr: sympy.Expr, sizes: dict[sympy.Symbol, int], multiples: list) -> sympy.Expr:
    """Write whole-number division as the exact division that it is in the original network.

    `(3 h d + 2) // 3` (a chunk into three) becomes `h d`. That the numerator stays a multiple is added to `multiples`.
    """
    if expr.is_Symbol or expr.is_Number:
        return expr
    parts = [exact(part, sizes, multiples) for part in expr.args]
    if isinstance(expr, FloorDiv | IntTrueDiv):
        top, bottom = parts
        rest = top.xreplace(sizes) % bottom.xreplace(sizes) if isinstance(expr, FloorDiv) else 0
        top = sympy.expand(top - rest)
        multiples.append((top, bottom))
        return sympy.expand(top / bottom)
    if isinstance(expr, CeilToInt | FloorToInt | TruncToInt) and parts[0].xreplace(sizes).is_Integer:
        return parts[0]
    if isinstance(expr, sympy.Max | sympy.Min | Max | Min):
        chosen = max if isinstance(expr, sympy.Max | Max) else min
        return chosen(parts, key=lambda part: part.xreplace(sizes))
    if isinstance(expr, sympy.Add | sympy.Mul | sympy.Pow):
        return expr.func(*parts)
    # Whatever else there is (remainders, rounding that does not come out even) is a number of the original network.
    return sympy.Integer(int(expr.xreplace(sizes)))
