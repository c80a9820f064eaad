"""Replicate: members have their own copies of chosen tensors and share the rest.

    w_k = phi_k for the chosen tensors,   w_k = theta for the others

The plainest ensemble, and with other choices most baselines: all tensors, fresh (a deep ensemble); the head
(multi-head, TreeNet, last layer); the norms and the head (late-phase BatchNorm). With P_c numbers in the chosen
tensors and P_s in the others it stores M P_c + P_s numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where, fresh
from covey.parts.plain import Replicated, assemble, stack, values


@dataclass(frozen=True, kw_only=True)
class Replicate(Method):
    """Own copies of the tensors that `where` names.

    Args:
        members: how many networks.
        where: which tensors: "all", "head", "norms", "stem", names, module paths, regular expressions, or several.
            With () members share everything, and gradients of their minibatches add up: a control.
        init: "copy" starts every member at the network's own weights; "fresh" initialises each anew.
        noise: with "copy", Gaussian noise in units of each tensor's root mean square.
        gamma: factor of the shared tensors' gradient; 1/M if None.
        decay: factor of the weight decay of the members' tensors.
        factory: with "fresh", a function that makes a newly initialised network; without it, layers reset
            themselves.
    """

    where: Where = "all"
    init: Literal["copy", "fresh"] = "copy"
    noise: float = 0.0
    gamma: float | None = None
    decay: float = 1.0
    factory: Callable[[], nn.Module] | None = field(default=None, repr=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init not in ("copy", "fresh"):
            raise OptionError(f"init is 'copy' or 'fresh'; got {self.init!r}.")
        if self.noise < 0 or self.decay < 0:
            raise OptionError(f"noise and decay are at least 0; got {self.noise} and {self.decay}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """M copies of the chosen tensors of one network."""
        (body,) = bodies
        chosen = body.select(self.where)
        if not chosen and self.where:
            raise ConversionError(
                f"where={self.where!r} names only frozen tensors, so members would not differ."
            )
        if self.init == "copy":
            copies = {n: stack(t, self.members, self.noise) for n, t in values(body.network, chosen).items()}
            notes = dict.fromkeys(chosen, f"copies with noise {self.noise}" if self.noise else "copies")
            why_apart, made = "", []
        else:
            drawn = [fresh(body.network, self.factory) for _ in range(self.members)]
            made, notes = [network for network, _ in drawn], drawn[0][1]
            copies = {n: torch.stack([net.get_parameter(n).detach() for net in made]) for n in chosen}
            why_apart = (
                "members were initialised apart (init='fresh'), so the mean of their weights is no trained network. "
                "Average predictions instead, or start from one network with init='copy'."
            )
        part = Replicated(copies, notes=notes, decay=self.decay, why_apart=why_apart)
        ensemble = assemble(
            self, body, {"replicated": part}, gamma=1 / self.members if self.gamma is None else self.gamma
        )
        _restart_buffers(ensemble, made)
        return ensemble


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Replicate):
    """M networks that share nothing, each initialised anew (Lakshminarayanan et al., 2017). Stores M P numbers."""

    where: Where = "all"
    init: Literal["copy", "fresh"] = "fresh"


@dataclass(frozen=True, kw_only=True)
class MultiHead(Replicate):
    """One body, M heads initialised anew (TreeNet at its last layer; Lee et al., 2015)."""

    where: Where = "head"
    init: Literal["copy", "fresh"] = "fresh"


@dataclass(frozen=True, kw_only=True)
class NormEnsemble(Replicate):
    """Own norms and heads, copied from the network: late-phase BatchNorm weights (von Oswald et al., 2021)."""

    where: Where = ("norms", "head")
    noise: float = 0.0


@torch.no_grad()
def _restart_buffers(ensemble: Ensemble, made: list[nn.Module]) -> None:
    """Members that were made anew start with new running statistics too."""
    buffers, _ = ensemble.buffers_of(0)
    for k, network in enumerate(made):
        new = dict(network.named_buffers())
        for name, tensor in buffers.own.items():
            tensor[k].copy_(new[name])
