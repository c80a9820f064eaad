"""Narrow weights cut from trained ones: which original channels a member keeps, the same wherever they appear.

An axis is made of independent sets of channels ("atoms"): one set, several one after another (a concatenation), or
nested (3 x heads x head width). A member chooses channels for each atom once, and every tensor is indexed by
that choice, so its channels stay together through residual sums, norms and heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import sympy
import torch
from torch import Tensor, nn

from covey.errors import OptionError
from covey.surgery.probe import Probe
from covey.surgery.sizes import System
from covey.surgery.symbols import Size, exact, expression


@dataclass(frozen=True)
class Axis:
    """How an axis is made up: an atom (no parts), or the sum or product of parts in order."""

    old: int
    new: int
    atom: str | None = None
    kind: Literal["sum", "product"] | None = None
    parts: tuple[Axis, ...] = ()


Channels = dict[str, tuple[Axis, ...]]


def channels(found: Probe, system: System, size_of: Callable[[Size], int]) -> Channels:
    """The make-up of every tensor's axes, from what the probe saw being joined and split."""
    sizes = found.recorder.sizes
    orders: dict[sympy.Expr, tuple[str, tuple[Size, ...]]] = {}
    for expr, order in found.recorder.orders.items():
        orders.setdefault(system.resolve(exact(expr, sizes, [])), order)

    def axis(expr: sympy.Expr, above: frozenset[sympy.Expr]) -> Axis:
        expr = system.resolve(exact(expr, sizes, []))
        old, new = int(expr.xreplace(sizes)), size_of(expr)
        if old == new:
            return Axis(old, new)
        if expr in orders and expr not in above:
            kind, parts = orders[expr]
            inner = tuple(axis(expression(part), above | {expr}) for part in parts)
            joined = sum if kind == "sum" else math.prod
            if joined(part.new for part in inner) == new and joined(part.old for part in inner) == old:
                return Axis(old, new, None, "sum" if kind == "sum" else "product", inner)
        return Axis(old, new, str(expr))

    return {
        name: tuple(axis(expression(size), frozenset()) for size in shape)
        for name, shape in found.tensors.items()
    }


def slice_weights(
    network: nn.Module,
    axes: Channels,
    member: int,
    members: int,
    *,
    by: Literal["importance", "random"] = "importance",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Member `member`'s tensors, cut out of the trained network's by channel.

    Every member gets another slice: channels are dealt round the members in order of importance (their share of
    the squared weights that touch them) or at random; where a member is wider than its share, the rest is
    filled with the most important (or random) channels left. Weights that sum over fewer inputs than before are
    scaled by sqrt(old / new), which keeps the variance of the sum.

    Args:
        network: the trained network.
        axes: `Narrowed.channels`.
        member: which member, from 0.
        members: how many share the channels.
        by: how channels are ranked before they are dealt.
        seed: seed of the random order.
    """
    if not 0 <= member < members:
        raise OptionError(f"member must be from 0 to {members - 1}; got {member}.")
    tensors: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    tensors.update(network.named_buffers(remove_duplicate=False))
    scores = _importance(tensors, axes) if by == "importance" else {}
    generator = torch.Generator().manual_seed(seed)
    chosen: dict[str, Tensor] = {}
    for part in _atoms([axis for shape in axes.values() for axis in shape]):
        assert part.atom is not None
        ranks = torch.randperm(part.old, generator=generator)
        if by == "importance":
            ranks = scores[part.atom].argsort(descending=True, stable=True)
        chosen[part.atom] = _deal(ranks, part.new, member, members)
    fans = _summed_axes(network)
    cut: dict[str, Tensor] = {}
    for name, shape in axes.items():
        values = tensors[name].detach()
        for place, axis in enumerate(shape):
            if axis.old != axis.new:
                values = values.index_select(place, _index(axis, chosen).to(values.device))
        if name in fans and values.is_floating_point():
            fan = shape[fans[name]]
            values = values * math.sqrt(fan.old / fan.new)
        cut[name] = values.clone()
    return cut


def _deal(ranks: Tensor, new: int, member: int, members: int) -> Tensor:
    if new > len(ranks):
        return torch.arange(new) % len(ranks)
    own = ranks[member::members][:new]
    rest = ranks[~torch.isin(ranks, own)]
    return torch.cat([own, rest[: new - len(own)]]).sort().values


def _index(axis: Axis, chosen: dict[str, Tensor]) -> Tensor:
    """Positions in the original axis that the narrow one keeps."""
    if axis.atom is not None:
        return chosen[axis.atom]
    if axis.kind is None:
        return torch.arange(axis.old)
    index = torch.zeros(1, dtype=torch.long)
    if axis.kind == "sum":
        offsets = [sum(part.old for part in axis.parts[:i]) for i in range(len(axis.parts))]
        return torch.cat(
            [_index(part, chosen) + start for part, start in zip(axis.parts, offsets, strict=True)]
        )
    for part in axis.parts:
        index = (index[:, None] * part.old + _index(part, chosen)[None]).flatten()
    return index


def _atoms(axes: list[Axis]) -> list[Axis]:
    found: dict[str, Axis] = {}
    stack = list(axes)
    while stack:
        axis = stack.pop()
        if axis.atom is not None:
            found[axis.atom] = axis
        stack.extend(axis.parts)
    return [found[key] for key in sorted(found)]


def _importance(tensors: dict[str, Tensor], axes: Channels) -> dict[str, Tensor]:
    scores: dict[str, Tensor] = {}

    def give(axis: Axis, share: Tensor) -> None:
        if axis.atom is not None:
            scores[axis.atom] = scores.get(axis.atom, 0) + share
        elif axis.kind == "sum":
            for part, piece in zip(axis.parts, share.split([part.old for part in axis.parts]), strict=True):
                give(part, piece)
        elif axis.kind == "product":
            grid = share.reshape([part.old for part in axis.parts])
            for place, part in enumerate(axis.parts):
                give(part, grid.sum([other for other in range(grid.dim()) if other != place] or None))

    for name, shape in axes.items():
        if not isinstance(tensors[name], nn.Parameter):
            continue
        squares = tensors[name].detach().double().cpu().square()
        for place, axis in enumerate(shape):
            others = [other for other in range(squares.dim()) if other != place]
            total = squares.sum(others) if others else squares
            give(axis, total / total.sum().clamp_min(1e-30))
    return scores


def _summed_axes(network: nn.Module) -> dict[str, int]:
    """The axis of each weight over which its layer sums. Embeddings look rows up and sum over none."""
    axes: dict[str, int] = {}
    looked_up: set[int] = set()
    for path, module in network.named_modules():
        for short, tensor in module.named_parameters(recurse=False):
            name = f"{path}.{short}" if path else short
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                looked_up.add(id(tensor))
            elif isinstance(module, nn.modules.conv._ConvTransposeNd) and short == "weight":
                axes[name] = 0
            elif tensor.dim() > 1 and isinstance(
                module,
                nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention,
            ):
                axes[name] = 1
            elif type(module).__name__ == "Conv1D" and short == "weight":
                axes[name] = 0  # transformers keeps GPT-2's linear layers transposed
    tensors = dict(network.named_parameters(remove_duplicate=False))
    return {name: axis for name, axis in axes.items() if id(tensors[name]) not in looked_up}
