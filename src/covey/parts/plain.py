"""The plainest parameterizations, of which most methods are made: shared, replicated, rank-one, each its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import CollapseError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes
from covey.parameterization import Group, Parameterization
from covey.parts.acting import differentiable
from covey.parts.acting_rank_one import RankOneWeight
from covey.tensors import Tensors, scale_gradient


class Shared(Parameterization):
    """w_k = theta: the same tensors for all members."""

    role = "shared"
    varies = False

    def __init__(
        self, tensors: Mapping[str, Tensor], notes: Mapping[str, str], gamma: float, lr: float = 1.0
    ) -> None:
        super().__init__()
        self.names = tuple(tensors)
        self.theta = Tensors({name: _parameter(tensor) for name, tensor in tensors.items()})
        self.notes = dict(notes)
        self.gamma, self.lr = gamma, lr
        if lr == 0:
            self.theta.requires_grad_(False)

    def member(self, k: int) -> dict[str, Tensor]:
        """The shared tensors."""
        return {name: scale_gradient(tensor, self.gamma) for name, tensor in self.theta.items()}

    def groups(self) -> list[Group]:
        """One group."""
        return [Group(list(self.theta.parameters()), "shared", self.lr)]

    def parameter_count(self, name: str) -> int:
        """As many as the network has."""
        return self.theta[name].numel()

    def note(self, name: str) -> str:
        """Why the tensor is shared."""
        frozen = "" if self.theta[name].requires_grad else "frozen, stays as it is"
        return self.notes.get(name, frozen)

    def collapsed(self) -> dict[str, Tensor]:
        """Themselves."""
        return dict(self.theta.items())


class Replicated(Parameterization):
    """w_k = phi_k: each member has its own copy.

    Args:
        tensors: stacked tensors by name, (M, *shape).
        notes: what to say of each in the coverage table.
        lr: factor of the learning rate.
        decay: factor of the weight decay.
        why_apart: if the copies have nothing to do with each other, why they cannot be averaged.
    """

    role = "replicated"

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        notes: Mapping[str, str] | None = None,
        lr: float = 1.0,
        decay: float = 1.0,
        why_apart: str = "",
    ) -> None:
        super().__init__()
        self.names = tuple(tensors)
        self.phi = Tensors({name: _parameter(tensor) for name, tensor in tensors.items()})
        self.notes = dict(notes or {})
        self.lr, self.decay, self.why_apart = lr, decay, why_apart

    def member(self, k: int) -> dict[str, Tensor]:
        """Row k of each."""
        return {name: tensor[k] for name, tensor in self.phi.items()}

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """The rows as they are stored."""
        return {name: rows(tensor, members) for name, tensor in self.phi.items()}

    def groups(self) -> list[Group]:
        """One group."""
        return [Group(list(self.phi.parameters()), "member", self.lr, self.decay)]

    def parameter_count(self, name: str) -> int:
        """M times the network's."""
        return self.phi[name].numel()

    def note(self, name: str) -> str:
        """How it was initialised."""
        return self.notes.get(name, "")

    def collapsed(self) -> dict[str, Tensor]:
        """The mean of the copies, if they began as copies of one network."""
        if self.why_apart:
            raise CollapseError(self.why_apart)
        return {name: tensor.mean(0) for name, tensor in self.phi.items()}


