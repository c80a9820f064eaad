"""SuperWeights: members that differ in width, depth and family, put together from shared parts.

    W_k^(l) = [ SuperWeight of slab 1 | SuperWeight of slab 2 | ... ]        SuperWeight = sum_i alpha_i T_i

Paper 3 (SuperWeight networks). The layers of all members are put into clusters of one kernel. A cluster is cut
into slabs, such that every layer is put together from all slabs inside its shape; each slab has templates T and rows
of coefficients alpha. With S_s numbers and T_s templates in slab s, R_s rows, and P_m numbers in all members' norms,
heads and biases, it stores P_m + sum_s T_s (S_s + R_s), never more than the budget.

Which layers share templates is learned from their gradients (`refine_at`, tau), and so is which members share
coefficients (`decouple_at`, beta).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.methods.superweights import refinement
from covey.methods.superweights.clusters import Slab, allocate, cut, depth_bins, shared_out
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where
from covey.parts.budget import allowance, check_budget, layers_of, own_copies, own_names, too_small
from covey.parts.plain import Replicated, assemble
from covey.parts.templates import Bank, Makeup, Piece, Separate, Templates, fan_in, kaiming, orthogonal

if TYPE_CHECKING:
    from covey.train.recipe import Recipe
    from covey.train.state import Phase


@dataclass(frozen=True, kw_only=True)
class SuperWeights(Method):
    """Members put together from slabs of shared templates.

    Args:
        members: how many members one network gives; several networks are one member each.
        budget: trainable parameters of all members together: a count (int), or a ratio to the networks' mean (float).
        clusters: layers that share templates at first: those of one "depth" in their networks, or of one "shape".
        bins: how many parts the depth is divided into.
        templates: for a slab, at most.
        share: which coefficients are one: "none", those of corresponding "layers" of members, or of "clusters".
        refine_at: epochs after which clusters are made anew from gradients and training starts again.
        tau: layers are united whose gradients have a cosine above this.
        decouple_at: epochs after which coefficients that members share are told apart by their gradients.
        beta: coefficients stay shared whose gradients have a cosine above this.
        linear: make the weights of linear layers, attention and recurrences too, not only of convolutions.
        where: which layers are made.
        gamma: factor of the templates' gradient.
        keep: megabytes of generated weights that eval mode may keep.
    """

    budget: int | float = 1.0
    clusters: Literal["depth", "shape"] = "depth"
    bins: int = 4
    templates: int = 8
    share: Literal["none", "layers", "clusters"] = "none"
    refine_at: int | None = None
    tau: float = 0.1
    decouple_at: int | None = None
    beta: float = 0.9
    linear: bool = False
    where: Where = "all"
    gamma: float = 1.0
    keep: float = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is None:
            raise OptionError(
                "budget is what SuperWeights goes by: a count (int) or a ratio (float); got None."
            )
        check_budget(self.budget)
        for name, value, known in (
            ("clusters", self.clusters, ("depth", "shape")),
            ("share", self.share, ("none", "layers", "clusters")),
        ):
            if value not in known:
                raise OptionError(f"{name} is one of {', '.join(map(repr, known))}; got {value!r}.")
        for name, cosine in (("tau", self.tau), ("beta", self.beta)):
            if not -1 <= cosine <= 1:
                raise OptionError(f"{name} is a threshold on cosines, from -1 to 1; got {cosine}.")
        counts = (("bins", self.bins), ("templates", self.templates), ("refine_at", self.refine_at))
        for name, count in (*counts, ("decouple_at", self.decouple_at)):
            if count is not None and count < 1:
                raise OptionError(f"{name} is at least 1; got {count}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """Slabs for all chosen layers of all networks; heads, biases and norms are each member's own."""
        if len(bodies) > 1 and self.members not in (SuperWeights.members, len(bodies)):
            raise OptionError(
                f"members={self.members}, but {len(bodies)} networks were given, which are one member each."
            )
        method = replace(self, members=len(bodies)) if len(bodies) > 1 else self
        plan = Plan.of(method, bodies)
        part = plan.templates()
        if len(bodies) > 1:
            rest = [
                {name: t for name, t in body.network.named_parameters() if name not in made}
                for body, made in zip(bodies, part.makeup, strict=True)
            ]
            ensemble = Ensemble(method, bodies, {"superweights": part, "own": Separate(rest)})
        else:
            (body,) = bodies
            own = own_names(body, part.names, "member")
            copies = Replicated(own_copies(body, own, self.members))
            ensemble = assemble(self, body, {"superweights": part, "replicated": copies}, gamma=self.gamma)
        before = ensemble.about.extra.get("superweights", {})
        ensemble.about.extra |= {"superweights": before | plan.remembered()}
        return ensemble

    def phases(self, recipe: Recipe) -> list[Phase]:
        """What `covey.fit` does: refine and decouple by itself."""
        from covey.train.refine import phases

        return phases(self, recipe)

    def after_epoch(
        self, ensemble: Ensemble, epoch: int, batches: Callable[[], Iterable[tuple[Any, Tensor]]]
    ) -> str | None:
        """For a loop of one's own: what is to be done when `epoch` epochs are done. `covey.fit` does it by itself.

        Args:
            ensemble: this method's; it is changed in place.
            epoch: how many epochs are done since training started, or started again.
            batches: gives inputs and targets of one epoch, when asked.

        Returns "restart" after refinement (all weights are new: train from the first epoch, with a new optimiser),
        "changed" after decoupling (some coefficients are new parameters: their optimiser state starts empty, the others
        keep theirs), else None.
        """
        exploring = ensemble.about.extra["superweights"]["exploring"]
        if exploring and epoch == self.refine_at:
            refinement.refine(ensemble, batches())
            return "restart"
        if not exploring and epoch == self.decouple_at:
            return "changed" if refinement.decouple(ensemble, batches()) else None
        return None


