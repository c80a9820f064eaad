"""ShapeShifter ensembles: layers of any shape read templates out of one vector a group.

    w_k^(l) = sum_i alpha_{k,l,i} reshape(vector[start_l + i step_l, ...])

Plummer et al. (2022), as paper 3 compares with it: layers are grouped by depth, every member has coefficients of its
own. It stores the vectors, t coefficients for each layer and member, and each member's norms, head and biases: exactly
its budget, if the vectors take all that is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from covey.ensemble import Ensemble, Method
from covey.errors import OptionError
from covey.methods.superweights.clusters import depth_bins
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where
from covey.parts.budget import allowance, check_budget, layers_of, own_copies, own_names, too_small
from covey.parts.plain import Replicated, assemble
from covey.parts.templates import Bank, FlatBank, Makeup, Separate, Templates, fan_in, flat_bank


@dataclass(frozen=True, kw_only=True)
class ShapeShifter(Method):
    """Members read templates out of shared vectors.

    Args:
        members: how many members one network gives; several networks are one member each.
        budget: trainable parameters of all members together: a count (int), or a ratio to the networks' mean (float).
        bins: how many groups the layers are divided into by depth.
        templates: how many a layer mixes.
        linear: make the weights of linear layers, attention and recurrences too, not only of convolutions.
        where: which layers are made.
        gamma: factor of the vectors' gradient.
        keep: megabytes of generated weights that eval mode may keep.
    """

    budget: int | float = 1.0
    bins: int = 4
    templates: int = 4
    linear: bool = False
    where: Where = "all"
    gamma: float = 1.0
    keep: float = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.budget)
        if self.bins < 1 or self.templates < 1:
            raise OptionError(f"bins and templates are at least 1; got {self.bins} and {self.templates}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """A vector for each group of layers; heads, biases and norms are each member's own."""
        several = len(bodies) > 1
        method = replace(self, members=len(bodies)) if several else self
        layers = [
            layers_of(body, self.where, self.linear, "ShapeShifter", i) for i, body in enumerate(bodies)
        ]
        owns = [own_names(body, made, "member") for body, made in zip(bodies, layers, strict=True)]
        groups: list[list[tuple[int, str]]] = [[] for _ in range(self.bins)]
        for i, made in enumerate(layers):
            for position, name in enumerate(made):
                groups[depth_bins(position, len(made), self.bins)].append((i, name))
        groups = [group for group in groups if group]
        numbers = self._numbers(bodies, owns, groups)
        banks: dict[str, Bank] = {}
        makeup: list[dict[str, Makeup]] = [{} for _ in bodies]
        for label, group, count in zip(
            map("group {}".format, range(self.bins)), groups, numbers, strict=False
        ):
            weights = [bodies[i].network.get_parameter(name) for i, name in group]
            fans = [fan_in(weight, layers[i][name]) for weight, (i, name) in zip(weights, group, strict=True)]
            shapes = [tuple(weight.shape) for weight in weights]
            rows = 1 if several else self.members
            bank, pieces = flat_bank(label, shapes, fans, count, self.templates, rows, weights[0])
            if several:  # a row belongs to one layer of one member, there is no axis of members
                bank = FlatBank(bank.theta, bank.alpha[0])
            banks[label] = bank
            for (i, name), piece in zip(group, pieces, strict=True):
                makeup[i][name] = Makeup(piece.shape, (piece,))
        part = Templates(banks, makeup, role="shapeshifter", gamma=self.gamma, keep=self.keep)
        if several:
            rest = [
                {name: t for name, t in body.network.named_parameters() if name not in made}
                for body, made in zip(bodies, makeup, strict=True)
            ]
            return Ensemble(method, bodies, {"shapeshifter": part, "own": Separate(rest)})
        copies = Replicated(own_copies(bodies[0], owns[0], self.members))
        return assemble(self, bodies[0], {"shapeshifter": part, "replicated": copies}, gamma=self.gamma)

    def _numbers(
        self,
        bodies: Sequence[Anatomy],
        owns: Sequence[Sequence[str]],
        groups: Sequence[Sequence[tuple[int, str]]],
    ) -> list[int]:
        """Numbers for each group's vector: room for its largest layer, the rest by the layers' share."""
        members = self.members if len(bodies) == 1 else 1
        made = {key for group in groups for key in group}
        sizes = [[bodies[i].network.get_parameter(name).numel() for i, name in group] for group in groups]
        fixed = members * self.templates * len(made)
        for i, (body, own) in enumerate(zip(bodies, owns, strict=True)):
            for name, tensor in body.network.named_parameters():
                fixed += tensor.numel() * (members if name in own else 1) * ((i, name) not in made)
        budget = allowance(self.budget, [body.network for body in bodies])
        least = [max(each) for each in sizes]
        left = budget - fixed - sum(least)
        if left < 0:
            g = max(range(len(groups)), key=least.__getitem__)
            name = groups[g][sizes[g].index(least[g])][1]
            raise too_small("ShapeShifter", budget, fixed + sum(least), name, least[g])
        # a vector longer than what its layers read would hold numbers that nothing uses
        most = [members * self.templates * sum(each) for each in sizes]
        total = sum(map(sum, sizes))
        return [
            min(low + math.floor(left * sum(each) / total), top)
            for low, each, top in zip(least, sizes, most, strict=True)
        ]
