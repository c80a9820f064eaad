"""Mixture ensembles: members mix shared templates, and a parameter budget decides how many there are.

    theta_{j,k} = sum over i in t_j of alpha_{i,j,k} T_i        for layer j of member k

Paper 4 (MixtureEnsembles). Layers of one type and shape form a group with T templates of that shape; layer j takes
t = min(5, T) of them, round robin. Layers that stand alone are plain and shared by all members. With L grouped layers
and P_m numbers in a member's norms, head and biases, it stores

    sum_g T_g S_g + M (sum_j t_j + P_m) + the rest of the network,

never more than the budget, and less than it by less than the smallest template, unless every layer of every group
has t templates to itself. On WRN-28-10 a member has 105 coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes, Where
from covey.parts.budget import allowance, check_budget, layers_of, own_copies, own_names, too_small
from covey.parts.plain import Replicated, assemble, values
from covey.parts.templates import Bank, Makeup, Piece, Templates, fan_in, flat_bank, kaiming, orthogonal


@dataclass(frozen=True, kw_only=True)
class Mixture(Method):
    """Members mix shared templates.

    Args:
        members: how many networks.
        budget: trainable parameters of all members together: a count (int) or a ratio to the network's (float).
        templates: how many templates a layer mixes, at most.
        assign: whether corresponding layers of members mix the "same" templates, or "disjoint" ones as long as
            there are any.
        singles: layers whose shape no other has are "plain" and shared by all members, or have a "bank" too.
        norms: whether members have norms of their own ("member") or share their scales and shifts ("shared").
        linear: mix the weights of linear layers, attention and recurrences too, not only of convolutions.
        where: which layers are mixed.
        gamma: factor of the templates' gradient.
        keep: megabytes of generated weights that eval mode may keep.
    """

    budget: int | float = 1.0
    templates: int = 5
    assign: Literal["same", "disjoint"] = "same"
    singles: Literal["plain", "bank"] = "plain"
    norms: Literal["member", "shared"] = "member"
    linear: bool = False
    where: Where = "all"
    gamma: float = 1.0
    keep: float = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is None:
            raise OptionError("budget is what Mixture goes by: a count (int) or a ratio (float); got None.")
        check_budget(self.budget)
        if not isinstance(self.templates, int) or self.templates < 1:
            raise OptionError(f"templates is how many a layer mixes, at least 1; got {self.templates!r}.")
        for name, value, known in (
            ("assign", self.assign, ("same", "disjoint")),
            ("singles", self.singles, ("plain", "bank")),
            ("norms", self.norms, ("member", "shared")),
        ):
            if value not in known:
                raise OptionError(f"{name} is {known[0]!r} or {known[1]!r}; got {value!r}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """Banks for groups of layers, or one for all; heads, biases and norms replicated; the rest shared."""
        if len(bodies) > 1:
            raise ConversionError("Mixture takes one network; SuperWeights takes several that differ.")
        (body,) = bodies
        layers = layers_of(body, self.where, self.linear, "Mixture")
        groups = shape_groups(body, layers)
        if self.singles == "plain":
            groups = [group for group in groups if len(group) > 1]
        if not groups:
            raise ConversionError(
                "no two layers of the network have one shape, so Mixture has nothing to share between layers: it "
                "would degenerate to a shared network with norms and heads of the members' own, which is "
                "Replicate(where=('norms', 'head')). Take that, or singles='bank' for templates of single layers."
            )
        budget = allowance(self.budget, [body.network])
        grouped = {name: layers[name] for group in groups for name in group}
        own = own_names(body, grouped, self.norms)
        sizes = [body.network.get_parameter(group[0]).numel() for group in groups]
        fixed = _fixed(body, grouped, own, self.members)
        counts = allocate(
            sizes,
            [len(group) for group in groups],
            budget - fixed,
            templates=self.templates,
            members=self.members,
            apart=self.assign == "disjoint",
        )
        if counts is None:  # one bank for all layers, single ones too
            own = own_names(body, layers, self.norms)
            one_each = fixed + sum(sizes) + self.members * len(grouped)
            banks, makeup = self._flat(body, layers, own, budget, one_each)
        else:
            banks, makeup = {}, {}
            for number, (group, count) in enumerate(zip(groups, counts, strict=True)):
                label = f"bank {number}"
                banks[label], made = self._bank(body, label, group, count, grouped)
                makeup |= made
        parts = {
            "mixture": Templates(
                banks,
                [makeup],
                role="mixture",
                gamma=self.gamma,
                keep=self.keep,
            ),
            "replicated": Replicated(own_copies(body, own, self.members)),
        }
        return assemble(self, body, parts, gamma=self.gamma)

    def _flat(
        self, body: Anatomy, layers: Mapping[str, Axes], own: Sequence[str], budget: int, grouped: int
    ) -> tuple[dict[str, Bank], dict[str, Makeup]]:
        """One vector for all layers, out of which each reads templates of its own shape.

        `grouped` is what one template for each group would cost in all.
        """
        weights = values(body.network, layers)
        coefficients = self.members * self.templates * len(layers)
        numbers = budget - _fixed(body, layers, own, self.members) - coefficients
        largest = max(weights, key=lambda name: weights[name].numel())
        if numbers < weights[largest].numel():
            minimum = min(grouped, budget - numbers + weights[largest].numel())
            raise too_small("Mixture", budget, minimum, largest, weights[largest].numel())
        fans = [fan_in(weight, layers[name]) for name, weight in weights.items()]
        shapes = [tuple(weight.shape) for weight in weights.values()]
        like = weights[largest]
        bank, pieces = flat_bank("bank", shapes, fans, numbers, self.templates, self.members, like)
        return {"bank": bank}, {
            name: Makeup(piece.shape, (piece,)) for name, piece in zip(weights, pieces, strict=True)
        }

    def _bank(
        self, body: Anatomy, label: str, names: Sequence[str], count: int, layers: Mapping[str, Axes]
    ) -> tuple[Bank, dict[str, Makeup]]:
        """`count` templates of the layers' shape; the i-th of layer j is (j t + i) mod count."""
        like, mixed = body.network.get_parameter(names[0]), min(self.templates, count)
        shape, rows = tuple(like.shape), len(names)
        turn = torch.arange(rows).expand(self.members, rows)
        if self.assign == "disjoint":
            turn = turn * self.members + torch.arange(self.members)[:, None]
        slots = (turn.reshape(-1, 1) * mixed + torch.arange(mixed)) % count
        makeup = {
            name: Makeup(shape, (Piece(label, tuple(k * rows + j for k in range(self.members)), shape),))
            for j, name in enumerate(names)
        }
        theta = kaiming((count, *shape), fan_in(like, layers[names[0]]), like)
        return Bank(theta, orthogonal(self.members, rows, mixed, like), slots.to(like.device)), makeup


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
        sizes: numbers in one layer of each group.
        layers: how many layers each group has.
        numbers: for templates and coefficients.
        templates: how many a layer mixes, at most.
        members: M.
        apart: whether members mix other templates than each other.

    >>> allocate([230_400, 921_600, 3_686_400], [7, 7, 7], 33_816_520, templates=5, members=4, apart=False)
    [6, 7, 7]
    """
    most = [n * templates * (members if apart else 1) for n in layers]

    def cost(counts: Sequence[int]) -> int:
        each = zip(sizes, layers, counts, strict=True)
        return sum(size * count + members * n * min(templates, count) for size, n, count in each)

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


def _fixed(body: Anatomy, made: Mapping[str, Axes], own: Sequence[str], members: int) -> int:
    """Numbers in everything that no bank makes."""
    numbers = {name: t.numel() for name, t in body.network.named_parameters() if name not in made}
    return sum(n * (members if name in own else 1) for name, n in numbers.items())