# The paper's ensembles: networks of covey.zoo, one a member (or one for all), and the options.
PRESETS: dict[str, tuple[tuple[str, ...], SuperWeights]] = {
    "homogeneous": (("wrn-28-10",), SuperWeights(members=4, budget=36_500_000, clusters="shape")),
    "gradient-conflict": (
        ("wrn-28-10",),
        SuperWeights(members=4, budget=36_500_000, clusters="shape", refine_at=20, tau=0.1),
    ),
    "heterogeneous": (
        ("wrn-34-8", "wrn-28-12", "wrn-28-10", "wrn-28-8"),
        SuperWeights(members=4, budget=36_500_000),
    ),
    "multi-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-28-3"),
        SuperWeights(members=3, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "multi-depth-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-16-7", "wrn-16-4"),
        SuperWeights(members=4, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "families": (("cifar-mobilenet-v2", "wrn-28-5"), SuperWeights(members=2)),
}


@dataclass(frozen=True)
class Layer:
    """A weight of one of the networks."""

    body: int
    name: str
    shape: tuple[int, ...]
    fan: float
    kind: tuple  # what must be equal for layers to share: kernel, layout, grouped or not, dtype

    @property
    def key(self) -> tuple[int, str]:
        """Network and name."""
        return self.body, self.name


@dataclass
class SlabUse:
    """A slab and who uses it: (member, layer, what the layer has of the slab) and each one's row of coefficients."""

    slab: Slab
    users: list[tuple[int, Layer, Slab]]
    rows: list[int]
    templates: int = 1

    @property
    def numbers(self) -> int:
        """Of one template, with a coefficient for every user, so that decoupling never breaks the budget."""
        layer = self.users[0][1]
        rows, columns = self.slab.shape
        return rows * columns * torch.Size(layer.shape[2:]).numel() + len(self.users)


