"""Solves a network's size equations for other widths.

Elimination writes every symbol in terms of free ones. What depends on the input's sizes alone stays; what comes out
as a number of its own was written in the network's code; what is left free and belongs to a weight is a width and
gets `ratio` times its size, rounded up until everything that must divide does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import sympy

from covey.errors import ConversionError
from covey.surgery.errors import TooNarrowError
from covey.surgery.probe import Probe
from covey.surgery.symbols import Size, Where, exact, expression

_TRIES = 20_000


@dataclass
class System:
    """The equations of a network, eliminated.

    Args:
        original: size of every symbol in the original network.
        solved: symbols written in terms of others.
        reasons: the line that each was solved by.
        multiples: pairs (a, b) where a must stay a multiple of b.
        data: symbols that the input decides.
        heads: symbols that count attention heads (scaled).
        groups: other counts (kept).
        attributes: symbols of modules' attributes.
        widths: free symbols that belong to a weight and are summed over.
    """

    original: dict[sympy.Symbol, int]
    solved: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    reasons: dict[sympy.Symbol, Where | None] = field(default_factory=dict)
    multiples: list[tuple[sympy.Expr, sympy.Expr]] = field(default_factory=list)
    data: set[sympy.Symbol] = field(default_factory=set)
    heads: set[sympy.Symbol] = field(default_factory=set)
    groups: set[sympy.Symbol] = field(default_factory=set)
    attributes: set[sympy.Symbol] = field(default_factory=set)
    widths: set[sympy.Symbol] = field(default_factory=set)

    def resolve(self, expr: sympy.Expr) -> sympy.Expr:
        """The expression in free symbols only."""
        while True:
            known = {s: self.solved[s] for s in expr.free_symbols if s in self.solved}
            if not known:
                return expr
            expr = expr.xreplace(known)
            if _linear(expr) is None:
                expr = sympy.expand(expr)

    def equate(self, left: sympy.Expr, right: sympy.Expr, where: Where | None) -> None:
        """Use an equation to write one more symbol in terms of others."""
        left, right = self.resolve(left), self.resolve(right)
        gap = left - right
        if gap == 0:
            return
        if gap.free_symbols & self.data:
            # Between widths the input's sizes are only numbers; with one width alone they tell where it comes from.
            in_numbers = sympy.expand(gap.xreplace({s: sympy.Integer(self.original[s]) for s in self.data}))
            if in_numbers == 0:
                return
            if len(gap.free_symbols - self.data) > 1:
                gap = in_numbers
        if _linear(gap) is None:
            gap = sympy.expand(sympy.fraction(sympy.together(gap))[0])
        slopes = _slopes(gap)
        candidates = [s for s, slope in slopes.items() if slope is not None and s not in self.data]
        if not candidates:
            return
        symbol = max(candidates, key=lambda s: (self._rank(gap, s, slopes[s]), self.original[s], str(s)))
        slope = slopes[symbol] or sympy.S.One  # never None here: candidates are linear
        value = symbol - gap / slope
        self.solved[symbol] = sympy.expand(value) if slope.is_Number else sympy.cancel(value)
        self.reasons[symbol] = where

    def _rank(self, gap: sympy.Expr, symbol: sympy.Symbol, slope: sympy.Expr) -> int:
        """How good it is to solve the equation gap == 0 for a symbol."""
        counts = self.heads | self.groups
        if symbol in counts:
            return 4 if slope.is_Number and gap.free_symbols - counts - self.data else 0
        if slope.free_symbols & counts or (symbol in self.attributes and slope.free_symbols - self.data):
            return 3  # the width of a head: the heads and the whole width stay free
        return 2 if slope.is_Number and abs(slope) == 1 else 1

    def value(self, expr: sympy.Expr, chosen: dict[sympy.Symbol, int]) -> sympy.Rational:
        """The expression's value for chosen sizes of the free symbols."""
        return sympy.Rational(self.resolve(expr).xreplace({**self.original, **chosen}))


def eliminate(found: Probe) -> System:
    """Solve the equations that a probe recorded."""
    rec = found.recorder
    system = System(dict(rec.sizes), data=set(rec.data), heads=found.heads, groups=found.groups)
    for sizes in found.attributes.values():
        each = sizes if isinstance(sizes, tuple) else (sizes,)
        system.attributes |= {symbol for size in each for symbol in expression(size).free_symbols}
    system.multiples = [
        (exact(a, rec.sizes, system.multiples), exact(b, rec.sizes, system.multiples))
        for a, b in rec.multiples
    ]
    pairs = [
        (exact(e.left, rec.sizes, system.multiples), exact(e.right, rec.sizes, system.multiples), e.where)
        for e in rec.equations
    ]
    # Simple equations first: they join most symbols, and the others come out short.
    pairs.sort(key=lambda pair: len(pair[0].free_symbols) + len(pair[1].free_symbols) > 2)
    for left, right, where in pairs:
        system.equate(left, right, where)
    summed = {symbol for expr in rec.summed for symbol in system.resolve(expr).free_symbols}
    for expr in rec.widths:
        system.widths |= (system.resolve(expr).free_symbols & summed) - system.data
    for pair in system.multiples:
        used = system.resolve(pair[0]).free_symbols | system.resolve(pair[1]).free_symbols
        if used & system.widths:
            system.widths |= used & system.heads
    return system


