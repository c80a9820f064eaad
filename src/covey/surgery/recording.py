"""Writes down what narrowing changes: shapes of tensors, attributes of modules, and sizes that had to be rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from sympy import Expr, Symbol
from torch import nn

from covey.surgery.attributes import as_tuple
from covey.surgery.edits import Edits, known_attributes
from covey.surgery.equations import System
from covey.surgery.probe import Probe
from covey.surgery.recorder import SymbolSizes
from covey.surgery.sizes import formula_of

SizeOf = Callable[[int | Expr], int]  # a size of the original network -> of the narrow one
Attributes = dict[str, dict[str, Any]]  # module path -> attribute name -> value
Rounded = dict[str, tuple[int, float, int]]  # label -> original, wanted and new size

# Floats that are computed from a width go by such names; a dropout rate of 0.5 is no root of a head width of 4.
_SCALES = re.compile("scal|norm|factor|temp|sqrt|inv", re.IGNORECASE)


def record_edits(network: nn.Module, found: Probe, size_of: SizeOf) -> Edits:
    """What must change in `network` for the new sizes.

    Args:
        network: the original network.
        found: what a probe told about it.
        size_of: the new size for every old one.
    """
    tensors = _changed_tensors(found, size_of)
    attributes = _changed_attributes(found, size_of)
    for path, scales in _changed_scales(network, found, size_of).items():
        attributes.setdefault(path, {}).update(scales)
    return {"tensors": tensors, "attributes": attributes}


def _changed_tensors(found: Probe, size_of: SizeOf) -> dict[str, list[int]]:
    changed = {}
    for name, sizes in found.tensors.items():
        old = list(map(int, sizes))
        new = list(map(size_of, sizes))
        if new != old:
            changed[name] = new
    return changed


def _changed_attributes(found: Probe, size_of: SizeOf) -> Attributes:
    changed: Attributes = {}
    for (path, name), held in found.attributes.items():
        sizes = as_tuple(held)
        old = list(map(int, sizes))
        new = list(map(size_of, sizes))
        if new != old:
            value = new if isinstance(held, tuple) else new[0]
            changed.setdefault(path, {})[name] = value
    return changed


def _changed_scales(network: nn.Module, found: Probe, size_of: SizeOf) -> Attributes:
    """Floats like head_dim ** -0.5 that a module computed from a size when it was made."""
    changed: Attributes = {}
    for path, viewed in found.recorder.viewed.items():
        module = network.get_submodule(path)
        for name, value in vars(module).items():
            if not isinstance(value, float) or not _SCALES.search(name):
                continue
            scaled = _rescaled(value, viewed, found, size_of)
            if scaled is not None:
                changed.setdefault(path, {})[name] = scaled
    return changed


def _rescaled(
    value: float,
    viewed: set[Expr],
    found: Probe,
    size_of: SizeOf,
) -> float | None:
    """The float for the new size; None if it is no root of a size in the module's views, or that size stays."""
    for expr in sorted(viewed - found.heads, key=str):
        old = int(expr.xreplace(found.recorder.sizes))
        if old < 2:
            continue
        for power in (-0.5, 0.5):
            if math.isclose(value, old**power, rel_tol=1e-9):
                new = size_of(expr)
                if new != old:
                    return new**power
    return None


def finish_attributes(small: nn.Module, network: nn.Module, edits: Edits) -> None:
    """Bring what PyTorch's layers say about themselves in line with their tensors, and add that to the edits."""
    for path, module in small.named_modules():
        original = network.get_submodule(path)
        for name, value in known_attributes(module).items():
            if getattr(module, name) != value:
                setattr(module, name, value)
            if getattr(original, name) != value:
                edits["attributes"].setdefault(path, {})[name] = value


def rounded_sizes(
    found: Probe,
    system: System,
    chosen: SymbolSizes,
    size_of: SizeOf,
    ratio: float,
) -> Rounded:
    """Sizes that differ from what they would be if every free width were exactly ratio x the original's."""
    unrounded: dict[Symbol, float] = dict(system.original)
    for symbol in chosen:
        unrounded[symbol] = ratio * system.original[symbol]
    rounded: Rounded = {}
    for label, size in _labelled_sizes(found):
        formula = system.resolve(formula_of(size))
        wanted = float(formula.xreplace(unrounded))
        new = size_of(size)
        if abs(new - wanted) > 1e-6:
            rounded[label] = (int(size), wanted, new)
    return rounded


def _labelled_sizes(found: Probe) -> Iterator[tuple[str, int]]:
    """Every axis of a tensor and every attribute that is one number, under the name that a user would know it by."""
    for name, sizes in found.tensors.items():
        for axis, size in enumerate(sizes):
            yield f"{name} (axis {axis})", size
    for (path, name), held in found.attributes.items():
        if not isinstance(held, tuple):
            label = f"{path}.{name}" if path else name
            yield label, held
