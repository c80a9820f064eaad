"""Ways of training that end in an ensemble, by the names that the command line and recipes use.

Where `covey.METHODS` says what members are, these say how a run gets to them: late-phase weights and economical
ensembles start late, the others collect members along one trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.ensemble import Method
from covey.errors import OptionError
from covey.methods.batch_ensemble import BatchEnsemble
from covey.methods.hypernetwork import Hypernetwork
from covey.methods.replicate import Replicate
from covey.networks.layers import Where
from covey.train.late import Late, late
from covey.train.recipe import Recipe
from covey.train.state import Phase, Phased
from covey.train.trajectory import FGE, SWAG, Snapshot


@dataclass(frozen=True, kw_only=True)
class LatePhase:
    """Late-phase weights: an ensemble that starts late, trains at the price of one network and ends as one.

    von Oswald et al. (2021). With P_c numbers in the members' own tensors, training stores (M - 1) P_c more than
    the network; the result stores what the network does.

    Args:
        members: K.
        kind: what members own: "copies" of tensors, "rank-one" factors of weights, or "embeddings" of a
            hypernetwork along with norms and head.
        where: for copies, which tensors (norms and head by default); for rank-one factors, which weights (all).
        start: T0: a share of training, or an epoch if 1 or more; 0 for a network that is trained already.
        noise: sigma, Gaussian noise in units of each tensor's root mean square.
        restart: tensors of the members that are initialised anew at the start, such as the head.
        gamma: factor of the shared tensors' gradient, which is summed over members.
        decay: for copies, factor of the weight decay of the members' tensors.
        nested: each member takes a minibatch, then the shared tensors move once; otherwise a member drawn for
            each minibatch steps along with them.
        freeze: let only the members' tensors learn after the start.
        collapse: end with one network; otherwise members are kept and their predictions averaged.
    """

    members: int = 10
    kind: Literal["copies", "rank-one", "embeddings"] = "copies"
    where: Where | None = None
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
        if self.kind == "copies":
            where = ("norms", "head") if self.where is None else self.where
            return Replicate(members=self.members, where=where, gamma=self.gamma, decay=self.decay)
        if self.kind == "rank-one":
            where = "all" if self.where is None else self.where
            return BatchEnsemble(members=self.members, init="ones", where=where, lr=1.0, gamma=self.gamma)
        if self.kind == "embeddings":
            return Hypernetwork(members=self.members, budget=None, gamma=self.gamma)
        raise OptionError(f"kind is 'copies', 'rank-one' or 'embeddings'; got {self.kind!r}.")


@dataclass(frozen=True, kw_only=True)
class Economical:
    """Economical ensembles: embeddings of one hypernetwork that start late, with heads of their own.

    The first of the two papers by the same authors. Its settings for accuracy are the defaults; those for
    out-of-distribution detection are norms="shared", noise=0.5, nested=False.

    Args:
        members: N.
        start: T0: a share of training, or an epoch if 1 or more.
        noise: sigma, Gaussian noise in units of each tensor's root mean square.
        norms: whether members have norms of their own ("member") or share them ("shared").
        sizes: embedding sizes of the first layer, of layers that stand alone, and of groups of layers.
        nested: each member takes a minibatch, then the hypernetwork moves once; otherwise a member drawn for
            each minibatch steps along with it.
        gamma: factor of the hypernetwork's gradient, which is summed over members.
    """

    members: int = 10
    start: float = 0.6
    noise: float = 0.25
    norms: Literal["member", "shared"] = "member"
    sizes: tuple[int, int, int] = (10, 7, 14)
    nested: bool = True
    gamma: float = 1.0

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One member until `start`, all of them afterwards."""
        return self.late().phases(recipe)

    def late(self) -> Late:
        """The same as `covey.late` would make it."""
        method = Hypernetwork(
            members=self.members, norms=self.norms, sizes=self.sizes, budget=None, gamma=self.gamma
        )
        return late(method, self.start, self.noise, restart="head", nested=self.nested)


PHASED: dict[str, type[Phased]] = {
    "late-phase": LatePhase,
    "economical": Economical,
    "swag": SWAG,
    "snapshot": Snapshot,
    "fge": FGE,
}
