"""A method that covey does not know, as another package would bring it: one file and one registration.

Importing this registers it, and then the laws, the command line, storing, late start and the report run on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import covey
from covey.parts import Anatomy, Tensors, assemble


@dataclass(frozen=True, kw_only=True)
class Nudged(covey.Method):
    """Each member adds a matrix of small rank to the shared weights.

    Args:
        members: how many networks.
        rank: of the matrices.
        where: which weights.
    """

    rank: int = 2
    where: str | Sequence[str] = "all"

    def design(self, bodies: Sequence[Anatomy]) -> covey.Layout:
        """Every matrix."""
        (body,) = bodies
        matrices = body.matrices(self.where)
        return covey.Layout.of(bodies, own=matrices, tensors={"nudged": matrices})

    def build(self, bodies: Sequence[Anatomy], layout: covey.Layout) -> covey.Ensemble:
        """Random A, B of zeros."""
        weights = bodies[0].values(layout.tensors["nudged"])
        part = LowRank(weights, self.members, self.rank)
        return assemble(self, bodies, layout, {"nudged": part})

    def count(self, bodies: Sequence[Anatomy], layout: covey.Layout) -> int:
        """P, and M rank (rows + columns) for each matrix."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for tensor in body.values(layout.tensors["nudged"]).values():
            total += self.members * self.rank * (len(tensor) + tensor.numel() // len(tensor))
        return total

    @property
    def keeps_weights(self) -> bool:
        """B is zero."""
        return True

    @property
    def collapses(self) -> bool:
        """To the mean of the matrices."""
        return True


class LowRank(covey.Parameterization):
    """w_k = W + B_k A_k."""

    role = "nudged"

    def __init__(self, weights: dict[str, nn.Parameter], members: int, rank: int) -> None:
        super().__init__()
        self.names = tuple(weights)
        shared, a, b = {}, {}, {}
        for name, weight in weights.items():
            shared[name] = nn.Parameter(weight.detach().clone())
            a[name] = nn.Parameter(torch.randn_like(weight.new_empty(members, rank, weight[0].numel())))
            b[name] = nn.Parameter(weight.new_zeros(members, len(weight), rank))
        self.theta, self.a, self.b = Tensors(shared), Tensors(a), Tensors(b)

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's weights."""
        found = {}
        for name, weight in self.theta.items():
            found[name] = weight + (self.b[name][k] @ self.a[name][k]).view_as(weight)
        return found

    def groups(self) -> list[covey.Group]:
        """The weights, and the small matrices without decay."""
        small = [*self.a.parameters(), *self.b.parameters()]
        return [
            covey.Group(list(self.theta.parameters()), "shared"),
            covey.Group(small, "member", decay=0.0),
        ]

    def parameter_count(self, name: str) -> int:
        """The weight's and the matrices'."""
        return sum(store[name].numel() for store in (self.theta, self.a, self.b))

    def collapsed(self) -> dict[str, Tensor]:
        """The mean of the members' weights."""
        members = len(next(iter(self.a.items()))[1])
        every = [self.member(k) for k in range(members)]
        return {name: torch.stack([each[name] for each in every]).mean(0) for name in self.names}


covey.register("nudged", Nudged)