def hard_coded(found: Probe, system: System) -> tuple[str, Where | None] | None:
    """A width that the network's code fixes by a number, and where, or None."""
    for name, sizes in found.tensors.items():
        for axis, size in enumerate(sizes):
            expr = expression(size)
            if expr in found.recorder.widths and expr.is_Symbol and system.resolve(expr).is_Number:
                return f"{name} (axis {axis})", _reason(system, expr)
    return None


def _reason(system: System, symbol: sympy.Symbol) -> Where | None:
    while True:
        value = system.solved[symbol]
        if not value.free_symbols:
            return system.reasons[symbol]
        symbol = next(iter(value.free_symbols))


def choose(found: Probe, system: System, ratio: float, heads: str = "round") -> dict[sympy.Symbol, int]:
    """Sizes of the free symbols at `ratio` of the original widths.

    Args:
        found: the probe, for names in errors.
        system: its equations, eliminated.
        ratio: new width over old, above 0.
        heads: "round" scales the number of attention heads up to a whole number; "exact" demands that it comes out
            whole; "keep" leaves the number of heads and narrows each.
    """
    labels = found.recorder.labels
    scaled = {s for s in system.widths if s not in system.groups}
    chosen: dict[sympy.Symbol, int] = {}
    for symbol in sorted(scaled, key=str):
        size = system.original[symbol]
        if symbol in system.heads and heads == "keep":
            continue
        if symbol in system.heads and heads == "exact" and abs(size * ratio - round(size * ratio)) > 1e-9:
            raise ConversionError(
                f"'{labels[symbol]}' is {size} attention heads, and {size} x {ratio:.4g} = {size * ratio:.4g} is not "
                f"a whole number of heads; choose members and alpha so that alpha/members x {size} is whole, "
                'or heads="round" or heads="keep".'
            )
        if size * ratio < 1 - 1e-9 and symbol not in system.heads:
            raise TooNarrowError(labels[symbol], size, ratio)
        chosen[symbol] = math.ceil(size * ratio - 1e-9)
    if _round_up(system, chosen):
        return chosen
    if heads == "round" and chosen.keys() & system.heads:
        return choose(found, system, ratio, "keep")
    raise ConversionError(
        f"No widths near {ratio:.4g} of the original's satisfy all that must divide in this network; "
        "give the narrow network yourself (narrow=...)."
    )


def _round_up(system: System, chosen: dict[sympy.Symbol, int]) -> bool:
    """Raise widths, the largest first, until every size is a whole number and every divisor divides."""
    demands = [(system.resolve(a), system.resolve(b)) for a, b in system.multiples]
    demands += [sympy.fraction(sympy.together(system.resolve(s))) for s in system.solved]
    demands = sorted({(a, b) for a, b in demands if (a / b).free_symbols & chosen.keys()}, key=str)
    demands = [(a, b) for a, b in demands if not (b.is_Number and abs(b) == 1)]
    for _ in range(_TRIES):
        broken = next((d for d in demands if not _divides(system, d, chosen)), None)
        if broken is None:
            return True
        movable = [s for s in (broken[0] / broken[1]).free_symbols if s in chosen and s not in system.heads]
        if not movable:
            return False
        chosen[max(movable, key=lambda s: (system.original[s], str(s)))] += 1
    return False


def _divides(system: System, demand: tuple[sympy.Expr, sympy.Expr], chosen: dict[sympy.Symbol, int]) -> bool:
    values = {**system.original, **chosen}
    top, bottom = (sympy.Rational(part.xreplace(values)) for part in demand)
    return bottom != 0 and (top / bottom).is_integer and top / bottom > 0


def new_size(system: System, size: Size, chosen: dict[sympy.Symbol, int]) -> int:
    """The size for chosen free symbols; it must come out whole."""
    if isinstance(size, int):
        return size
    value = system.value(expression(size), chosen)
    if value.q != 1 or value <= 0:
        raise ConversionError(
            f"A size came out as {value}, which is no size; give the narrow network yourself."
        )
    return int(value)


def _linear(expr: sympy.Expr) -> dict[sympy.Symbol, sympy.Number] | None:
    """The coefficients of a linear expression, or None for others. Most are, and expanding the rest is slow."""
    slopes: dict[sympy.Symbol, sympy.Number] = {}
    for term in sympy.Add.make_args(expr):
        factor, symbol = term.as_coeff_Mul()
        if symbol.is_Symbol:
            slopes[symbol] = factor
        elif symbol is not sympy.S.One:
            return None
    return slopes


def _slopes(gap: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr | None]:
    """For each symbol its factor in gap, or None where gap is not linear in it."""
    linear = _linear(gap)
    if linear is not None:
        return dict(linear)
    slopes: dict[sympy.Symbol, sympy.Expr | None] = {}
    for symbol in gap.free_symbols:
        slope = gap.coeff(symbol, 1)
        rest = gap.coeff(symbol, 0)
        linear_in = slope != 0 and sympy.expand(slope * symbol + rest - gap) == 0
        slopes[symbol] = slope if linear_in else None
    return slopes
