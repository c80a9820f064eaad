"""Hypernetwork ensembles: one linear hypernetwork makes every member's weights from small embeddings.

    W_k^(l) = theta^(g) e_k^(l)        theta^(g) shared by the layers of group g and by all members

Paper 1 (economical ensembles). Layers of one kernel and as many outputs form a group. Where the largest has twice the
inputs of others, or a group has several layers, the group's tensor has half the inputs, and a layer is made in two
chunks with an embedding each; chunk s fills inputs s, s + 2, ... With embeddings of D_g entries in group g, whose
tensor has S_g entries for each, C_g chunks, and P_m parameters in a member's norms, head and biases, it stores

    sum_g D_g S_g + M (sum_g D_g C_g + P_m) + the rest of the network.

On WRN-28-10 that is 35,844,320 + 25,016 M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.layout import Layout
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes, is_norm, owner_of
from covey.options import check_choice, check_least
from covey.parts.banks import BankSpec, Piece, fan_in
from covey.parts.budget import TooSmallError, fixed_cost, layers_of, own_names
from covey.parts.plain import Replicated
from covey.parts.template_method import Draft, TemplateMethod
from covey.parts.templates import Makeup, Templates


@dataclass(frozen=True, kw_only=True)
class Hypernetwork(TemplateMethod):
    """One small shared network makes every member's weights from the member's own embeddings.

    Args:
        members: how many networks.
        sizes: embedding sizes of the first layer, of layers that stand alone, and of groups of layers.
        budget: parameters that all members together must not exceed: a count (int) or a ratio to the network's
            (float); `sizes` are scaled together to the largest that fit. "auto" is 1.0, or the least that works. None
            takes them as they are.
        norms: whether members have norms of their own ("member"), share their scales and shifts ("shared"), or share
            their running statistics too ("single"): one set of norms, whose statistics a step moves to the mean over
            the members that it trained, so that a member's are no longer those it would have alone.
        embeddings: whether members have embeddings of their own ("member") or one set ("shared"): a control, whose
            members differ in their heads, and in their norms with norms="member".
        decay: factor of the weight decay of the members' norms, heads and biases; embeddings never decay.
    """

    role = "hypernetwork"

    sizes: tuple[int, int, int] = (10, 7, 14)
    norms: Literal["member", "shared", "single"] = "member"
    embeddings: Literal["member", "shared"] = "member"
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sizes) != 3 or any(not isinstance(size, int) or size < 1 for size in self.sizes):
            raise OptionError(
                "sizes are three whole numbers of at least 1, for the first layer, single layers and groups; "
                f"got {self.sizes!r}."
            )
        check_choice("norms", self.norms, ("member", "shared", "single"))
        check_choice("embeddings", self.embeddings, ("member", "shared"))
        check_least("decay", self.decay, 0)

    def draft(self, bodies: Sequence[Anatomy], idle: Sequence[Collection[str]]) -> Draft:
        """A hypernetwork for each group of layers."""
        (body,) = bodies
        layers = layers_of(body, self.where, bool(self.linear), "Hypernetwork", idle[0])
        groups = chunk_groups(body, layers)
        # biases belong to the layers' embeddings: where those are shared, so are they
        own = own_names(body, layers if self.embeddings == "member" else (), self.norms)
        banks: dict[str, BankSpec] = {}
        makeup: dict[str, Makeup] = {}
        for number, (group, size) in enumerate(zip(groups, self._sizes(body, groups, own), strict=True)):
            label = f"hypernetwork {number}"
            banks[label], made = self._bank(body, label, group, size, layers)
            makeup |= made
        ordered = {name: makeup[name] for name in layers}
        return Draft(banks, [ordered], own)

    def lay_out(self, bodies: Sequence[Anatomy], draft: Draft, idle: Sequence[Collection[str]]) -> Layout:
        """A draft as a layout, with the buffers that members share."""
        layout = super().lay_out(bodies, draft, idle)
        (body,) = bodies
        shared = set(layout.shared_buffers[0])
        if self.embeddings == "shared":  # then made tensors are the same for all members
            shared |= set(body.shared_buffers(draft.own))
        for name, _ in body.network.named_buffers():
            if self.norms == "single" and is_norm(body.network.get_submodule(owner_of(name))):
                shared.add(name)
        names = [name for name, _ in body.network.named_buffers() if name in shared]
        return replace(layout, shared_buffers=(tuple(names),))

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw the hypernetworks; what members own besides embeddings has a decay of its own."""
        ensemble = super().build(bodies, layout)
        for part in ensemble.parts.values():
            if isinstance(part, Replicated):
                part.decay = self.decay
        return ensemble

    def before_late_start(self) -> Hypernetwork:
        """One member, whose norms and head decay like any others: `decay` is for what members own."""
        return replace(self.full_gradient(), members=1, decay=1.0)

    @property
    def _sets(self) -> int:
        """How many sets of embeddings there are."""
        return self.members if self.embeddings == "member" else 1

    def _sizes(self, body: Anatomy, groups: Sequence[ChunkGroup], own: Sequence[str]) -> list[int]:
        """Embedding sizes by group: as given, or scaled to the budget."""
        kinds = [_size_index(body, group) for group in groups]
        made = {name for group in groups for name in group.layers}
        fixed = fixed_cost(body, made, own, self.members)

        def cost(sizes: Sequence[int]) -> int:
            total = fixed
            for group, kind in zip(groups, kinds, strict=True):
                total += sizes[kind] * (group.parameters + self._sets * sum(group.chunks))
            return total

        sizes: Sequence[int] = self.sizes
        if self.budget is not None:
            budget = self.allowed([body])
            least = cost([1, 1, 1])
            if least > budget:
                largest = max(groups, key=lambda group: group.parameters)
                raise TooSmallError("Hypernetwork", budget, least, largest.layers[0], largest.parameters)
            sizes = _scaled(self.sizes, lambda tried: cost(tried) <= budget)
        return [sizes[kind] for kind in kinds]

    def _bank(
        self, body: Anatomy, label: str, group: ChunkGroup, size: int, layers: dict[str, Axes]
    ) -> tuple[BankSpec, dict[str, Makeup]]:
        weights = body.values(group.layers)
        fans = {name: fan_in(weight, layers[name]) for name, weight in weights.items()}
        fan, rows = max(fans.values()), sum(group.chunks)
        scales: list[float] = []
        makeup = {}
        starts = accumulate(group.chunks, initial=0)
        for name, first, chunks in zip(group.layers, starts, group.chunks, strict=False):
            scales += [(fan / fans[name]) ** 0.5] * chunks
            pieces = []
            for s in range(chunks):
                own_rows = tuple(k % self._sets * rows + first + s for k in range(self.members))
                # chunk s fills inputs s, s + chunks, ...
                into = (slice(None), slice(s, None, chunks)) if chunks > 1 else ()
                pieces.append(Piece(label, own_rows, group.block, into))
            makeup[name] = Makeup(tuple(weights[name].shape), tuple(pieces))
        alpha = (self.members, rows, size) if self.embeddings == "member" else (rows, size)
        return BankSpec((size, *group.block), alpha, fan, tuple(scales)), makeup


