"""ShapeShifter ensembles: layers of any shape read templates out of one vector a group.

    w_k^(l) = sum_i alpha_{k,l,i} reshape(vector[start_l + i step_l, ...])

Plummer et al. (2022), as paper 3 compares with it: every member has coefficients of its own. Layers are grouped by
depth, as for that paper's ensemble of several depths; for others it clusters coefficients in a way that it does not
describe. It stores the vectors, t coefficients for each layer and member, and each member's norms, head and biases:
exactly its budget, if the vectors take all that is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from covey.errors import OptionError
from covey.methods.superweights.clusters import depth_bins
from covey.networks.anatomy import Anatomy
from covey.options import check_whole
from covey.parts.banks import BankSpec, fan_in, flat_bank
from covey.parts.budget import TooSmallError, fixed_cost, layers_of, own_names
from covey.parts.template_method import Draft, TemplateMethod
from covey.parts.templates import Makeup

Group = list[tuple[int, str]]
"""Layers that share a vector: the number of the network and the tensor's name."""


@dataclass(frozen=True, kw_only=True)
class ShapeShifter(TemplateMethod):
    """Layers of any shape read their templates out of shared vectors, within a parameter budget.

    Args:
        members: how many members one network gives; several networks are one member each.
        bins: how many groups the layers are divided into by depth.
        templates: how many templates a layer mixes.
    """

    role = "shapeshifter"
    several_networks = "may"

    bins: int = 4
    templates: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is None:
            raise OptionError(
                "budget is what ShapeShifter goes by: a count (int) or a ratio (float); got None."
            )
        check_whole("bins", self.bins)
        check_whole("templates", self.templates)

    def draft(self, bodies: Sequence[Anatomy], idle: Sequence[Collection[str]]) -> Draft:
        """A vector for each group of layers."""
        layers = []
        for body, without in zip(bodies, idle, strict=True):
            layers.append(layers_of(body, self.where, bool(self.linear), "ShapeShifter", without))
        groups: list[Group] = [[] for _ in range(self.bins)]
        for i, made in enumerate(layers):
            for position, name in enumerate(made):
                groups[depth_bins(position, len(made), self.bins)].append((i, name))
        groups = [group for group in groups if group]
        owns = [own_names(body, made, "member") for body, made in zip(bodies, layers, strict=True)]
        several = len(bodies) > 1
        banks: dict[str, BankSpec] = {}
        makeup: list[dict[str, Makeup]] = [{} for _ in bodies]
        lengths = self._lengths(bodies, owns, groups)
        for number, (group, length) in enumerate(zip(groups, lengths, strict=True)):
            weights = [bodies[i].network.get_parameter(name) for i, name in group]
            fans = [fan_in(weight, layers[i][name]) for weight, (i, name) in zip(weights, group, strict=True)]
            shapes = [tuple(weight.shape) for weight in weights]
            label = f"group {number}"
            # where networks differ, a row belongs to one layer of one member, and there is no axis of members
            members = None if several else self.members
            banks[label], pieces = flat_bank(label, shapes, fans, length, self.templates, members)
            for (i, name), piece in zip(group, pieces, strict=True):
                makeup[i][name] = Makeup(piece.shape, (piece,))
        return Draft(banks, makeup, () if several else owns[0])

    def _lengths(
        self, bodies: Sequence[Anatomy], owns: Sequence[Sequence[str]], groups: Sequence[Group]
    ) -> list[int]:
        """The length of each group's vector: room for its largest layer, the rest by the layers' share."""
        members = self.members if len(bodies) == 1 else 1
        made = {key for group in groups for key in group}
        sizes = [[bodies[i].network.get_parameter(name).numel() for i, name in group] for group in groups]
        fixed = members * self.templates * len(made)
        for i, (body, own) in enumerate(zip(bodies, owns, strict=True)):
            fixed += fixed_cost(body, {name for j, name in made if j == i}, own, members)
        budget = self.allowed(bodies)
        least = [max(each) for each in sizes]
        left = budget - fixed - sum(least)
        if left < 0:
            g = max(range(len(groups)), key=least.__getitem__)
            name = groups[g][sizes[g].index(least[g])][1]
            raise TooSmallError("ShapeShifter", budget, fixed + sum(least), name, least[g])
        total = sum(map(sum, sizes))
        lengths = []
        for low, each in zip(least, sizes, strict=True):
            # a vector longer than what its layers read would hold parameters that nothing uses
            most = members * self.templates * sum(each)
            lengths.append(min(low + math.floor(left * sum(each) / total), most))
        return lengths
