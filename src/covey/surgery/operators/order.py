"""Operators that make tensors, or put axes in another order."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, broadcast, fresh, rule
from covey.surgery.sizes import Sizes, sizes_of


def axis_of(args: tuple, kwargs: Named, place: int = 1, default: int = 0) -> int:
    """The axis that an operator was given, counted from the first."""
    axis = args[place] if len(args) > place else kwargs.get("dim", default)
    rank = _rank(args[0])
    return int(axis) % rank if rank else 0


def _rank(given: Any) -> int:
    tensor = given if isinstance(given, Tensor) else given[0]
    return tensor.dim()


def without(sizes: Sizes, axis: int) -> Sizes:
    """All sizes but that of one axis."""
    return sizes[:axis] + sizes[axis + 1 :]


@rule("aten.new_empty", "aten.new_zeros", "aten.new_ones", "aten.new_full")
def _new(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [fresh(facts, made[0])]


@rule("aten.sort")
def _as_the_first(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [sizes_of(args[0])] * len(made)


@rule("aten._weight_norm_interface")
def _weight_norm(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    direction, length = sizes_of(args[0]), sizes_of(args[1])
    return [broadcast(facts.recorder, [direction, length]), length]


@rule("aten.transpose", "aten.t")
def _transpose(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = list(sizes_of(args[0]))
    if len(args) > 2 and sizes:
        one, other = args[1:3]
        sizes[one], sizes[other] = sizes[other], sizes[one]
    else:
        sizes.reverse()
    return [tuple(sizes)]


@rule("aten.permute")
def _permute(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    return [tuple(sizes[axis] for axis in args[1])]


@rule("aten.unsqueeze")
def _unsqueeze(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = list(sizes_of(args[0]))
    axis = args[1] % (len(sizes) + 1)
    sizes.insert(axis, 1)
    return [tuple(sizes)]


@rule("aten.squeeze")
def _squeeze(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = sizes_of(args[0])
    axes = range(len(sizes)) if len(args) < 2 else args[1]
    if isinstance(axes, int):
        axes = [axes]
    gone = {axis % len(sizes) for axis in axes}
    return [tuple(size for axis, size in enumerate(sizes) if axis not in gone or size != 1)]


@rule("aten.view_as_real")
def _complex_as_real(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [(*sizes_of(args[0]), 2)]


@rule("aten.view_as_complex")
def _real_as_complex(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [sizes_of(args[0])[:-1]]