@dataclass(frozen=True)
class ChunkGroup:
    """Layers that one hypernetwork makes: its block's shape, their names and in how many chunks each is made."""

    block: tuple[int, ...]
    layers: tuple[str, ...]
    chunks: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Of one template."""
        return math.prod(self.block)


def _size_index(body: Anatomy, group: ChunkGroup) -> int:
    """Which of the three `sizes` a group has."""
    if group.layers[0] in body.stem:
        return 0
    return 2 if len(group.layers) > 1 else 1


def chunk_groups(body: Anatomy, layers: dict[str, Axes]) -> list[ChunkGroup]:
    """Groups in the network's order.

    Layers of one type, kernel and number of outputs belong together if they have as many inputs as the largest of
    them or half as many; those of other sizes form groups of their own.
    """
    families: dict[tuple, list[str]] = {}
    for name, how in layers.items():
        weight = body.network.get_parameter(name)
        kind = (weight.shape[0], tuple(weight.shape[2:]), how.groups, how.inputs_first, weight.dtype)
        families.setdefault(kind, []).append(name)
    groups = []
    for names in families.values():
        inputs = {name: body.network.get_parameter(name).shape[1] for name in names}
        while inputs:
            largest = max(inputs.values())
            block = largest // 2 if largest % 2 == 0 and len(inputs) > 1 else largest
            taken = [name for name, count in inputs.items() if count in (largest, block)]
            if len(taken) == 1:
                block = largest
            shape = tuple(body.network.get_parameter(taken[0]).shape)
            chunks = tuple(inputs.pop(name) // block for name in taken)
            groups.append(ChunkGroup((shape[0], block, *shape[2:]), tuple(taken), chunks))
    order = {name: i for i, name in enumerate(layers)}
    return sorted(groups, key=lambda group: order[group.layers[0]])


def embeddings(ensemble: Ensemble) -> Tensor:
    """All members' embeddings, each laid out as one vector, (M, D); for planes through members."""
    part = ensemble.parts["hypernetwork"]
    assert isinstance(part, Templates)
    if any(bank.alpha.ndim == 2 for bank in part.named_banks().values()):
        raise OptionError(
            "the members share their embeddings (embeddings='shared'), so there is no plane through them."
        )
    return torch.cat([bank.alpha.detach().flatten(1) for bank in part.named_banks().values()], 1)


def _scaled(sizes: Sequence[int], fits: Callable[[Sequence[int]], bool]) -> list[int]:
    """The sizes times the largest common factor that fits, rounded half up, at least 1 each."""
    best = [1, 1, 1]
    steps = sorted({Fraction(2 * n + 1, 2 * size) for size in sizes for n in range(1, 64 * size)})
    for factor in steps:
        tried = [max(1, int(factor * size + Fraction(1, 2))) for size in sizes]
        if not fits(tried):
            break
        best = tried
    return best
