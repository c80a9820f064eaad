"""Packed-Ensembles: M narrow members that together cost about as much as one network.

    member k = the network with alpha / M of its width and gamma groups in its convolutions

Laurent et al. (2023). Members share nothing, so this is `Replicate("all")` of `narrow(network)`. As one network it has
alpha times the channels, in M gamma groups: that is `ensemble.pack()`. With P(r) the parameters of the network at r
times its width it stores M P(alpha / M) parameters, about alpha^2 / M of the network's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from covey import surgery
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy, listing
from covey.networks.calls import pick
from covey.networks.initial import fresh, how_fresh
from covey.networks.layers import owner_of
from covey.options import check_above, check_choice, check_least, check_whole
from covey.parts.plain import Replicated, assemble

if TYPE_CHECKING:
    from covey.surgery import Axis, Narrowed

_WHY_APART = (
    "members of a packed ensemble were initialised apart, so the mean of their weights is no trained network. "
    "Average predictions instead."
)
_GIVEN = "given"  # in place of edits, where the user gave the narrow network


@dataclass(frozen=True, kw_only=True)
class Packed(Method):
    """M narrow networks that share nothing and together cost about as much as the one they were made from.

    Args:
        members: how many networks (M).
        alpha: width of all members together over the network's; each has alpha / M of it.
        subgroups: the paper's gamma: groups in the members' convolutions, except in the first layer and the first of a
            residual block; lowered where a group would have fewer than 64 channels.
        init: "fresh" initialises every member on its own; "same" gives all one fresh initialisation, so that only other
            batches can make them differ; "slice" cuts each member out of the trained network, from other channels.
        slices: with "slice", whether channels are dealt out by "importance" (their squared weights) or at "random".
        heads: what happens to the number of attention heads: "round" scales it, rounding up, and keeps it where that
            makes the network too wide; "exact" demands that the scaled number is whole; "keep" keeps it.
        tolerance: how many more parameters members may have than widths of exactly alpha / M, not rounded, would give
            (0.1 is 10 %); more is an error that names the layer.
        narrow: the narrow network, if you build it yourself; alpha and subgroups then have no effect.
    """

    alpha: float = 2.0
    subgroups: int = 1
    init: Literal["fresh", "same", "slice"] = "fresh"
    slices: Literal["importance", "random"] = "importance"
    heads: Literal["round", "exact", "keep"] = "round"
    tolerance: float = 0.1
    narrow: nn.Module | None = field(default=None, repr=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("alpha", self.alpha)
        check_whole("subgroups", self.subgroups)
        check_choice("init", self.init, ("fresh", "same", "slice"))
        check_choice("slices", self.slices, ("importance", "random"))
        check_choice("heads", self.heads, ("round", "exact", "keep"))
        check_least("tolerance", self.tolerance, 0)
        if self.narrow is not None and self.init == "slice":
            raise OptionError("init='slice' cuts members out of the network; it cannot be had with narrow=.")

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """The narrow network, as what changes in the one given, and where each member's channels come from."""
        (body,) = bodies
        if self.narrow is not None:
            self._check_given(body)
            return self._layout(body, self.narrow, {"edits": _GIVEN}, {}, how_fresh(self.narrow))
        frozen = [name for name, tensor in body.network.named_parameters() if not tensor.requires_grad]
        if self.init == "slice" and frozen:
            raise ConversionError(
                f"Packed(init='slice') cuts other channels out for each member, and {frozen[0]!r} is frozen, which all "
                "members would share. Unfreeze it first, or take init='fresh'."
            )
        found = self._narrowed(body)
        facts: dict[str, Any] = {"edits": found.edits}
        if self.init == "slice":
            facts["channels"] = _to_json(found.channels)
            facts["seed"] = int(torch.randint(2**31, ()).item())
            how = dict.fromkeys(dict(found.network.named_parameters()), "cut out of the trained network")
        else:
            how = how_fresh(found.network)
        return self._layout(body, found.network, facts, _changes(body.network, found), how)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """M narrow networks, all tensors their own."""
        (body,) = bodies
        small = self._small(body, layout)
        networks = self._initialised(body.network, small, layout)
        parameters = [dict(net.named_parameters(remove_duplicate=False)) for net in networks]
        stacked = {}
        for name in layout.tensors["packed"]:
            stacked[name] = torch.stack([tensors[name].detach() for tensors in parameters])
        given = listing(small) if layout.facts["edits"] == _GIVEN else body.given
        part = Replicated(stacked, notes=layout.notes, why_apart=_WHY_APART)
        narrow_body = replace(body, network=small, given=given)
        ensemble = assemble(self, [narrow_body], layout, {"packed": part}, kind=PackedEnsemble)
        ensemble.state[0].set_own(networks)
        return ensemble

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """M P(alpha / M); frozen tensors are shared."""
        total = 0
        for name, tensor in self._small(bodies[0], layout).named_parameters():
            total += tensor.numel() * (self.members if name in layout.tensors["packed"] else 1)
        return total

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """The edits were kept; channels were not, but stored tensors do not need them."""
        (body,) = bodies
        edits = extra["edits"]
        small = body.network if edits == _GIVEN else surgery.apply_edits(body.network, edits)
        changes = extra.get("changes", {})
        layout = self._layout(body, small, {"edits": edits}, changes, {})
        return replace(layout, shared_buffers=_stored_shared(tensors))

    @classmethod
    def renamed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """`subgroups` was called `gamma` once."""
        return {"subgroups" if name == "gamma" else name: value for name, value in options.items()}

    @property
    def forward_passes(self) -> float:
        """M networks of alpha / M of the width."""
        return self.alpha**2 / self.members

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """Members are cut out of a trained network."""
        if self.init != "slice":
            raise OptionError(
                f"Packed(init={self.init!r}) initialises its members anew, so nothing would be left of the training "
                "before. Packed(init='slice') cuts them out of the trained network."
            )
        return "convert"

    def _layout(
        self,
        body: Anatomy,
        small: nn.Module,
        facts: Mapping[str, Any],
        changes: Mapping[str, str],
        how: Mapping[str, str],
    ) -> Layout:
        chosen = [name for name, parameter in small.named_parameters() if parameter.requires_grad]
        notes = {}
        for name in chosen:
            notes[name] = "; ".join(filter(None, (how.get(name), changes.get(name))))
        return Layout.of([body], own=chosen, tensors={"packed": chosen}, notes=notes, facts=facts)

    def _check_given(self, body: Anatomy) -> None:
        assert self.narrow is not None
        if body.example is not None:
            surgery.check_runs(
                self.narrow, body.network, *body.example, lambda answer: pick(answer, body.output)
            )
        _check_names(self.narrow, body.network)

    def _narrowed(self, body: Anatomy) -> Narrowed:
        if body.example is None:
            raise ConversionError(
                "Packed narrows the network by following an input through it: give convert() an example, "
                "or the narrow network with Packed(narrow=...)."
            )
        args, kwargs = body.example
        try:
            return surgery.narrow(
                body.network,
                self.alpha / self.members,
                kwargs or args,
                groups=self.subgroups,
                heads=self.heads,
                tolerance=self.tolerance,
                output=lambda answer: pick(answer, body.output),
            )
        except surgery.TooNarrowError as problem:
            raise ConversionError(
                f"alpha {self.alpha:g} over {self.members} members leaves '{problem.layer}' without a channel; the "
                f"smallest alpha that works is {self.members * problem.smallest:g}."
            ) from problem

    def _small(self, body: Anatomy, layout: Layout) -> nn.Module:
        """The narrow network: given now, given when the ensemble was stored, or the one that the edits make."""
        if layout.facts["edits"] == _GIVEN:
            return body.network if self.narrow is None else self.narrow
        return surgery.apply_edits(body.network, layout.facts["edits"])

    def _initialised(self, original: nn.Module, small: nn.Module, layout: Layout) -> list[nn.Module]:
        hollow = next(small.parameters()).device.type == "meta"
        if self.init == "slice" and not hollow:
            channels = _from_json(layout.facts["channels"])
            networks = []
            for k in range(self.members):
                seed = layout.facts["seed"]
                cut = surgery.slice_weights(original, channels, k, self.members, by=self.slices, seed=seed)
                networks.append(_with_tensors(fresh(small), cut))
            return networks
        if self.init == "same":
            return [fresh(small)] * self.members
        return [fresh(small) for _ in range(self.members)]


