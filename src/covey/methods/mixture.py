"""Mixture ensembles: members mix shared templates, and a parameter budget decides how many there are.

    theta_{j,k} = sum over i in t_j of alpha_{i,j,k} T_i        for layer j of member k

Paper 4 (MixtureEnsembles). Layers of one type and shape form a group with T templates of that shape; layer j takes
t = min(5, T) of them, round robin. Layers that stand alone, the head included, are plain and shared by all members.
With P_m parameters in a member's norms and biases (and its head, with heads="member"), it stores

    sum_g T_g S_g + M (sum_j t_j + P_m) + the rest of the network,

never more than the budget, and less than it by less than the smallest template, unless every layer of every group
has t templates to itself. On WRN-28-10 a member costs 105 coefficients and 17,952 parameters of its norms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.layout import Layout
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes
from covey.options import check_choice, check_whole
from covey.parts.banks import BankSpec, Piece, fan_in, flat_bank
from covey.parts.budget import TooSmallError, fixed_cost, layers_of, own_names
from covey.parts.plain import Replicated
from covey.parts.template_method import Draft, TemplateMethod
from covey.parts.templates import Makeup


@dataclass(frozen=True, kw_only=True)
class Mixture(TemplateMethod):
    """Members mix their weights out of shared templates; a parameter budget decides how many there are.

    Args:
        members: how many networks.
        templates: how many templates a layer mixes, at most.
        assign: whether corresponding layers of different members mix the "same" templates, or "disjoint" ones while
            there are enough of them.
        singles: what becomes of a layer whose shape no other layer has: a "plain" layer that all members share, or a
            "bank" of templates of its own.
        norms: whether members have norms of their own ("member") or share their scales and shifts ("shared").
        heads: whether members share one head ("shared"), which stands alone in its shape, or have one each ("member").
    """

    role = "mixture"

    templates: int = 5
    assign: Literal["same", "disjoint"] = "same"
    singles: Literal["plain", "bank"] = "plain"
    norms: Literal["member", "shared"] = "member"
    heads: Literal["member", "shared"] = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is None:
            raise OptionError("budget is what Mixture goes by: a count (int) or a ratio (float); got None.")
        check_whole("templates", self.templates)
        check_choice("assign", self.assign, ("same", "disjoint"))
        check_choice("singles", self.singles, ("plain", "bank"))
        check_choice("norms", self.norms, ("member", "shared"))
        check_choice("heads", self.heads, ("member", "shared"))

    @classmethod
    def renamed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Ensembles that were stored before `heads` was an option have a head for each member."""
        # a stored ensemble names all its options, a recipe only those that differ from the defaults
        older = {f.name for f in fields(cls)} - {"heads", "recompute"}
        return {"heads": "member", **options} if older <= set(options) else dict(options)

    def draft(self, bodies: Sequence[Anatomy], idle: Sequence[Collection[str]]) -> Draft:
        """Banks for groups of layers of one shape; one for all layers where there are no groups or no room for them."""
        (body,) = bodies
        layers = layers_of(body, self.where, bool(self.linear), "Mixture", idle[0])
        groups = self._groups(body, layers)
        if not groups:
            return self._flat(body, layers)
        grouped = {name: layers[name] for group in groups for name in group}
        own = self._own(body, grouped)
        budget = self.allowed([body])
        fixed = fixed_cost(body, grouped, own, self.members)
        sizes = [body.network.get_parameter(group[0]).numel() for group in groups]
        counts = allocate(
            sizes,
            [len(group) for group in groups],
            budget - fixed,
            templates=self.templates,
            members=self.members,
            apart=self.assign == "disjoint",
        )
        if counts is None:
            one_each = fixed + sum(sizes) + self.members * len(grouped)
            return self._flat(body, layers, one_each)
        if max(counts) == 1:
            # members would mix one template each, and so differ in no more than signs and scales
            try:
                return self._flat(body, layers)
            except TooSmallError:
                pass
        banks: dict[str, BankSpec] = {}
        makeup: dict[str, Makeup] = {}
        for number, (group, count) in enumerate(zip(groups, counts, strict=True)):
            label = f"bank {number}"
            banks[label], made = self._bank(body, label, group, count, grouped)
            makeup |= made
        return Draft(banks, [makeup], own)

    def lay_out(self, bodies: Sequence[Anatomy], draft: Draft, idle: Sequence[Collection[str]]) -> Layout:
        """A draft as a layout that says why a layer is shared, and whose the heads are."""
        (body,) = bodies
        made = draft.makeup[0]
        notes = {}
        for name in body.matrices("all"):
            if name not in made and name not in draft.own:
                notes[name] = "no templates, shared by all members"
        for name in body.head:
            notes[name] = "head of each member" if name in draft.own else "head shared by all members"
        return replace(super().lay_out(bodies, draft, idle), notes=notes)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw the banks; copy what is each member's own."""
        ensemble = super().build(bodies, layout)
        for part in ensemble.parts.values():
            if isinstance(part, Replicated):
                part.notes = dict(layout.notes)
        return ensemble

    def _own(self, body: Anatomy, made: Collection[str]) -> list[str]:
        """What each member has besides its coefficients."""
        shared = () if self.heads == "member" else body.head
        return [name for name in own_names(body, made, self.norms) if name not in shared]

    def _groups(self, body: Anatomy, layers: Mapping[str, Axes]) -> list[list[str]]:
        groups = shape_groups(body, layers)
        if self.singles == "plain":
            groups = [group for group in groups if len(group) > 1]
        return groups

    def _flat(self, body: Anatomy, layers: Mapping[str, Axes], one_each: int | None = None) -> Draft:
        """One vector for all layers, single ones too, out of which each reads templates of its own shape.

        `one_each` is what one template for each group would cost in all, if there are groups.
        """
        budget = self.allowed([body])
        weights = body.values(layers)
        own = self._own(body, layers)
        coefficients = self.members * self.templates * len(layers)
        length = budget - fixed_cost(body, layers, own, self.members) - coefficients
        largest = max(weights, key=lambda name: weights[name].numel())
        if length < weights[largest].numel():
            minimum = budget - length + weights[largest].numel()
            if one_each is not None:
                minimum = min(minimum, one_each)
            raise TooSmallError("Mixture", budget, minimum, largest, weights[largest].numel())
        fans = [fan_in(weight, layers[name]) for name, weight in weights.items()]
        shapes = [tuple(weight.shape) for weight in weights.values()]
        bank, pieces = flat_bank("bank", shapes, fans, length, self.templates, self.members)
        makeup = {}
        for name, piece in zip(weights, pieces, strict=True):
            makeup[name] = Makeup(piece.shape, (piece,))
        return Draft({"bank": bank}, [makeup], own)

    def _bank(
        self, body: Anatomy, label: str, names: Sequence[str], count: int, layers: Mapping[str, Axes]
    ) -> tuple[BankSpec, dict[str, Makeup]]:
        """`count` templates of the layers' shape; the i-th of layer j is (j t + i) mod count."""
        like, mixed = body.network.get_parameter(names[0]), min(self.templates, count)
        shape, rows = tuple(like.shape), len(names)
        turn = torch.arange(rows).expand(self.members, rows)
        if self.assign == "disjoint":
            turn = turn * self.members + torch.arange(self.members)[:, None]
        slots = (turn.reshape(-1, 1) * mixed + torch.arange(mixed)) % count
        makeup = {}
        for j, name in enumerate(names):
            own_rows = tuple(k * rows + j for k in range(self.members))
            makeup[name] = Makeup(shape, (Piece(label, own_rows, shape),))
        spec = BankSpec(
            theta=(count, *shape),
            alpha=(self.members, rows, mixed),
            fan=fan_in(like, layers[names[0]]),
            slots=tuple(map(tuple, slots.tolist())),
        )
        return spec, makeup


