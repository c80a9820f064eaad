"""The promise of narrowing: every hidden width is `ratio` times the original's, up to rounding.

What the network's code cuts or writes as a number does not scale, and what must divide is rounded up. Either may make
the narrow network larger than it should be. A little is accepted; more is an error that names the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sympy import Expr, Symbol
from torch import nn

from covey.errors import ConversionError
from covey.surgery.equations import System
from covey.surgery.probe import Probe
from covey.surgery.recording import SizeOf
from covey.surgery.sizes import formula_of
from covey.surgery.widths import Chosen, sizes_for, widths_of_heads

# Numbers in the network's code that count coordinates or colours, or a rotation's nine numbers, and not channels.
COORDINATES = (2, 3, 4, 9)


@dataclass(frozen=True)
class Bound:
    """How large the narrow network is, and how large it should be.

    Args:
        parameters: how many it has.
        wished: how many it would have if every hidden width were `ratio` times the original's, not rounded.
        tensor: the name of the parameter that exceeds its share most.
        axis: which of its axes does.
        sizes: that axis's size in the original network, as it should be, and as it is.
    """

    parameters: int
    wished: float
    tensor: str
    axis: int
    sizes: tuple[int, float, int]

    @property
    def excess(self) -> float:
        """How much larger than it should be, from 0."""
        return self.parameters / self.wished - 1 if self.wished else 0.0


def measure(
    network: nn.Module,
    found: Probe,
    system: System,
    chosen: Chosen,
    ratio: float,
) -> Bound:
    """Count the parameters of the narrow network and those that it should have."""
    size_of = sizes_for(system, chosen)
    wished_of = _wished_sizes(found, system, ratio)
    parameters, wished = 0, 0.0
    worst, worst_name = -1.0, ""
    for name, _ in network.named_parameters():
        sizes = found.tensors[name]
        is_count = math.prod(map(size_of, sizes))
        should_be = math.prod(map(wished_of, sizes))
        parameters += is_count
        wished += should_be
        if is_count - should_be > worst:
            worst, worst_name = is_count - should_be, name
    axis, its_sizes = _widest_axis(found, worst_name, size_of, wished_of)
    return Bound(parameters, wished, worst_name, axis, its_sizes)


def _wished_sizes(found: Probe, system: System, ratio: float) -> Callable[[int], float]:
    """A function from a size to what it should be, in a network whose code cuts and fixes nothing."""
    free = system.wished or system
    values: dict[Symbol, float] = dict(system.original)
    for symbol in free.widths - free.groups - widths_of_heads(found, free):
        is_cut, _ = system.fixed.get(symbol, (True, None))
        if is_cut or system.original[symbol] not in COORDINATES:
            values[symbol] = ratio * system.original[symbol]
    known: dict[Expr, float] = {}

    def wished_of(size: int) -> float:
        formula = formula_of(size)
        if formula not in known:
            known[formula] = float(free.resolve(formula).xreplace(values))
        return known[formula]

    return wished_of


def _widest_axis(
    found: Probe,
    name: str,
    size_of: SizeOf,
    wished_of: Callable[[int], float],
) -> tuple[int, tuple[int, float, int]]:
    """The axis of a tensor that exceeds its wish most, and its sizes."""
    most, place, sizes = 0.0, 0, (0, 0.0, 0)
    for axis, size in enumerate(found.tensors.get(name, ())):
        # some keep an empty parameter to ask it for its device
        times = size_of(size) / wished_of(size) if size else 1.0
        if times > most:
            most, place, sizes = times, axis, (int(size), wished_of(size), size_of(size))
    return place, sizes


def check_bound(bound: Bound, found: Probe, system: System, ratio: float, tolerance: float) -> None:
    """Refuse a narrow network that is more than `tolerance` larger than it should be."""
    if ratio == 1 or bound.excess <= tolerance:
        return
    label = f"{bound.tensor} (axis {bound.axis})"
    old, wished, new = bound.sizes
    size = found.tensors[bound.tensor][bound.axis]
    reason = _reason(system, formula_of(size), label)
    raise ConversionError(
        f"The narrow network would have {bound.excess:.0%} more parameters than one of {ratio:.4g} of the width "
        f"should, and the tolerance is {tolerance:.0%}. Most of it comes from {reason}: "
        f"it has {old} channels, should have {wished:.4g}, and would have {new}. Read the width from a tensor's shape "
        "or an attribute instead, choose another alpha, members or tolerance, or give the narrow network yourself "
        "(narrow=...)."
    )


def _reason(system: System, formula: Expr, label: str) -> str:
    """Why an axis is wider than it should be."""
    free = system.wished or system
    symbols: Mapping[Symbol, object] = dict.fromkeys(sorted(free.resolve(formula).free_symbols, key=str))
    for symbol in symbols:
        if symbol in system.fixed:
            is_cut, where = system.fixed[symbol]
            how = "is cut at a fixed place" if is_cut else "is written as a number"
            return f"the width of '{label}', which {how} in the network's code ({where})"
    return f"the width of '{label}', which is rounded up until groups, heads and parts divide it"