class PackedEnsemble(Ensemble):
    """Narrow members that can also be had as one network with grouped layers."""

    def pack(self, *args: object, **kwargs: object) -> nn.Module:
        """One plain network with grouped layers that answers as the members do, (M, B, ...).

        Args:
            *args: an input, from which ranks and shapes are read.
            **kwargs: inputs by keyword.
        """
        members = [self.member(k) for k in range(self.members)]
        packed = surgery.pack(members, args, kwargs, self.output)
        return packed.train(self.training)


@torch.no_grad()
def _with_tensors(network: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """The network with these tensors; of a convolution with subgroups only the groups' blocks are kept."""
    places: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    places.update(network.named_buffers(remove_duplicate=False))
    for name, place in places.items():
        values = tensors[name]
        if place.shape != values.shape:
            owner: Any = network.get_submodule(owner_of(name))
            groups, gamma = owner.groups, values.shape[1] // place.shape[1]
            blocks = values.unflatten(1, (gamma, -1)).unflatten(0, (groups // gamma, gamma, -1))
            # (old groups, gamma, out, gamma, in, ...): subgroup g reads the g-th part of the inputs, fewer than before
            values = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1).flatten(0, 2) * math.sqrt(gamma)
        place.copy_(values)
    return network


def _check_names(small: nn.Module, network: nn.Module) -> None:
    ours, theirs = (dict(net.named_parameters()).keys() for net in (network, small))
    odd = sorted(ours ^ theirs)
    if odd:
        raise ConversionError(
            f"the narrow network is of another architecture: only one of the two has a parameter {odd[0]!r}."
        )


def _changes(network: nn.Module, found: Narrowed) -> dict[str, str]:
    """For each parameter: its shape in the network, and which of its widths were rounded up."""
    small = dict(found.network.named_parameters())
    changes = {}
    for name, tensor in network.named_parameters():
        if tensor.shape == small[name].shape:
            continue
        text = "was " + "x".join(map(str, tensor.shape))
        for axis in range(tensor.dim()):
            if f"{name} (axis {axis})" in found.rounded:
                _, wanted, new = found.rounded[f"{name} (axis {axis})"]
                text += f", {wanted:.4g} rounded up to {new}"
        changes[name] = text
    for label, (_, wanted, new) in found.rounded.items():
        path, _, attribute = label.rpartition(".")
        if (
            "(axis" not in label and "head" in attribute
        ):  # shown with the first weight that the heads belong to
            first = next((name for name in changes if name.startswith(f"{path}." if path else "")), None)
            if first:
                changes[first] += f"; {attribute} {wanted:.4g} rounded up to {new}"
    return changes


def _stored_shared(tensors: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, ...]]:
    """Names of the shared buffers, from the names of a stored ensemble's tensors."""
    prefix = "state.0.shared."
    names = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    return (tuple(name.replace("/", ".") for name in names),)


def _to_json(channels: Mapping[str, Sequence[Axis]]) -> dict[str, list]:
    return {name: [asdict(axis) for axis in axes] for name, axes in channels.items()}


def _from_json(stored: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[Axis, ...]]:
    return {name: tuple(map(_axis, axes)) for name, axes in stored.items()}


def _axis(stored: Mapping[str, Any]) -> Axis:
    parts = tuple(map(_axis, stored["parts"]))
    return surgery.Axis(**{**stored, "parts": parts})
