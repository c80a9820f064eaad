"""Late-phase weights: members of a few tensors start late, share the minibatches, and are averaged in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.errors import OptionError
from covey.method import Method, Training
from covey.methods.batch_ensemble import BatchEnsemble
from covey.methods.hypernetwork import Hypernetwork
from covey.methods.replicate import Replicate
from covey.networks.layers import Where
from covey.train.recipe import Recipe
from covey.train.state import Phase
from covey.trainings.late_start import Late, late


@dataclass(frozen=True, kw_only=True)
class LatePhase(Training):
    """Start an ensemble of norms and heads late in training, and average it into one network of the same size.

    von Oswald et al. (2021). With P_c parameters in the members' own tensors, training stores (M - 1) P_c more than
    the network; the result stores what the network does.

    Args:
        members: how many networks (the paper's K).
        kind: what members own: "copies" of tensors, "rank-one" factors of weights, or "embeddings" of a
            hypernetwork along with norms and head.
        where: for copies, which tensors (norms and head by default); for rank-one factors, which weights (all).
        norms: beside embeddings, whether members have norms of their own ("member"), share their scales and shifts
            ("shared"), or share their running statistics too ("single").
        start: when the members start (T0): a share of training, or an epoch if 1 or more; 0 for a network that is
            trained already.
        noise: Gaussian noise on the members' tensors at the start, in units of each tensor's root mean square (sigma).
        restart: tensors of the members that are initialised anew at the start, such as the head.
        gamma: factor of the shared tensors' gradient, which is summed over members.
        decay: factor of the weight decay of the members' copies, norms and heads from `start` on; rank-one factors
            and embeddings never decay.
        nested: each member takes a minibatch, then the shared tensors move once; otherwise a member drawn for
            each minibatch steps along with them.
        freeze: let only the members' tensors learn after the start.
        collapse: end with one network; otherwise members are kept and their predictions averaged.
    """

    members: int = 10
    kind: Literal["copies", "rank-one", "embeddings"] = "copies"
    where: Where | None = None
    norms: Literal["member", "shared", "single"] = "member"
    start: float = 0.6
    noise: float = 0.0
    restart: Where = ()
    gamma: float = 1.0
    decay: float = 1.0
    nested: bool = True
    freeze: bool = False
    collapse: bool = True

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One member until `start`, all of them afterwards."""
        return self.late().phases(recipe)

    def result(self, recipe: Recipe) -> Method:
        """One network, unless members are kept."""
        return self.late().result(recipe)

    def late(self) -> Late:
        """The same as `covey.late` would make it."""
        return late(
            self._method(),
            self.start,
            self.noise,
            restart=self.restart,
            nested=self.nested,
            freeze=self.freeze,
            collapse=self.collapse,
        )

    def _method(self) -> Method:
        if self.kind != "embeddings" and self.norms != "member":
            raise OptionError(
                "norms is for kind='embeddings'; for other kinds, `where` says what members own."
            )
        if self.kind == "copies":
            where = ("norms", "head") if self.where is None else self.where
            return Replicate(members=self.members, where=where, gamma=self.gamma, decay=self.decay)
        if self.kind == "rank-one":
            where = "all" if self.where is None else self.where
            return BatchEnsemble(members=self.members, init="ones", where=where, lr=1.0, gamma=self.gamma)
        if self.kind == "embeddings":
            return Hypernetwork(
                members=self.members, norms=self.norms, budget=None, gamma=self.gamma, decay=self.decay
            )
        raise OptionError(f"kind is 'copies', 'rank-one' or 'embeddings'; got {self.kind!r}.")
