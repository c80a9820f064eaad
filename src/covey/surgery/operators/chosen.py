"""Operators whose result is as long as values decide. On sizes alone there are no values: a mask then chooses all.

That is one of the runs that the network can have, and equations between sizes hold in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, fresh, given, instead, rule
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, mark, mark_data, sizes_of


@instead("aten.nonzero")
def all_places(tensor: Tensor) -> Tensor:
    """The places of all entries."""
    return tensor.new_empty((tensor.shape.numel(), tensor.dim()), dtype=torch.long)


@instead("aten.masked_select")
def all_entries(tensor: Tensor, mask: Tensor) -> Tensor:
    """Every entry, in a row."""
    return tensor.new_empty(torch.broadcast_shapes(tensor.shape, mask.shape).numel())


@instead("aten.bincount")
def counts(tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    """As many as the network asks for at least; without that nobody knows."""
    like = tensor if weights is None else weights
    return like.new_empty(minlength) if minlength else None


@rule("aten.nonzero")
def _places(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    count, axes = made[0].shape
    return [(facts.recorder.from_data(count), axes)]


@rule("aten.masked_select")
def _selected(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    for size in sizes_of(args[0]):
        facts.recorder.position(size)
    return [tuple(map(facts.recorder.from_data, made[0].shape))]


@rule("aten.bincount")
def _counts(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [fresh(facts, made[0])]


@given("aten.index", "aten.index_put", "aten.index_put_")
def without_masks(rec: Recorder, args: tuple) -> tuple:
    """An index in which places stand for masks: for each axis of a mask those that it chooses."""
    tensor, indices, *rest = args
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or not index.dim():
            found.append(index)
            continue
        count = index.shape.numel()
        for _ in range(index.dim()):
            places = index.new_empty(count, dtype=torch.long)
            found.append(mark_data(mark(places, [rec.from_data(count)])))
    return (tensor, found, *rest)