class RankOne(Parameterization):
    """w_k = W * (s_k r_k^T): a shared weight times an outer product of the member's own.

    theta: W by name. phi: r (M, inputs) and s (M, outputs) by name, parameters or, as masks, buffers; where
    one is missing it counts as ones. For a grouped convolution r has all input channels. `lr` and `base` are factors of
    the learning rates of phi and of theta; a base of 0 freezes theta.
    """

    acts = True

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        axes: Mapping[str, Axes],
        r: Mapping[str, Tensor],
        s: Mapping[str, Tensor],
        *,
        role: str = "rank-one",
        gamma: float = 1.0,
        lr: float = 1.0,
        base: float = 1.0,
    ) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.role = role
        self.axes = dict(axes)
        self.theta = Tensors({name: _parameter(tensor) for name, tensor in weights.items()})
        self.r, self.s = Tensors(r), Tensors(s)
        self.gamma, self.lr, self.base = gamma, lr, base
        if base == 0:
            self.theta.requires_grad_(False)

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's weights."""
        return {name: tensor[0] for name, tensor in self.stacked([k]).items()}

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Members' weights, (len(members), *shape)."""
        return {
            name: scale_gradient(weight, self.gamma) * self._factor(name, members)
            for name, weight in self.theta.items()
        }

    def own(self, members: Sequence[int]) -> dict[str, Tensor]:
        """The members' r and s; weights that cannot act, as they are."""
        found = {}
        for name, weight in self.theta.items():
            if not self._acts(name):
                found[name] = scale_gradient(weight, self.gamma) * self._factor(name, members)
                continue
            if name in self.r:
                found["r " + name] = rows(self.r[name], members)
            if name in self.s:
                found["s " + name] = rows(self.s[name], members)
        return found

    def acting(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights that scale activations."""
        found = {}
        for name, weight in self.theta.items():
            if not self._acts(name):
                found[name] = own[name]
                continue
            r, s = own.get("r " + name), own.get("s " + name)
            found[name] = RankOneWeight(weight, r, s, self.axes[name], self.gamma)
        return differentiable(found)

    def _acts(self, name: str) -> bool:
        """A transposed convolution's weight does not."""
        axes = self.axes[name]
        return not axes.inputs_first or axes.inputs is None

    def _factor(self, name: str, members: Sequence[int]) -> Tensor:
        """The outer products in the weight's shape, (len(members), out, in, 1, ...)."""
        axes, weight = self.axes[name], self.theta[name]
        inputs_at, outputs_at = (2, 3) if axes.inputs_first else (3, 2)
        factor = weight.new_ones(())
        if name in self.r:
            factor = factor * _on_axis(rows(self.r[name], members), axes.groups, inputs_at)
        if name in self.s:
            factor = factor * _on_axis(rows(self.s[name], members), axes.groups, outputs_at)
        if axes.groups > 1:  # each group's inputs belong to all of the group's outputs
            factor = factor.expand(-1, -1, len(weight) // axes.groups, -1)
        # (M, groups, first / groups, second) -> (M, first, second, 1, ...)
        return factor.flatten(1, 2)[(...,) + (None,) * (weight.ndim - 2)]

    def groups(self) -> list[Group]:
        """The weights, and the vectors without decay."""
        vectors = [*self.r.parameters(), *self.s.parameters()]
        return [
            Group(list(self.theta.parameters()), "shared", self.base),
            Group(vectors, "member", self.lr, decay=0.0),
        ]

    def parameter_count(self, name: str) -> int:
        """The weight's and the vectors'; masks are not parameters."""
        vectors = [store[name] for store in (self.r, self.s) if name in store]
        return self.theta[name].numel() + sum(v.numel() for v in vectors if isinstance(v, nn.Parameter))

    def note(self, name: str) -> str:
        """What the members' own vectors are."""
        return " and ".join(
            f"{label} {tuple(store[name].shape)}"
            for label, store in (("r", self.r), ("s", self.s))
            if name in store
        )

    def collapsed(self) -> dict[str, Tensor]:
        """W times the mean of the outer products."""
        if self.role == "masked":
            raise CollapseError(
                "masks are not averaged: each member is the network with other features cut out, and the mean of "
                "the masks is a network that was never trained. Take one member(k), or average predictions."
            )
        everyone = range(len(next(iter([*self.r.items(), *self.s.items()]))[1]))
        return {name: weight * self._factor(name, everyone).mean(0) for name, weight in self.theta.items()}


class Separate(Parameterization):
    """w_k = phi_k: each member has its own tensors, where members differ in shape so that they cannot be stacked."""

    role = "member's own"

    def __init__(self, tensors: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.names = tuple(dict.fromkeys(name for each in tensors for name in each))
        stores = []
        for each in tensors:
            stores.append(Tensors({name: _parameter(tensor) for name, tensor in each.items()}))
        self.phi = nn.ModuleList(stores)

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors."""
        return dict(self.phi[k].items())  # type: ignore[operator]

    def groups(self) -> list[Group]:
        """One group."""
        return [Group(list(self.phi.parameters()), "own")]

    def parameter_count(self, name: str) -> int:
        """All members' together."""
        return sum(each[name].numel() for each in self.phi if name in each)  # type: ignore[operator,index]


def assemble(
    method: Method,
    bodies: Sequence[Anatomy],
    layout: Layout,
    parts: Mapping[str, Parameterization],
    *,
    gamma: float = 1.0,
    lr: float = 1.0,
    kind: type[Ensemble] = Ensemble,
) -> Ensemble:
    """An ensemble out of what a method makes; tensors of one network that no part makes are shared by all members.

    Where networks differ, the parts must make all their tensors; `Separate` holds those that are a member's own.

    Args:
        method: of the ensemble.
        bodies: its networks.
        layout: what the method decided; its notes go into the coverage table.
        parts: what the method makes, by label. A part without tensors is left out.
        gamma: factor of the gradient of the shared rest.
        lr: factor of its learning rate; 0 freezes it.
        kind: the class of the ensemble.
    """
    found = {label: part for label, part in parts.items() if part.names}
    if len(bodies) == 1:
        taken = {name for part in parts.values() for name in part.names}
        rest = {n: t for n, t in bodies[0].network.named_parameters() if n not in taken}
        if rest:
            found["shared"] = Shared(rest, layout.notes, gamma, lr)
    return kind(method, bodies, layout, found)


def stack(tensor: Tensor, members: int, noise: float = 0.0) -> Tensor:
    """M copies of a tensor, (M, *shape), with Gaussian noise of `noise` times its root mean square."""
    copies = torch.stack([tensor.detach()] * members)
    if noise and copies.is_floating_point():
        copies += noise * tensor.detach().square().mean().sqrt() * torch.randn_like(copies)
    return copies


def rows(tensor: Tensor, members: Sequence[int]) -> Tensor:
    """The members' rows of a stacked tensor; the tensor itself if that is all of them."""
    members = list(members)
    return tensor if members == list(range(len(tensor))) else tensor[members]


def _parameter(tensor: Tensor) -> nn.Parameter:
    trainable = tensor.requires_grad if isinstance(tensor, nn.Parameter) else True
    return nn.Parameter(tensor.detach().clone(), trainable)


def _on_axis(vectors: Tensor, groups: int, axis: int) -> Tensor:
    """(M, n) as (M, groups, n / groups, 1) or (M, groups, 1, n / groups)."""
    grouped = vectors.unflatten(1, (groups, -1))
    return grouped.unsqueeze(3 if axis == 2 else 2)
