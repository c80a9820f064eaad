"""Chooses new widths: `ratio` times the original's, rounded up until everything that must divide does."""

from __future__ import annotations

import math

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

_TRIES = 20_000
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
    for symbol in sorted(system.widths - system.groups, key=str):
        size = system.original[symbol]
        is_heads = symbol in system.heads
        if is_heads and heads == "keep":
            continue
        if is_heads and heads == "exact":
            _check_heads(labels[symbol], size, ratio)
        if not is_heads and size * ratio < 1 - _SLACK:
            raise TooNarrowError(labels[symbol], size, ratio)
        chosen[symbol] = math.ceil(size * ratio - _SLACK)
    if _round_up(system, chosen):
        return chosen
    if heads == "round" and chosen.keys() & system.heads:
        return choose(found, system, ratio, "keep")
    raise ConversionError(
        f"No widths near {ratio:.4g} of the original's satisfy all that must divide in this network; "
        "give the narrow network yourself (narrow=...)."
    )


def _check_heads(label: str, size: int, ratio: float) -> None:
    wanted = size * ratio
    if abs(wanted - round(wanted)) > _SLACK:
        raise ConversionError(
            f"'{label}' is {size} attention heads, and {size} x {ratio:.4g} = {wanted:.4g} is not "
            f"a whole number of heads; choose members and alpha so that alpha/members x {size} is whole, "
            'or heads="round" or heads="keep".'
        )


def _round_up(system: System, chosen: Chosen) -> bool:
    """Raise widths, the largest first, until every size is a whole number and every divisor divides.

    Heads are never raised. Returns False if that cannot be done.
    """

    def by_size(symbol: Symbol) -> tuple[int, str]:
        return system.original[symbol], str(symbol)

    demands = _demands(system, chosen)
    for _ in range(_TRIES):
        broken = _first_broken(system, demands, chosen)
        if broken is None:
            return True
        movable = (_symbols(broken) & chosen.keys()) - system.heads
        if not movable:
            return False
        largest = max(movable, key=by_size)
        chosen[largest] += 1
    return False


def _demands(system: System, chosen: Chosen) -> list[Demand]:
    """All that must divide and depends on a chosen width, in an order that does not change between runs."""
    every: list[Demand] = []
    for size, divisor in system.multiples:
        every.append((system.resolve(size), system.resolve(divisor)))
    for symbol in system.solved:
        # A solved size must come out whole: its numerator is a multiple of its denominator.
        fraction = sympy.together(system.resolve(symbol))
        every.append(sympy.fraction(fraction))
    demands: set[Demand] = set()
    for demand in every:
        divisor = demand[1]
        is_trivial = divisor.is_Number and abs(divisor) == 1
        if not is_trivial and _symbols(demand) & chosen.keys():
            demands.add(demand)
    return sorted(demands, key=str)


def _symbols(demand: Demand) -> set[Symbol]:
    size, divisor = demand
    return (size / divisor).free_symbols


def _first_broken(system: System, demands: list[Demand], chosen: Chosen) -> Demand | None:
    values = {**system.original, **chosen}
    for size, divisor in demands:
        top = sympy.Rational(size.xreplace(values))
        bottom = sympy.Rational(divisor.xreplace(values))
        if bottom == 0:
            return size, divisor
        times = top / bottom
        if not times.is_integer or times <= 0:
            return size, divisor
    return None


def new_size(system: System, size: int | Expr, chosen: Chosen) -> int:
    """The size for chosen free symbols; it must come out whole."""
    if isinstance(size, int) and not isinstance(size, Size):
        return size
    value = system.value(formula_of(size), chosen)
    if value.q != 1 or value <= 0:
        raise ConversionError(
            f"A size came out as {value}, which is no size; give the narrow network yourself."
        )
    return int(value)