@dataclass
class Plan:
    """Clusters of layers, their slabs, and how many templates each has."""

    method: SuperWeights
    bodies: Sequence[Anatomy]
    clusters: list[list[Layer]]
    exploring: bool
    slabs: dict[str, SlabUse]

    @classmethod
    def of(cls, method: SuperWeights, bodies: Sequence[Anatomy]) -> Plan:
        """As a stored or refined ensemble remembers it, else the first plan."""
        layers = _layers(method, bodies)
        remembered = next((b.extra["superweights"] for b in bodies if "superweights" in b.extra), None)
        if remembered is None:
            clusters = _first_clusters(method, layers)
            plan = cls(method, bodies, clusters, method.refine_at is not None, {})
        else:
            by_key = {layer.key: layer for layer in layers}
            clusters = [[by_key[body, name] for body, name in cluster] for cluster in remembered["clusters"]]
            plan = cls(method, bodies, clusters, remembered["exploring"], {})
        plan._cut()
        if remembered is not None:
            for label, rows in remembered["rows"].items():
                plan.slabs[label].rows = list(rows)
        plan._allocate()
        return plan

    def remembered(self) -> dict[str, Any]:
        """What must be stored, as JSON holds it."""
        clusters = [[[layer.body, layer.name] for layer in cluster] for cluster in self.clusters]
        rows = {label: shared.rows for label, shared in self.slabs.items()}
        return {"exploring": self.exploring, "clusters": clusters, "rows": rows}

    def templates(self) -> Templates:
        """The parameterization, newly initialised. Uses the global random state."""
        banks: dict[str, Bank] = {}
        pieces: dict[tuple[Layer, int], list[Piece]] = {}
        for label, shared in self.slabs.items():
            layer = shared.users[0][1]
            like = self.bodies[layer.body].network.get_parameter(layer.name)
            fan = max(user[1].fan for user in shared.users)
            shape = (shared.templates, *shared.slab.shape, *layer.shape[2:])
            banks[label] = Bank(kaiming(shape, fan, like), self._alpha(shared, like))
            for (k, user, part), row in zip(shared.users, shared.rows, strict=True):
                into = (slice(part.top, part.bottom), slice(part.left, part.right))
                piece = Piece(
                    label, (row,), (*part.shape, *user.shape[2:]), into, scale=(fan / user.fan) ** 0.5
                )
                pieces.setdefault((user, k), []).append(piece)
        makeup = []
        for body in range(len(self.bodies)):
            members = self._members(body)
            found = [layer for cluster in self.clusters for layer in cluster if layer.body == body]
            makeup.append({layer.name: _made(layer, [pieces[layer, k] for k in members]) for layer in found})
        return Templates(banks, makeup, role="superweights", gamma=self.method.gamma, keep=self.method.keep)

    def _share(self) -> str:
        """Which coefficients are one at this stage of training."""
        if self.exploring:
            return "clusters"
        return "layers" if self.method.decouple_at is not None else self.method.share

    def _members(self, body: int) -> range:
        return range(body, body + 1) if len(self.bodies) > 1 else range(self.method.members)

    def _cut(self) -> None:
        """Slabs of every cluster, with their users, member by member."""
        for number, cluster in enumerate(self.clusters):
            place = {
                layer: [other for other in cluster if other.body == layer.body].index(layer)
                for layer in cluster
            }
            for index, slab in enumerate(cut((layer.shape[0], layer.shape[1]) for layer in cluster)):
                users = [
                    (k, layer, part)
                    for body in range(len(self.bodies))
                    for k in self._members(body)
                    for layer in cluster
                    if layer.body == body and (part := slab.within(*layer.shape[:2]))
                ]
                mark = {
                    "none": lambda k, layer: (k, layer.key),
                    "layers": lambda k, layer: place[layer],  # noqa: B023
                    "clusters": lambda k, layer: 0,
                }[self._share()]
                first: dict[Any, int] = {}
                rows = [first.setdefault(mark(k, layer), len(first)) for k, layer, _ in users]
                self.slabs[f"cluster {number} slab {index}"] = SlabUse(slab, users, rows)

    def _allocate(self) -> None:
        method, found = self.method, list(self.slabs.values())
        made = {layer.key for cluster in self.clusters for layer in cluster}
        fixed = 0
        for i, body in enumerate(self.bodies):
            own = own_names(body, [name for b, name in made if b == i], "member")
            for name, tensor in body.network.named_parameters():
                several = method.members if len(self.bodies) == 1 and name in own else 1
                fixed += tensor.numel() * several * ((i, name) not in made)
        budget = allowance(method.budget, [body.network for body in self.bodies])
        sizes = [shared.numbers for shared in found]
        counts = allocate(sizes, [len(shared.users) for shared in found], budget - fixed, method.templates)
        if counts is None:
            largest = max(found, key=lambda shared: shared.numbers)
            layer = max(
                (user[1] for user in largest.users), key=lambda layer: torch.Size(layer.shape).numel()
            )
            raise too_small("SuperWeights", budget, fixed + sum(sizes), layer.name, largest.numbers)
        for shared, count in zip(found, counts, strict=True):
            shared.templates = count

    def _alpha(self, shared: SlabUse, like: Tensor) -> Tensor:
        """Rows of coefficients: (M, R, T) where one network's members have their own, else (R, T)."""
        rows = max(shared.rows) + 1
        if len(self.bodies) == 1 and self._share() == "none" and rows == len(shared.users):
            members = self.method.members
            return orthogonal(members, rows // members, shared.templates, like)
        return orthogonal(1, rows, shared.templates, like)[0]


def _layers(method: SuperWeights, bodies: Sequence[Anatomy]) -> list[Layer]:
    found = []
    for i, body in enumerate(bodies):
        for name, how in layers_of(body, method.where, method.linear, "SuperWeights", i).items():
            weight = body.network.get_parameter(name)
            kind = (tuple(weight.shape[2:]), how.inputs_first, how.groups > 1, weight.dtype)
            found.append(Layer(i, name, tuple(weight.shape), fan_in(weight, how), kind))
    dimensions = {
        i: {len(layer.shape) - 2 for layer in found if layer.body == i} - {0} for i in range(len(bodies))
    }
    for i, here in dimensions.items():
        if here and dimensions[0] and not here & dimensions[0]:
            raise ConversionError(
                f"the kernels of member 0 have {sorted(dimensions[0])} dimensions and those of member {i} "
                f"{sorted(here)}; members can only share kernels of one dimension. Make two ensembles of them."
            )
    return found


def _first_clusters(method: SuperWeights, layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers of one kind and depth, or of one kind and shape."""
    kinds = list(dict.fromkeys(layer.kind for layer in layers))
    bins = shared_out(method.bins, [sum(layer.kind == kind for layer in layers) for kind in kinds])
    clusters: dict[Any, list[Layer]] = {}
    for layer in layers:
        mark: Any = (layer.kind, layer.shape)
        if method.clusters == "depth":
            alike = [other for other in layers if other.kind == layer.kind and other.body == layer.body]
            mark = (layer.kind, depth_bins(alike.index(layer), len(alike), bins[kinds.index(layer.kind)]))
        clusters.setdefault(mark, []).append(layer)
    return list(clusters.values())


def _made(layer: Layer, pieces: Sequence[Sequence[Piece]]) -> Makeup:
    """A layer out of its members' pieces: the same but for their rows."""
    joined = [
        replace(same[0], rows=tuple(piece.rows[0] for piece in same)) for same in zip(*pieces, strict=True)
    ]
    if len(joined) == 1:
        joined = [replace(joined[0], into=())]
    return Makeup(layer.shape, tuple(joined))