def shape_groups(body: Anatomy, layers: Mapping[str, Axes]) -> list[list[str]]:
    """Names of layers of one type and shape, in the network's order."""
    groups: dict[tuple, list[str]] = {}
    for name, how in layers.items():
        weight = body.network.get_parameter(name)
        groups.setdefault((tuple(weight.shape), how.groups, how.inputs_first, weight.dtype), []).append(name)
    return list(groups.values())


def allocate(
    sizes: Sequence[int], layers: Sequence[int], numbers: int, *, templates: int, members: int, apart: bool
) -> list[int] | None:
    """Templates for each group of layers, or None where `numbers` are too few for one each.

    Groups get their share of the numbers; what the floor leaves over goes, one template at a time, to the largest that
    still fits. No group gets more templates than its layers can mix.

    Args:
        sizes: parameters of one layer of each group.
        layers: how many layers each group has.
        numbers: how many parameters there are for templates and coefficients.
        templates: how many a layer mixes, at most.
        members: M.
        apart: whether members mix other templates than each other.

    >>> allocate([230_400, 921_600, 3_686_400], [7, 7, 7], 33_816_520, templates=5, members=4, apart=False)
    [6, 7, 7]
    """
    most = [n * templates * (members if apart else 1) for n in layers]

    def cost(counts: Sequence[int]) -> int:
        total = 0
        for size, n, count in zip(sizes, layers, counts, strict=True):
            total += size * count + members * n * min(templates, count)
        return total

    share = numbers / sum(size * n for size, n in zip(sizes, layers, strict=True))
    counts = [min(max(1, math.floor(share * n)), top) for n, top in zip(layers, most, strict=True)]
    while cost(counts) > numbers:
        if max(counts) == 1:
            return None
        richest = max(range(len(counts)), key=lambda i: (counts[i] > 1, counts[i] / layers[i]))
        counts[richest] -= 1
    for i in sorted(range(len(counts)), key=lambda i: -sizes[i]):
        while counts[i] < most[i]:
            counts[i] += 1
            if cost(counts) > numbers:
                counts[i] -= 1
                break
    return counts
