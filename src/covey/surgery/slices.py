"""Narrow weights cut from trained ones: which original channels a member keeps, the same wherever they appear.

An axis is made of independent sets of channels ("atoms"): one set, several one after another (a concatenation), or
nested (3 x heads x head width). A member chooses channels for each atom once, and every tensor is indexed by
that choice, so its channels stay together through residual sums, norms and heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from sympy import Expr
from torch import Tensor, nn

from covey.errors import OptionError
from covey.surgery.edits import Tensors, named_tensors
from covey.surgery.equations import System
from covey.surgery.probe import Probe
from covey.surgery.recorder import Composition
from covey.surgery.recording import SizeOf
from covey.surgery.sizes import formula_of
from covey.surgery.torch_internals import convolution_class, transposed_convolution_class


@dataclass(frozen=True)
class Axis:
    """How an axis is made up: an atom (no parts), or the sum or product of parts in order.

    Args:
        old: its size in the original network.
        new: its size in the narrow one.
        atom: the name of its set of channels; None if it has parts, or stays as it is.
        kind: how the parts make up the axis: one after another, or nested.
        parts: the axes that it is made of.
    """

    old: int
    new: int
    atom: str | None = None
    kind: Literal["sum", "product"] | None = None
    parts: tuple[Axis, ...] = ()


Channels = dict[str, tuple[Axis, ...]]  # a tensor's name -> its axes
Scores = dict[str, Tensor]  # an atom's name -> the importance of its channels


# --- what axes are made of ---------------------------------------------------------------------------------------


def channels(found: Probe, system: System, size_of: SizeOf) -> Channels:
    """The make-up of every tensor's axes, from what the probe saw being joined and split."""
    composer = _Composer(found, system, size_of)
    axes: Channels = {}
    for name, shape in found.tensors.items():
        formulas = map(formula_of, shape)
        axes[name] = tuple(map(composer.axis, formulas))
    return axes


class _Composer:
    """Takes sizes apart into the sets of channels that they are made of."""

    def __init__(self, found: Probe, system: System, size_of: SizeOf) -> None:
        self.sizes = found.recorder.sizes
        self.system = system
        self.size_of = size_of
        self.compositions: dict[Expr, Composition] = {}
        for expr, composition in found.recorder.compositions.items():
            self.compositions.setdefault(self.resolve(expr), composition)

    def resolve(self, expr: Expr) -> Expr:
        """The size in free symbols, by which equal sizes are recognised."""
        return self.system.resolve(expr)

    def axis(self, expr: Expr, above: frozenset[Expr] = frozenset()) -> Axis:
        """The make-up of an axis of this size; `above` are the sizes that it is already a part of."""
        expr = self.resolve(expr)
        old = int(expr.xreplace(self.sizes))
        new = self.size_of(expr)
        if old == new:
            return Axis(old, new)
        composition = self.compositions.get(expr)
        if composition is not None and expr not in above:
            parts = []
            for part in map(formula_of, composition.parts):
                parts.append(self.axis(part, above | {expr}))
            if _fits(composition.kind, parts, old, new):
                return Axis(old, new, None, composition.kind, tuple(parts))
        return Axis(old, new, str(expr))


def _fits(
    kind: str,
    parts: list[Axis],
    old: int,
    new: int,
) -> bool:
    """Whether parts make up the whole, before and after: rounding may have torn them apart."""
    total = sum if kind == "sum" else math.prod
    olds = total(part.old for part in parts)
    news = total(part.new for part in parts)
    return (olds, news) == (old, new)


# --- cutting -----------------------------------------------------------------------------------------------------


