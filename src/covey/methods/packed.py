"""Packed-Ensembles: M narrow members that together cost about as much as one network.

    member k = the network with alpha / M of its width and gamma subgroups in its convolutions

Laurent et al. (2023). Members share nothing, so this is `Replicate("all")` of `narrow(network)`. As one network it has
alpha times the channels, in M gamma groups: that is `ensemble.pack()`. With P(r) the parameters of the network at r
times its width it stores M P(alpha / M) numbers, about alpha^2 / M of the network's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy, listing, pick
from covey.networks.layers import fresh, owner_of
from covey.parts.plain import Replicated, assemble
from covey.surgery import apply_edits

if TYPE_CHECKING:
    from covey.surgery import Narrowed

# Narrowing, slicing and packing are imported where they are used: they need sympy, a quarter of torch's import time.


@dataclass(frozen=True, kw_only=True)
class Packed(Method):
    """Members that are the network at a fraction of its width.

    Args:
        members: how many networks (M).
        alpha: width of all members together over the network's; each has alpha / M of it.
        gamma: subgroups in the members' convolutions, but in the first layer and the first of a residual block;
            lowered where a group would have less than 64 channels.
        init: "fresh" initialises every member on its own; "same" gives all one fresh initialisation, so that only other
            batches can make them differ; "slice" cuts every member out of the trained network, other channels each.
        slices: with "slice", whether channels are dealt by "importance" (their squared weights) or at "random".
        heads: what happens to the number of attention heads: "round" scales it, rounding up; "exact" demands that it
            comes out whole; "keep" leaves it. Head width follows.
        narrow: the narrow network, if the user would rather build it than have it found; alpha and gamma then say
            nothing.
    """

    alpha: float = 2.0
    gamma: int = 1
    init: Literal["fresh", "same", "slice"] = "fresh"
    slices: Literal["importance", "random"] = "importance"
    heads: Literal["round", "exact", "keep"] = "round"
    narrow: nn.Module | None = field(default=None, repr=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise OptionError(f"alpha is the width of all members together, above 0; got {self.alpha}.")
        if not isinstance(self.gamma, int) or self.gamma < 1:
            raise OptionError(f"gamma is a number of subgroups, at least 1; got {self.gamma!r}.")
        for name, known in (
            ("init", ("fresh", "same", "slice")),
            ("slices", ("importance", "random")),
            ("heads", ("round", "exact", "keep")),
        ):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} is one of {known}; got {getattr(self, name)!r}.")
        if self.narrow is not None and self.init == "slice":
            raise OptionError("init='slice' cuts members out of the network; it cannot be had with narrow=.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """M narrow networks, all tensors their own."""
        (body,) = bodies
        original = body.network
        body.network, found, changes = self._member(body)
        networks, how = self._initialised(original, body.network, found)
        chosen = [name for name, p in body.network.named_parameters() if p.requires_grad]
        stacked = {n: torch.stack([net.get_parameter(n).detach() for net in networks]) for n in chosen}
        notes = {name: "; ".join(filter(None, (how.get(name), changes.get(name)))) for name in chosen}
        why_apart = (
            "members of a packed ensemble were initialised apart, so the mean of their weights is no trained network. "
            "Average predictions instead."
        )
        part = Replicated(stacked, notes=notes, why_apart=why_apart)
        ensemble = assemble(self, body, {"packed": part}, kind=PackedEnsemble)
        _set_buffers(ensemble, networks)
        return ensemble

    def _member(self, body: Anatomy) -> tuple[nn.Module, Narrowed | None, dict[str, str]]:
        """The narrow network, how it was found, and what changed in each tensor."""
        stored = body.extra.get("edits")
        if stored is not None:
            small = apply_edits(body.network, stored) if stored != "given" else body.network
            return small, None, body.extra.get("changes", {})
        from covey.surgery import TooNarrowError, check_runs, narrow

        if self.narrow is not None:
            if body.example is not None:
                check_runs(self.narrow, body.network, *body.example, lambda answer: pick(answer, body.output))
            _check_names(self.narrow, body.network)
            body.extra["edits"], body.given = "given", listing(self.narrow)
            return self.narrow, None, {}
        if body.example is None:
            raise ConversionError(
                "Packed narrows the network by following an input through it: give convert() an example, "
                "or the narrow network with Packed(narrow=...)."
            )
        args, kwargs = body.example
        try:
            found = narrow(
                body.network,
                self.alpha / self.members,
                kwargs or args,
                groups=self.gamma,
                heads=self.heads,
                output=lambda answer: pick(answer, body.output),
            )
        except TooNarrowError as problem:
            raise ConversionError(
                f"alpha {self.alpha:g} over {self.members} members leaves '{problem.layer}' without a channel; the "
                f"smallest alpha that works is {self.members * problem.smallest:g}."
            ) from problem
        changes = _changes(body.network, found)
        body.extra["edits"], body.extra["changes"] = found.edits, changes
        return found.network, found, changes

    def _initialised(
        self, original: nn.Module, small: nn.Module, found: Narrowed | None
    ) -> tuple[list[nn.Module], dict[str, str]]:
        if self.init == "slice" and found is not None:
            from covey.surgery import slice_weights

            seed = int(torch.randint(2**31, ()).item())
            networks = []
            for k in range(self.members):
                cut = slice_weights(original, found.channels, k, self.members, by=self.slices, seed=seed)
                networks.append(_with_tensors(fresh(small, None)[0], cut))
            return networks, dict.fromkeys(dict(small.named_parameters()), "cut out of the trained network")
        drawn = [fresh(small, None) for _ in range(1 if self.init == "same" else self.members)]
        networks = [network for network, _ in drawn] * (self.members if self.init == "same" else 1)
        return networks, drawn[0][1]


class PackedEnsemble(Ensemble):
    """Narrow members that can also be had as one network with grouped layers."""

    def pack(self, *args: object, **kwargs: object) -> nn.Module:
        """One plain network with grouped layers that answers as the members do, (M, B, ...).

        Args:
            *args: an input, from which ranks and shapes are read.
            **kwargs: inputs by keyword.
        """
        from covey.surgery import pack

        members = [self.member(k) for k in range(self.members)]
        packed = pack(members, args, kwargs, self.about.output)
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


@torch.no_grad()
def _set_buffers(ensemble: Ensemble, networks: Sequence[nn.Module]) -> None:
    buffers, _ = ensemble.buffers_of(0)
    for k, network in enumerate(networks):
        new = dict(network.named_buffers())
        for name, tensor in buffers.own.items():
            tensor[k].copy_(new[name])
