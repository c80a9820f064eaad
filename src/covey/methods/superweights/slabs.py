"""How clusters of layers are cut into slabs, and how many templates each slab gets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from covey.errors import ConversionError
from covey.methods.superweights.clusters import Slab, allocate, cut, depth_bins, shared_out
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where
from covey.parameterization import places
from covey.parts.banks import BankSpec, Piece, fan_in, flat_step
from covey.parts.budget import TooSmallError, fixed_cost, layers_of, own_names
from covey.parts.template_method import Draft
from covey.parts.templates import Makeup


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


@dataclass(frozen=True)
class User:
    """A member's layer that uses a slab: which part of the slab it has."""

    member: int
    layer: Layer
    part: Slab


@dataclass
class SlabUse:
    """A slab, whose cluster it is, who uses it, each user's row of coefficients, and how many templates it has."""

    cluster: int
    slab: Slab
    users: list[User]
    rows: list[int]
    templates: int = 1

    @property
    def kernel(self) -> tuple[int, ...]:
        """Of the layers that use it."""
        return self.users[0].layer.shape[2:]

    @property
    def size(self) -> int:
        """Parameters of one template."""
        rows, columns = self.slab.shape
        return rows * columns * math.prod(self.kernel)

    @property
    def cost(self) -> int:
        """Of one template, with a coefficient for every user, so that decoupling never breaks the budget."""
        return self.size + len(self.users)


FLAT = "vector"
FLAT_TEMPLATES = 5  # that a slab mixes out of a vector, as Mixture's layers do

Overlap = Literal["no", "in clusters", "everywhere"]
"""Where templates may overlap, if the budget has no room for one of each slab: in a vector per cluster, or for all."""


@dataclass(frozen=True)
class Vector:
    """Numbers out of which slabs read templates that overlap."""

    uses: Sequence[SlabUse]
    length: int


Pieces = dict[tuple[Layer, int], list[Piece]]
"""The pieces of each layer of each member."""