def slice_weights(
    network: nn.Module,
    axes: Channels,
    member: int,
    members: int,
    *,
    by: Literal["importance", "random"] = "importance",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Cut member `member`'s tensors out of the trained network's by channel.

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
    tensors = named_tensors(network)
    chosen: dict[str, Tensor] = {}
    ranked = _ranked_atoms(tensors, axes, by, seed)
    for atom, (ranks, new) in ranked.items():
        chosen[atom] = _deal(ranks, new, member, members)
    summed = _summed_axes(network)
    cut: dict[str, Tensor] = {}
    for name, shape in axes.items():
        values = tensors[name].detach()
        for place, axis in enumerate(shape):
            if axis.old != axis.new:
                kept = _index(axis, chosen).to(values.device)
                values = values.index_select(place, kept)
        if name in summed and values.is_floating_point():
            inputs = shape[summed[name]]
            fewer = inputs.old / inputs.new
            values = values * math.sqrt(fewer)
        cut[name] = values.clone()
    return cut


def _ranked_atoms(
    tensors: Tensors,
    axes: Channels,
    by: str,
    seed: int,
) -> dict[str, tuple[Tensor, int]]:
    """For each set of channels their order, the first to be dealt first, and how many a member gets."""
    scores: Scores = {}
    if by == "importance":
        scores = _importance(tensors, axes)
    generator = torch.Generator().manual_seed(seed)
    ranked = {}
    for name, axis in sorted(_atoms(axes).items()):
        if by == "importance":
            ranks = scores[name].argsort(descending=True, stable=True)
        else:
            ranks = torch.randperm(axis.old, generator=generator)
        ranked[name] = (ranks, axis.new)
    return ranked


def _deal(
    ranks: Tensor,
    new: int,
    member: int,
    members: int,
) -> Tensor:
    """A member's channels: every M-th in order, then the best of the rest until there are enough."""
    if new > len(ranks):
        return torch.arange(new) % len(ranks)
    own = ranks[member::members][:new]
    is_taken = torch.isin(ranks, own)
    missing = new - len(own)
    rest = ranks[~is_taken][:missing]
    return torch.cat([own, rest]).sort().values


def _index(axis: Axis, chosen: dict[str, Tensor]) -> Tensor:
    """Positions in the original axis that the narrow one keeps."""
    if axis.atom is not None:
        return chosen[axis.atom]
    if axis.kind is None:
        return torch.arange(axis.old)
    if axis.kind == "sum":
        pieces = []
        start = 0
        for part in axis.parts:
            pieces.append(start + _index(part, chosen))
            start += part.old
        return torch.cat(pieces)
    index = torch.zeros(1, dtype=torch.long)
    for part in axis.parts:
        outer = index * part.old
        inner = _index(part, chosen)
        index = (outer[:, None] + inner[None]).flatten()
    return index


def _atoms(axes: Channels) -> dict[str, Axis]:
    """All sets of channels by name."""
    found: dict[str, Axis] = {}
    stack: list[Axis] = []
    for shape in axes.values():
        stack.extend(shape)
    while stack:
        axis = stack.pop()
        if axis.atom is not None:
            found[axis.atom] = axis
        stack.extend(axis.parts)
    return found


# --- importance --------------------------------------------------------------------------------------------------


def _importance(tensors: Tensors, axes: Channels) -> Scores:
    """Each channel's share of the squared weights that touch it, summed over tensors."""
    scores: Scores = {}
    for name, shape in axes.items():
        if not isinstance(tensors[name], nn.Parameter):
            continue
        values = tensors[name].detach().abs().double().cpu()
        squares = values.square()
        for place, axis in enumerate(shape):
            total = _sum_but(squares, place)
            share = total / total.sum().clamp_min(1e-30)
            _give(axis, share, scores)
    return scores


def _give(axis: Axis, share: Tensor, scores: Scores) -> None:
    """Add an axis's scores to those of the sets of channels that it is made of."""
    if axis.atom is not None:
        scores[axis.atom] = scores.get(axis.atom, 0) + share
    elif axis.kind == "sum":
        pieces = share.split(_old_sizes(axis.parts))
        for part, piece in zip(axis.parts, pieces, strict=True):
            _give(part, piece, scores)
    elif axis.kind == "product":
        grid = share.reshape(_old_sizes(axis.parts))
        for place, part in enumerate(axis.parts):
            _give(part, _sum_but(grid, place), scores)


def _old_sizes(axes: Iterable[Axis]) -> list[int]:
    """The sizes that axes have in the original network."""
    return [axis.old for axis in axes]


def _sum_but(tensor: Tensor, kept: int) -> Tensor:
    """The sum over all axes but one."""
    others = [axis for axis in range(tensor.dim()) if axis != kept]
    return tensor.sum(others) if others else tensor


# --- variance ----------------------------------------------------------------------------------------------------


def _summed_axes(network: nn.Module) -> dict[str, int]:
    """The axis of each weight over which its layer sums. Embeddings look rows up and sum over none."""
    axes: dict[str, int] = {}
    looked_up: set[int] = set()
    for path, module in network.named_modules():
        for short, tensor in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                looked_up.add(id(tensor))
                continue
            axis = _summed_axis(module, short, tensor)
            if axis is not None:
                name = f"{path}.{short}" if path else short
                axes[name] = axis
    tensors = dict(network.named_parameters(remove_duplicate=False))
    for name in list(axes):
        if id(tensors[name]) in looked_up:  # a decoder tied to an embedding
            del axes[name]
    return axes


def _summed_axis(module: nn.Module, short: str, tensor: Tensor) -> int | None:
    if isinstance(module, transposed_convolution_class()) and short == "weight":
        return 0
    summing = (
        nn.Linear,
        convolution_class(),
        nn.RNNBase,
        nn.RNNCellBase,
        nn.MultiheadAttention,
    )
    if isinstance(module, summing) and tensor.dim() > 1:
        return 1
    if type(module).__name__ == "Conv1D" and short == "weight":
        return 0  # transformers keeps GPT-2's linear layers transposed
    return None
