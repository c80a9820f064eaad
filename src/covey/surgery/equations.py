"""Solves a network's size equations: every symbol in terms of a few free ones.

What depends on the input's sizes alone stays; what comes out as a number of its own was written in the network's
code; what is left free and belongs to a weight is a width. `widths` chooses new values for those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import sympy
from sympy import Expr, Symbol

from covey.surgery.attributes import as_tuple
from covey.surgery.probe import Probe
from covey.surgery.recorder import Equation, Multiples, SymbolSizes
from covey.surgery.sizes import formula_of
from covey.surgery.source import Where

Symbols = set[Symbol]
Formulas = dict[Symbol, Expr]
Slopes = dict[Symbol, Expr]  # the factor of each symbol in a sum


@dataclass
class System:
    """The equations of a network, eliminated.

    Args:
        original: size of every symbol in the original network.
        solved: symbols written in terms of others.
        fixed: symbols that the code cuts (True) or writes as a number (False), and the line that does.
        multiples: pairs (a, b) where a must stay a multiple of b.
        data: symbols that the input decides.
        heads: symbols that count attention heads (scaled).
        groups: other counts (kept).
        attributes: symbols of modules' attributes.
        widths: free symbols that belong to a weight and are summed over.
        apart: pairs that the network's code must find to differ.
        wished: the system without cuts and numbers in the network's code, which keep widths from scaling.
    """

    original: SymbolSizes
    solved: Formulas = field(default_factory=dict)
    fixed: dict[Symbol, tuple[bool, Where | None]] = field(default_factory=dict)
    multiples: Multiples = field(default_factory=list)
    data: Symbols = field(default_factory=set)
    heads: Symbols = field(default_factory=set)
    groups: Symbols = field(default_factory=set)
    attributes: Symbols = field(default_factory=set)
    widths: Symbols = field(default_factory=set)
    apart: list[tuple[Symbol, Expr]] = field(default_factory=list)
    wished: System | None = None

    def resolve(self, expr: Expr) -> Expr:
        """The expression in free symbols only."""
        if expr.is_Symbol:
            return self._solution(expr) if expr in self.solved else expr
        while True:
            known = {}
            for symbol in expr.free_symbols:
                if symbol in self.solved:
                    known[symbol] = self._solution(symbol)
            if not known:
                return expr
            expr = expr.xreplace(known)
            if _linear_slopes(expr) is None:
                expr = sympy.expand(expr)

    def _solution(self, symbol: Symbol) -> Expr:
        """What a symbol was solved as, brought up to date, so that long chains are walked once."""
        value = self.solved[symbol]
        # the dictionary's side asks: a set would go through all that is solved
        if not self.solved.keys().isdisjoint(value.free_symbols):
            value = self.resolve(value)
            self.solved[symbol] = value
        return value

    def use(self, equation: Equation, gap: Expr) -> None:
        """Write one more symbol in terms of others by an equation, unless it says nothing new."""
        if gap == 0:
            return
        if _linear_slopes(gap) is None:
            # gap == 0 means that its numerator is 0, and that is a polynomial.
            numerator, _ = sympy.fraction(sympy.together(gap))
            gap = sympy.expand(numerator)
            gap = self._vanishing_factor(gap)
        gap = _without_fractions(gap)
        slopes = _slopes(gap)
        if self._use_equal_parts(gap, slopes):
            return
        symbol = self._best_symbol(gap, slopes)
        if symbol is not None:
            slope = slopes[symbol]
            value = symbol - gap / slope
            shorten = sympy.expand if slope.is_Number else sympy.cancel
            self.solved[symbol] = shorten(value)
            if symbol in self.attributes and self.solved[symbol].is_Symbol:
                self.attributes.add(self.solved[symbol])
        else:
            symbol = self._only_symbol(gap)
            if symbol is None:
                return
            self.solved[symbol] = sympy.Integer(self.original[symbol])
        if self.wished is not None:
            self.fixed[symbol] = (equation.is_cut, equation.where)

    def _use_equal_parts(self, gap: Expr, slopes: Slopes) -> bool:
        """Three biases of one size, joined for queries, keys and values of that size, are each as large as those.

        `s1 + s2 + s3 = 3 s4`, where all four are of one size, would leave three of them free.
        """
        if _linear_slopes(gap) is None or gap.as_coeff_Add()[0] != 0 or slopes.keys() & self.data:
            return False
        count = len(slopes) - 1
        wholes = [symbol for symbol, slope in slopes.items() if abs(slope) == count]
        if count < 2 or len(wholes) != 1:
            return False
        (whole,) = wholes
        parts = [symbol for symbol in slopes if symbol != whole]
        is_even = all(slopes[part] * -count == slopes[whole] for part in parts)
        is_same = all(self.original[part] == self.original[whole] for part in parts)
        if is_even and is_same:
            self.solved.update(dict.fromkeys(parts, whole))
        return is_even and is_same

    def _vanishing_factor(self, gap: Expr) -> Expr:
        """Of a product that is 0, the factor that is 0 in the original network."""
        _, factors = sympy.factor_list(gap)
        for factor, _ in factors:
            if factor.xreplace(self.original) == 0:
                return factor
        return gap

    def fixes_a_width(self, gap: Expr) -> bool:
        """Whether all that an equation says is that a symbol is a number."""
        free = gap.free_symbols
        return len(free) == 1 and not free & self.data

    def gap(self, equation: Equation) -> Expr:
        """One side of an equation less the other, in free symbols."""
        left, right = self.resolve(equation.left), self.resolve(equation.right)
        if left == right:  # as most are
            return sympy.Integer(0)
        return self._without_data(left - right)

    def _without_data(self, gap: Expr) -> Expr:
        """An equation's gap with the input's sizes as numbers, where they do not tell what a width comes from.

        `s7 - 4 s2 = 0` with one width s7 and an input size s2 says that s7 is the data's business. Between two
        widths (a flattened image in front of a linear layer) the input's sizes are only numbers.
        """
        if not gap.free_symbols & self.data:
            return gap
        numbers = {}
        for symbol in self.data:
            numbers[symbol] = sympy.Integer(self.original[symbol])
        in_numbers = sympy.expand(gap.xreplace(numbers))
        is_between_widths = len(gap.free_symbols - self.data) > 1
        if in_numbers == 0 or is_between_widths:
            return in_numbers
        return gap

    def _best_symbol(self, gap: Expr, slopes: Slopes) -> Symbol | None:
        """The symbol to solve the equation gap == 0 for, or None if it has none that can be solved for."""
        # By a slope that is 0 in the original network one cannot divide.
        candidates = [
            symbol
            for symbol, slope in slopes.items()
            if symbol not in self.data and slope.xreplace(self.original) != 0
        ]
        if not candidates:
            return None

        terms = sympy.Add.make_args(gap)
        positive = sum(1 for term in terms if not term.as_coeff_Mul()[0].is_negative)
        negative = len(terms) - positive

        def preference(symbol: Symbol) -> tuple[int, int, str]:
            slope = slopes[symbol]
            # With other terms of its own sign the symbol is some others less these: it might come out as 0.
            same_sign = negative if slope.as_coeff_Mul()[0].is_negative else positive
            rank = self._rank(gap, symbol, slope, is_difference=same_sign > 1)
            return rank, self.original[symbol], str(symbol)

        return max(candidates, key=preference)

    def _only_symbol(self, gap: Expr) -> Symbol | None:
        """The one symbol of an equation that says what its square is, or another power."""
        free = gap.free_symbols - self.data
        return next(iter(free)) if len(free) == 1 else None

    def _rank(
        self,
        gap: Expr,
        symbol: Symbol,
        slope: Expr,
        is_difference: bool,
    ) -> int:
        """How good it is to solve the equation gap == 0 for a symbol, from 0 to 6."""
        counts = self.heads | self.groups
        if symbol in counts:
            # A count that a width decides (groups of a depthwise convolution) follows it; else it stays free.
            widths = gap.free_symbols - counts - self.data
            return 6 if slope.is_Number and widths else 0
        # The width of a head: the heads and the whole width stay free.
        if slope.free_symbols & counts:
            return 5
        if symbol in self.attributes and slope.free_symbols - self.data:
            return 5
        is_whole = slope.is_Number and abs(slope) == 1
        if is_difference:
            return 2 if is_whole else 1
        return 4 if is_whole else 3


def eliminate(found: Probe) -> System:
    """Solve the equations that a probe recorded."""
    recorder = found.recorder
    sizes = recorder.sizes
    system = System(
        original=dict(sizes),
        data=set(recorder.data),
        heads=found.heads,
        groups=found.groups,
    )
    for held in found.attributes.values():
        for size in as_tuple(held):
            system.attributes |= formula_of(size).free_symbols

    system.multiples = list(recorder.multiples)
    # Short equations first: they join most symbols, and the others come out short.
    equations = sorted(recorder.equations, key=_is_long)
    late = []
    for equation in equations:
        gap = system.gap(equation)
        if equation.is_cut or system.fixes_a_width(gap):
            late.append(equation)
        else:
            system.use(equation, gap)
    _settle_numbers(found, system)
    _tie_compared(found, system)
    # What a width would be if the network's code did not cut it or write it as a number.
    _find_widths(found, system)
    system.wished = replace(
        system, solved=dict(system.solved), widths=set(system.widths), heads=set(system.heads)
    )
    for equation in late:
        system.use(equation, system.gap(equation))
    system.widths.clear()
    _find_widths(found, system)
    return system


def _is_long(equation: Equation) -> bool:
    symbols = len(equation.left.free_symbols) + len(equation.right.free_symbols)
    return symbols > 2


def _settle_numbers(found: Probe, system: System) -> None:
    """Numbers in the code that no layer is as wide as are no widths: coordinates or noise beside the input."""
    widths: Symbols = set()
    for expr in found.recorder.widths:
        _, rest = system.resolve(expr).as_coeff_Mul()
        if rest.is_Symbol:  # that wide, or a multiple of it; a sum is the number and the input's width
            widths.add(rest)
    for symbol in found.recorder.numbers - widths:
        if symbol not in system.solved:
            system.solved[symbol] = sympy.Integer(system.original[symbol])


def _tie_compared(found: Probe, system: System) -> None:
    """An attribute that the code only compares with a width is as large as the first such axis of its module.

    `if self.inputs != self.outputs:` takes the other branch if one of the two is scaled and the other is not.
    """
    widths: Symbols = set()
    for expr in found.recorder.widths if found.recorder.unequal else ():
        widths |= system.resolve(expr).free_symbols - system.data
    pairs = []
    for one, other in found.recorder.unequal:
        if one in system.attributes and system.resolve(other).free_symbols & widths:
            pairs.append((one, other))
    compared = {one for one, _ in pairs}
    if not compared:
        return
    compared -= _symbols_in_use(found, system)
    for (path, _), held in found.attributes.items():
        for size in as_tuple(held):
            symbol = formula_of(size)
            axis = _first_axis(found, path, int(size)) if symbol in compared else None
            if axis is not None:
                system.solved[symbol] = system.resolve(axis)
    system.apart = [(one, other) for one, other in pairs if one in compared and one in system.solved]


def _symbols_in_use(found: Probe, system: System) -> Symbols:
    """Symbols of which something else is known than what they differ from."""
    used: Symbols = set()
    for equation in found.recorder.equations:
        used |= equation.left.free_symbols | equation.right.free_symbols
    for size, divisor in system.multiples:
        used |= size.free_symbols | divisor.free_symbols
    return used


def _first_axis(found: Probe, path: str, size: int) -> Expr | None:
    """The first axis of this size among the tensors of a module."""
    prefix = f"{path}." if path else ""
    for name, sizes in found.tensors.items():
        if not name.startswith(prefix):
            continue
        for axis in sizes:
            if int(axis) == size:
                return formula_of(axis)
    return None


def _find_widths(found: Probe, system: System) -> None:
    """Enter the free symbols that are widths: they belong to a weight, and something sums over them."""
    summed: Symbols = set()
    for expr in found.recorder.summed:
        summed |= system.resolve(expr).free_symbols
    for expr, composition in found.recorder.compositions.items():
        if composition.kind == "sum":
            continue
        # Heads times head width: what sums over the width of each head uses up both.
        parts: Symbols = set()
        for part in composition.parts:
            parts |= system.resolve(formula_of(part)).free_symbols
        if parts & summed:
            summed |= system.resolve(expr).free_symbols
    for expr in found.recorder.widths:
        in_weight = system.resolve(expr).free_symbols
        system.widths |= (in_weight & summed) - system.data
    # The heads that must divide a width are scaled with it.
    quotients = [size / divisor for size, divisor in system.multiples]
    for expr in (*quotients, *system.solved.values()):
        used = system.resolve(expr).free_symbols
        if used & system.heads and used & system.widths:
            system.widths |= used & system.heads


# --- formulas ----------------------------------------------------------------------------------------------------


def _without_fractions(gap: Expr) -> Expr:
    """A sum times its denominators: a symbol with a factor of 1 is then a whole multiple of the others."""
    terms = sympy.Add.make_args(gap)
    denominators = [int(term.as_coeff_Mul()[0].q) for term in terms]
    factor = math.lcm(*denominators)
    return gap if factor == 1 else sympy.expand(gap * factor)


def _linear_slopes(expr: Expr) -> Slopes | None:
    """The coefficients of a linear expression, or None for others. Most are, and expanding the rest is slow."""
    slopes: Slopes = {}
    for term in sympy.Add.make_args(expr):
        factor, symbol = term.as_coeff_Mul()
        if symbol.is_Symbol:
            slopes[symbol] = factor
        elif symbol is not sympy.S.One:
            return None
    return slopes


def _slopes(gap: Expr) -> Slopes:
    """The factor of each symbol in which gap is linear."""
    linear = _linear_slopes(gap)
    if linear is not None:
        return linear
    slopes: Slopes = {}
    for symbol in gap.free_symbols:
        slope = gap.coeff(symbol, 1)
        rest = gap.coeff(symbol, 0)
        difference = sympy.expand(slope * symbol + rest - gap)
        if slope != 0 and difference == 0:
            slopes[symbol] = slope
    return slopes
