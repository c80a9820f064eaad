"""Economical ensembles: embeddings of one hypernetwork that start late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.method import Method, Training
from covey.methods.hypernetwork import Hypernetwork
from covey.train.recipe import Recipe
from covey.train.state import Phase
from covey.trainings.late_start import Late, late


@dataclass(frozen=True, kw_only=True)
class Economical(Training):
    """Start embeddings of one hypernetwork late in training: many members at about the price of one network.

    Von Oswald, Kobayashi et al. The defaults are the paper's settings for accuracy; those for out-of-distribution
    detection are norms="single", noise=0.5, nested=False.

    Args:
        members: how many networks (the paper's N).
        start: when the members start (T0): a share of training, or an epoch if 1 or more.
        noise: Gaussian noise on what members start from, in units of each tensor's root mean square (sigma).
        norms: whether members have norms of their own ("member"), share their scales and shifts ("shared"), or share
            their running statistics too ("single").
        embeddings: whether members have embeddings of their own ("member") or one set ("shared"), as a control.
        sizes: embedding sizes of the first layer, of layers that stand alone, and of groups of layers.
        nested: each member takes a minibatch, then the hypernetwork moves once; otherwise a member drawn for
            each minibatch steps along with it.
        gamma: factor of the hypernetwork's gradient, which is summed over members.
    """

    members: int = 10
    start: float = 0.6
    noise: float = 0.25
    norms: Literal["member", "shared", "single"] = "member"
    embeddings: Literal["member", "shared"] = "member"
    sizes: tuple[int, int, int] = (10, 7, 14)
    nested: bool = True
    gamma: float = 1.0

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One member until `start`, all of them afterwards."""
        return self.late().phases(recipe)

    def result(self, recipe: Recipe) -> Method:
        """Members of a hypernetwork."""
        return self.late().result(recipe)

    def late(self) -> Late:
        """The same as `covey.late` would make it."""
        method = Hypernetwork(
            members=self.members,
            norms=self.norms,
            embeddings=self.embeddings,
            sizes=self.sizes,
            budget=None,
            gamma=self.gamma,
        )
        return late(method, self.start, self.noise, restart="head", nested=self.nested)