@dataclass
class Composition:
    """Clusters of layers with their slabs.

    Args:
        bodies: the networks.
        clusters: layers that share templates.
        members: M.
        share: which coefficients members share: "none", those of corresponding "layers", or of "clusters".
        budget: parameters of all members together.
        most: templates for one slab; None for as many as the budget has room for.
        exploring: whether clusters are still to be refined.
        overlap: where templates may overlap, if the budget has no room for one of every slab.
    """

    bodies: Sequence[Anatomy]
    clusters: Sequence[Sequence[Layer]]
    members: int
    share: str
    budget: int
    most: int | None
    exploring: bool
    overlap: Overlap = "everywhere"
    vectors: dict[str, Vector] = field(default_factory=dict, init=False)  # where templates overlap
    unused: int = field(default=0, init=False)  # parameters of the budget that no template takes
    slabs: dict[str, SlabUse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, cluster in enumerate(self.clusters):
            shapes = [(layer.shape[0], layer.shape[1]) for layer in cluster]
            for index, slab in enumerate(cut(shapes)):
                users = self._users(cluster, slab)
                rows = _numbered([self._row_key(user, cluster) for user in users])
                self.slabs[f"cluster {number} slab {index}"] = SlabUse(number, slab, users, rows)
        self._allocate()

    def set_rows(self, rows: Mapping[str, Sequence[int]]) -> None:
        """Give users other rows of coefficients, slab by slab."""
        for label, each in rows.items():
            self.slabs[label].rows = list(each)

    def draft(self, **facts: Any) -> Draft:
        """What was decided, as all methods with templates say it."""
        banks, pieces = self._overlapping() if self.vectors else self._apart()
        makeup: list[dict[str, Makeup]] = [{} for _ in self.bodies]
        for cluster in self.clusters:
            for layer in cluster:
                each = [pieces[layer, k] for k in self._members(layer.body)]
                makeup[layer.body][layer.name] = _made(layer, each)
        own: list[str] = []
        if len(self.bodies) == 1:
            own = own_names(self.bodies[0], makeup[0], "member")
        clusters = [[[layer.body, layer.name] for layer in cluster] for cluster in self.clusters]
        return Draft(banks, makeup, own, {"exploring": self.exploring, "clusters": clusters, **facts})

    def _apart(self) -> tuple[dict[str, BankSpec], Pieces]:
        """A bank for every slab."""
        banks: dict[str, BankSpec] = {}
        pieces: Pieces = {}
        for label, use in self.slabs.items():
            fan = max(user.layer.fan for user in use.users)
            shape = (use.templates, *use.slab.shape, *use.kernel)
            banks[label] = BankSpec(shape, self._alpha_shape(use), fan)
            for user, row in zip(use.users, use.rows, strict=True):
                pieces.setdefault((user.layer, user.member), []).append(_piece(label, user, row, fan))
        return banks, pieces

    def _overlapping(self) -> tuple[dict[str, BankSpec], Pieces]:
        """A bank for every vector."""
        banks: dict[str, BankSpec] = {}
        pieces: Pieces = {}
        for label, vector in self.vectors.items():
            banks[label] = self._read_out_of(label, vector, pieces)
        return banks, pieces

    def _read_out_of(self, label: str, vector: Vector, pieces: Pieces) -> BankSpec:
        """The bank of a vector. Each slab begins to read where the last ended, round and round.

        A layer that has only a corner of a slab reads templates of that corner's size from the slab's start.
        """
        columns = self._flat_templates()
        fan = max(user.layer.fan for use in vector.uses for user in use.users)
        each_its_own = all(self._rows_are_members(use) for use in vector.uses)
        total = sum(max(use.rows) + 1 for use in vector.uses)
        start, first = 0, 0
        for use in vector.uses:
            for user, row in zip(use.users, use.rows, strict=True):
                place = first + row
                if each_its_own:
                    place = self._own_place(user, row, use, first, total)
                piece = replace(_piece(label, user, place, fan), start=start)
                pieces.setdefault((user.layer, user.member), []).append(piece)
            first += max(use.rows) + 1
            start = (start + columns * flat_step(use.size, vector.length, columns)) % vector.length
        alpha = (self.members, total // self.members, columns) if each_its_own else (total, columns)
        return BankSpec((vector.length,), alpha, fan)

    def _own_place(self, user: User, row: int, use: SlabUse, first: int, total: int) -> int:
        """Where a user's row stands among all slabs' rows, which count through member by member.

        `first` rows of `total` are those of the slabs before.
        """
        of_member = user.member * (total // self.members)
        of_slab = first // self.members
        rows_here = (max(use.rows) + 1) // self.members
        return of_member + of_slab + row % rows_here

    def _members(self, body: int) -> list[int]:
        """The members that are rows of a network."""
        everyone = places(self.members, len(self.bodies))
        return [k for k, (network, _) in enumerate(everyone) if network == body]

    def _users(self, cluster: Sequence[Layer], slab: Slab) -> list[User]:
        """Who uses a slab, member by member."""
        users = []
        for body in range(len(self.bodies)):
            here = [layer for layer in cluster if layer.body == body]
            for k in self._members(body):
                for layer in here:
                    part = slab.within(*layer.shape[:2])
                    if part is not None:
                        users.append(User(k, layer, part))
        return users

    def _row_key(self, user: User, cluster: Sequence[Layer]) -> Any:
        """What users must have in common to share a row of coefficients."""
        if self.share == "clusters":
            return 0
        if self.share == "layers":  # the same place among their network's layers in the cluster
            return [layer for layer in cluster if layer.body == user.layer.body].index(user.layer)
        return user.member, user.layer.key

    def _alpha_shape(self, use: SlabUse) -> tuple[int, ...]:
        """(M, R, T) where one network's members have rows of their own, else (R, T)."""
        rows = max(use.rows) + 1
        if self._rows_are_members(use):
            return self.members, rows // self.members, use.templates
        return rows, use.templates

    def _rows_are_members(self, use: SlabUse) -> bool:
        """Whether every row of a slab belongs to one member of one network."""
        return len(self.bodies) == 1 and self.share == "none" and max(use.rows) + 1 == len(use.users)

    def _flat_templates(self) -> int:
        """How many templates a slab mixes out of a vector."""
        return FLAT_TEMPLATES if self.most is None else min(FLAT_TEMPLATES, self.most)

    def _allocate(self) -> None:
        found = list(self.slabs.values())
        fixed = 0
        for i, body in enumerate(self.bodies):
            made = {layer.name for cluster in self.clusters for layer in cluster if layer.body == i}
            own = own_names(body, made, "member")
            fixed += fixed_cost(body, made, own, len(self._members(i)))
        budget = self.budget
        costs = [use.cost for use in found]
        counts = allocate(costs, [len(use.users) for use in found], budget - fixed, self.most)
        if counts is None:
            self._allocate_vectors(fixed)
            return
        for use, count in zip(found, counts, strict=True):
            use.templates = count
        self.unused = budget - fixed - sum(use.cost * use.templates for use in found)

    def _allocate_vectors(self, fixed: int) -> None:
        """All that is left for a vector per cluster, if each holds its largest slab; else for one, if that holds it."""
        found = list(self.slabs.values())
        coefficients = self._flat_templates() * sum(len(use.users) for use in found)
        room = self.budget - fixed - coefficients
        by_cluster = self._by_cluster()
        of_clusters = sum(_largest(uses) for uses in by_cluster.values())
        of_all = _largest(found)
        minimum = fixed + sum(use.cost for use in found)
        if self.overlap != "no":
            least = of_clusters if self.overlap == "in clusters" else of_all
            minimum = min(minimum, fixed + coefficients + least)
        if self.budget < minimum:
            users = max(found, key=lambda use: use.size).users
            layer = max((user.layer for user in users), key=lambda layer: math.prod(layer.shape))
            raise TooSmallError("SuperWeights", self.budget, minimum, layer.name, of_all)
        if room < of_clusters:
            self.vectors = {FLAT: Vector(found, room)}
        else:
            self.vectors = _shared_among(by_cluster, room)

    def _by_cluster(self) -> dict[str, list[SlabUse]]:
        """The slabs of each cluster, under the name of its vector."""
        found: dict[str, list[SlabUse]] = {}
        for use in self.slabs.values():
            found.setdefault(f"cluster {use.cluster} {FLAT}", []).append(use)
        return found


def _largest(uses: Sequence[SlabUse]) -> int:
    """Parameters of the largest slab's template."""
    return max(use.size for use in uses)


def _shared_among(by_cluster: Mapping[str, Sequence[SlabUse]], room: int) -> dict[str, Vector]:
    """A vector for each cluster: its largest slab, and of what is left a share by what its other slabs lack."""
    least = {label: _largest(uses) for label, uses in by_cluster.items()}
    lacking = {label: sum(use.size for use in uses) - least[label] for label, uses in by_cluster.items()}
    rest, missing = room - sum(least.values()), sum(lacking.values())
    vectors: dict[str, Vector] = {}
    for label, uses in by_cluster.items():
        extra = rest * lacking[label] // missing if missing else 0
        rest, missing = rest - extra, missing - lacking[label]
        vectors[label] = Vector(uses, least[label] + extra)
    return vectors


def layers_in(
    bodies: Sequence[Anatomy], where: Where, linear: bool, idle: Sequence[Collection[str]]
) -> list[Layer]:
    """The weights of all networks that templates may make."""
    found = []
    for i, (body, without) in enumerate(zip(bodies, idle, strict=True)):
        for name, how in layers_of(body, where, linear, "SuperWeights", without).items():
            weight = body.network.get_parameter(name)
            kind = (tuple(weight.shape[2:]), how.inputs_first, how.groups > 1, weight.dtype)
            found.append(Layer(i, name, tuple(weight.shape), fan_in(weight, how), kind))
    _check_dimensions(found, len(bodies))
    return found


def first_clusters(layers: Sequence[Layer], *, by: str, bins: int) -> list[list[Layer]]:
    """Layers of one kind and depth, or of one kind and shape."""
    kinds = list(dict.fromkeys(layer.kind for layer in layers))
    share = shared_out(bins, [sum(layer.kind == kind for layer in layers) for kind in kinds])
    clusters: dict[Any, list[Layer]] = {}
    for layer in layers:
        mark: Any = (layer.kind, layer.shape)
        if by == "depth":
            alike = [other for other in layers if other.kind == layer.kind and other.body == layer.body]
            depth = depth_bins(alike.index(layer), len(alike), share[kinds.index(layer.kind)])
            mark = (layer.kind, depth)
        clusters.setdefault(mark, []).append(layer)
    return list(clusters.values())


def _check_dimensions(layers: Sequence[Layer], networks: int) -> None:
    """Kernels of one dimension at least must be common to all networks."""
    dimensions: list[set[int]] = [set() for _ in range(networks)]
    for layer in layers:
        if len(layer.shape) > 2:
            dimensions[layer.body].add(len(layer.shape) - 2)
    for i, here in enumerate(dimensions):
        if here and dimensions[0] and not here & dimensions[0]:
            raise ConversionError(
                f"the kernels of member 0 have {sorted(dimensions[0])} dimensions and those of member {i} "
                f"{sorted(here)}; members can only share kernels of one dimension. Make two ensembles of them."
            )


def _numbered(keys: Sequence[Any]) -> list[int]:
    """Each key's number, in the order in which keys are first seen."""
    first: dict[Any, int] = {}
    return [first.setdefault(key, len(first)) for key in keys]


def _piece(label: str, user: User, row: int, fan: float) -> Piece:
    part = user.part
    into = (slice(part.top, part.bottom), slice(part.left, part.right))
    shape = (*part.shape, *user.layer.shape[2:])
    return Piece(label, (row,), shape, into, scale=(fan / user.layer.fan) ** 0.5)


def _made(layer: Layer, pieces: Sequence[Sequence[Piece]]) -> Makeup:
    """A layer out of its members' pieces: the same but for their rows."""
    joined = []
    for same in zip(*pieces, strict=True):
        joined.append(replace(same[0], rows=tuple(piece.rows[0] for piece in same)))
    if len(joined) == 1:
        joined = [replace(joined[0], into=())]
    return Makeup(layer.shape, tuple(joined))
