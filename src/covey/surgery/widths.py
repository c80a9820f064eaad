"""Chooses new widths: `ratio` times the original's, rounded up until everything that must divide does."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import count

import sympy
from sympy import Expr, Symbol

from covey.errors import ConversionError
from covey.surgery.equations import System
from covey.surgery.errors import TooNarrowError
from covey.surgery.probe import Probe
from covey.surgery.recorder import SymbolSizes
from covey.surgery.sizes import Size, formula_of

Chosen = SymbolSizes
Demand = tuple[Expr, Expr]  # the first must be a positive multiple of the second
Numbers = Mapping[Symbol, int | Fraction]

_TRIES = 2_000
_SLACK = 1e-9  # a size that is this close to a whole number is one


def choose(
    found: Probe,
    system: System,
    ratio: float,
    heads: str = "round",
) -> Chosen:
    """Sizes of the free symbols at `ratio` of the original widths.

    Args:
        found: the probe, for names in errors.
        system: its equations, eliminated.
        ratio: new width over old, above 0.
        heads: "round" scales the number of attention heads up to a whole number; "exact" demands that it comes out
            whole; "keep" leaves the number of heads and narrows each.
    """
    labels = found.recorder.labels
    chosen: Chosen = {}
    widths = system.widths - system.groups
    if heads != "keep":  # a head is as wide as before, and there are fewer
        widths = widths - widths_of_heads(found, system)
    for symbol in sorted(widths, key=str):
        size = system.original[symbol]
        is_heads = symbol in system.heads
        if is_heads and heads == "keep":
            continue
        if is_heads and heads == "exact":
            _check_heads(labels[symbol], size, ratio)
        if not is_heads and size * ratio < 1 - _SLACK:
            raise TooNarrowError(labels[symbol], size, ratio)
        chosen[symbol] = whole(size * ratio)
    demands = _demands(system, chosen)
    for group in _independent(demands, chosen):
        if not _round_up(system, group, chosen):
            size, divisor = _first_broken(group, {**system.original, **chosen}) or group[0]
            raise ConversionError(
                f"No widths near {ratio:.4g} of the original's satisfy all that must divide in this network: "
                f"{_in_words(found, size)} must stay a multiple of {_in_words(found, divisor)}. Choose another alpha "
                "or number of members, or give the narrow network yourself (narrow=...)."
            )
    return chosen


def widths_of_heads(found: Probe, system: System) -> set[Symbol]:
    """Free symbols that are the width of one head: axes are their product with the number of heads.

    If both were scaled, an axis would be scaled twice.
    """
    among: set[Symbol] = set()
    if not system.heads:
        return among
    heads = {system.resolve(symbol) for symbol in system.heads}
    for sizes in found.tensors.values():
        for size in sizes:
            powers = system.resolve(formula_of(size)).as_powers_dict()
            factors = {symbol for symbol, power in powers.items() if power == 1} & system.widths
            # (width / its heads) x (heads of another layer), as where one rotation serves both, is scaled once.
            times = sum(power for symbol, power in powers.items() if symbol in system.widths | heads)
            if factors & heads and times > 1:
                among |= factors - heads
    return among


def whole(size: float) -> int:
    """A size rounded up."""
    return math.ceil(size - _SLACK)


def _in_words(found: Probe, expr: Expr) -> str:
    """A formula with the names of what its symbols were made for."""
    if expr.is_Number:
        return str(expr)
    names = sorted(found.recorder.labels[symbol] for symbol in expr.free_symbols)
    return " with ".join(f"'{name}'" for name in names)


def _check_heads(label: str, size: int, ratio: float) -> None:
    wanted = size * ratio
    if abs(wanted - round(wanted)) > _SLACK:
        raise ConversionError(
            f"'{label}' is {size} attention heads, and {size} x {ratio:.4g} = {wanted:.4g} is not "
            f"a whole number of heads; choose members and alpha so that alpha/members x {size} is whole, "
            'or heads="round" or heads="keep".'
        )


# --- what must divide --------------------------------------------------------------------------------------------


def _demands(system: System, chosen: Chosen) -> list[Demand]:
    """All that must divide and depends on a chosen width, in an order that does not change between runs."""
    demands: set[Demand] = set()
    for size, divisor in system.multiples:
        whole_size, part = system.resolve(size), system.resolve(divisor)
        if part == 1 and _is_always_whole(whole_size):
            continue
        quotient = whole_size / part
        is_short = whole_size.is_Symbol and (part.is_Symbol or part.is_Integer)
        demands.add((whole_size, part) if is_short else sympy.fraction(sympy.cancel(quotient)))
    for symbol in system.solved:
        # A solved size must come out whole: its numerator is a multiple of its denominator.
        formula = system.resolve(symbol)
        if not _is_always_whole(formula):
            demands.add(sympy.fraction(sympy.together(formula)))
    kept = []
    for demand in demands:
        size, divisor = demand
        is_trivial = divisor.is_Number and abs(divisor) == 1 and _is_always_positive(size)
        if not is_trivial and _symbols(demand) & chosen.keys():
            kept.append(demand)
    return sorted(kept, key=str)


def _is_always_whole(formula: Expr) -> bool:
    """Whether a formula is a sum of whole multiples of symbols, none subtracted."""
    for term in sympy.Add.make_args(formula):
        factor, rest = term.as_coeff_Mul()
        if not factor.is_Integer or not factor.is_positive:
            return False
        for part in sympy.Mul.make_args(rest):
            _, power = part.as_base_exp()
            if not power.is_Integer or not power.is_positive:
                return False
    return True


def _is_always_positive(formula: Expr) -> bool:
    return not any(term.as_coeff_Mul()[0].is_negative for term in sympy.Add.make_args(formula))


def _symbols(demand: Demand) -> set[Symbol]:
    size, divisor = demand
    return size.free_symbols | divisor.free_symbols


def _independent(demands: Iterable[Demand], chosen: Chosen) -> list[list[Demand]]:
    """Demands in groups that have no chosen width in common."""
    groups: list[tuple[set[Symbol], list[Demand]]] = []
    for demand in demands:
        symbols = _symbols(demand) & chosen.keys()
        members = [demand]
        apart = []
        for other, its_demands in groups:
            if other & symbols:
                symbols = symbols | other
                members = its_demands + members
            else:
                apart.append((other, its_demands))
        groups = [*apart, (symbols, members)]
    return [members for _, members in groups]


# --- rounding ----------------------------------------------------------------------------------------------------


def _round_up(system: System, demands: list[Demand], chosen: Chosen) -> bool:
    """Raise widths until every demand holds, by as little as can be found: the cheapest attempt is followed first.

    Heads are never raised. Returns False if no widths were found.
    """
    movable = set().union(*map(_symbols, demands)) & chosen.keys() - system.heads
    start = {symbol: chosen[symbol] for symbol in movable}
    order = count()  # of attempts that cost the same the first is taken
    attempts = [(0.0, next(order), start)]
    met = set()
    for _ in range(_TRIES):
        if not attempts:
            return False
        _, _, sizes = heapq.heappop(attempts)
        values = {**system.original, **chosen, **sizes}
        broken = _first_broken(demands, values)
        if broken is None:
            chosen.update(sizes)
            return True
        for symbol in sorted(_symbols(broken) & movable, key=str):
            raised = _raised(broken, symbol, values)
            attempt = {**sizes, symbol: raised}
            key = tuple(attempt.values())
            if raised and key not in met:
                met.add(key)
                cost = sum(attempt[other] / start[other] - 1 for other in start)
                heapq.heappush(attempts, (cost, next(order), attempt))
    return False


def _raised(demand: Demand, symbol: Symbol, values: Numbers) -> int:
    """The next size of a symbol with which a demand holds; 0 if there is none that is not far too large."""
    size = int(values[symbol])
    for larger in range(size + 1, 3 * size + 129):
        if _holds(demand, {**values, symbol: larger}):
            return larger
    return 0


def _first_broken(demands: list[Demand], values: Numbers) -> Demand | None:
    return next((demand for demand in demands if not _holds(demand, values)), None)


def _holds(demand: Demand, values: Numbers) -> bool:
    size, divisor = demand
    bottom = evaluate(divisor, values)
    if bottom == 0:
        return False
    times = evaluate(size, values) / Fraction(bottom)
    return times.denominator == 1 and times > 0


def evaluate(expr: Expr, values: Numbers) -> Fraction:
    """A formula's value. (sympy can do that too, but not fast.)"""
    if expr.is_Symbol:
        return Fraction(values[expr])
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if expr.is_Pow:
        base, power = expr.args
        return evaluate(base, values) ** int(power)
    parts = [evaluate(part, values) for part in expr.args]
    if expr.is_Add:
        return sum(parts, Fraction(0))
    if expr.is_Mul:
        return math.prod(parts, start=Fraction(1))
    raise ConversionError(f"The sizes of this network follow a formula that covey cannot read: {expr}.")


def sizes_for(system: System, chosen: Chosen) -> Callable[[int | Expr], int]:
    """A function from each size of the original network to that of the narrow one."""
    values = {**system.original, **chosen}
    known: dict[Expr, int] = {}

    def size_of(size: int | Expr) -> int:
        formula = formula_of(size)
        if formula not in known:
            known[formula] = new_size(system, size, values)
        return known[formula]

    return size_of


def new_size(system: System, size: int | Expr, values: Numbers) -> int:
    """The size for values of the free symbols; it must come out whole."""
    if isinstance(size, int) and not isinstance(size, Size):
        return size
    formula = system.resolve(formula_of(size))
    value = evaluate(formula, values)
    if value.denominator != 1 or value <= 0:
        raise ConversionError(
            f"A size came out as {value}, which is no size; give the narrow network yourself."
        )
    return int(value)
