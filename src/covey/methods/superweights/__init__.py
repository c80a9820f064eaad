"""SuperWeights: members that differ in width, depth and family, put together from shared parts.

    W_k^(l) = [ SuperWeight of slab 1 | SuperWeight of slab 2 | ... ]        SuperWeight = sum_i alpha_i T_i

Paper 3 (SuperWeight networks). The layers of all members are put into clusters of one kernel. A cluster is cut
into slabs, such that every layer is put together from all slabs inside its shape; each slab has templates T and rows
of coefficients alpha. With S_s entries and T_s templates in slab s, R_s rows, and P_m parameters in all members' norms,
heads and biases, it stores P_m + sum_s T_s (S_s + R_s), never more than the budget, and less than it by less than the
smallest template. Where the budget has no room for a template of every slab, the slabs of a cluster read theirs out of
one vector, in which they overlap; where it has none for that either, all slabs do.

Which layers share templates is learned from their gradients (`refine_at`, tau), and so is which members share
coefficients (`decouple_at`, beta).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.layout import Layout
from covey.method import Turn
from covey.methods.superweights import refinement
from covey.methods.superweights.slabs import Composition, Overlap, first_clusters, layers_in
from covey.networks.anatomy import Anatomy
from covey.options import check_between, check_choice, check_whole
from covey.parts.template_method import Draft, TemplateMethod


@dataclass(frozen=True, kw_only=True)
class SuperWeights(TemplateMethod):
    """Members of any width and depth, put together from shared slabs of templates within a parameter budget.

    Args:
        members: how many members one network gives; several networks are one member each.
        clusters: which layers share templates at first: those at a similar "depth", or of the same "shape".
        bins: how many clusters the depth is divided into.
        templates: most templates per cluster; None for as many as the budget has room for.
        share: which coefficients members share: "none", those of corresponding "layers", or of "clusters".
        refine_at: epochs after which clusters are made anew from gradients and training starts again.
        tau: with refine_at, layers whose gradients have a cosine above this share templates.
        decouple_at: epochs after which members whose gradients differ stop sharing coefficients.
        beta: with decouple_at, coefficients whose gradients have a cosine above this stay shared.
    """

    role = "superweights"
    several_networks = "may"

    clusters: Literal["depth", "shape"] = "depth"
    bins: int = 4
    templates: int | None = None
    share: Literal["none", "layers", "clusters"] = "none"
    refine_at: int | None = None
    tau: float = 0.1
    decouple_at: int | None = None
    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is None:
            raise OptionError(
                "budget is what SuperWeights goes by: a count (int) or a ratio (float); got None."
            )
        check_choice("clusters", self.clusters, ("depth", "shape"))
        check_choice("share", self.share, ("none", "layers", "clusters"))
        check_between("tau", self.tau, -1, 1)
        check_between("beta", self.beta, -1, 1)
        check_whole("bins", self.bins)
        if self.templates is not None:
            check_whole("templates", self.templates)
        for name, epochs in (("refine_at", self.refine_at), ("decouple_at", self.decouple_at)):
            if epochs is not None:
                check_whole(name, epochs)

    def draft(self, bodies: Sequence[Anatomy], idle: Sequence[Collection[str]]) -> Draft:
        """Slabs for all chosen layers of all networks, in their first clusters."""
        layers = layers_in(bodies, self.where, bool(self.linear), idle)
        clusters = first_clusters(layers, by=self.clusters, bins=self.bins)
        composition = self._compose(bodies, clusters, exploring=self.refine_at is not None)
        self._say_unused(composition)
        return composition.draft(unused=composition.unused)

    def redesign(self, bodies: Sequence[Anatomy], layout: Layout, clusters: Any, tau: float) -> Layout:
        """The layout with other clusters, each a list of [network, tensor's name], as refinement finds them."""
        made = [list(each) for each in layout.facts["makeup"]]
        keyed = _keyed(bodies, made, clusters)
        method = self.as_designed(layout)
        composition = method._compose(bodies, keyed, exploring=False, overlap=_overlap(layout))
        draft = composition.draft(tau=tau, unused=composition.unused)
        redesigned = method.lay_out(bodies, draft, layout.facts["idle"])
        return replace(redesigned, shared_buffers=layout.shared_buffers)

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """Clusters and rows of coefficients were kept."""
        kept = extra["superweights"]
        made: list[list[str]] = [[] for _ in bodies]
        for cluster in kept["clusters"]:
            for network, name in cluster:
                made[network].append(name)
        clusters = _keyed(bodies, made, kept["clusters"])
        composition = self._compose(bodies, clusters, exploring=kept["exploring"])
        composition.set_rows(kept["rows"])
        idle = [extra.get(f"idle {i}", ()) for i in range(len(bodies))]
        return self.lay_out(bodies, composition.draft(), idle)

    def turns(self) -> Sequence[Turn]:
        """Refine the clusters and start again; later, tell coefficients apart."""
        found = []
        if self.refine_at is not None:
            found.append(Turn(self.refine_at, refinement.refine, restart=True))
        if self.decouple_at is not None:
            found.append(Turn((self.refine_at or 0) + self.decouple_at, refinement.decouple))
        return found

    def after_epoch(
        self, ensemble: Ensemble, epoch: int, batches: Iterable[tuple[Any, Tensor]]
    ) -> Literal["restart", "changed"] | None:
        """For a loop of one's own: what is to be done when `epoch` epochs are done. `covey.fit` does it by itself.

        Args:
            ensemble: this method's; it is changed in place.
            epoch: how many epochs are done since training started, or started again.
            batches: inputs and targets of one epoch; read only where something is to be done.

        Returns "restart" after refinement (all weights are new: begin again with a new optimiser and schedule),
        "changed" after decoupling (some coefficients are new parameters: their optimiser state starts empty, the others
        keep theirs), else None.
        """
        exploring = ensemble.layout.facts["exploring"]
        if exploring and epoch == self.refine_at:
            refinement.refine(ensemble, batches)
            return "restart"
        if not exploring and epoch == self.decouple_at:
            return "changed" if refinement.decouple(ensemble, batches) else None
        return None

    def _say_unused(self, composition: Composition) -> None:
        """Warn where `templates` keeps a good part of the budget from being used."""
        budget = self.allowed(composition.bodies)
        if self.templates is not None and composition.unused > budget // 100:
            warnings.warn(
                f"SuperWeights leaves {composition.unused:,} of its budget of {budget:,} parameters unused, because no "
                f"slab may have more than templates={self.templates}. Raise that, or leave it out.",
                stacklevel=2,
            )

    def _compose(
        self, bodies: Sequence[Anatomy], clusters: Any, *, exploring: bool, overlap: Overlap = "everywhere"
    ) -> Composition:
        share = "layers" if self.decouple_at is not None else self.share
        if exploring:
            share = "clusters"
        return Composition(
            bodies,
            clusters,
            members=self.members,
            share=share,
            budget=self.allowed(bodies),
            most=self.templates,
            exploring=exploring,
            overlap=overlap,
        )


def _overlap(layout: Layout) -> Overlap:
    """Where templates overlapped before refinement, which rather lowers tau than lets them overlap more."""
    vectors = [bank for bank in layout.facts["banks"].values() if len(bank["theta"]) == 1]
    if not vectors:
        return "no"
    return "in clusters" if len(vectors) == len(layout.facts["clusters"]) else "everywhere"


def _keyed(bodies: Sequence[Anatomy], made: Sequence[Sequence[str]], clusters: Any) -> list[list[Any]]:
    """Clusters of [network, name] as clusters of layers."""
    everything = layers_in(bodies, "all", True, [()] * len(bodies))
    known = {layer.key: layer for layer in everything if layer.name in made[layer.body]}
    return [[known[network, name] for network, name in cluster] for cluster in clusters]
