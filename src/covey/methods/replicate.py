"""Replicate: members have their own copies of chosen tensors and share the rest.

    w_k = phi_k for the chosen tensors,   w_k = theta for the others

The plainest ensemble, and with other choices most baselines: all tensors, fresh (a deep ensemble); the head
(multi-head, TreeNet, last layer); the norms and the head (late-phase BatchNorm). With P_c parameters in the chosen
tensors and P_s in the others it stores M P_c + P_s parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.initial import fresh, how_fresh
from covey.networks.layers import Where
from covey.options import check_choice, check_least
from covey.parts.plain import Replicated, assemble, stack

if TYPE_CHECKING:
    from typing_extensions import Self

_WHY_APART = (
    "members were initialised apart (init='fresh'), so the mean of their weights is no trained network. "
    "Average predictions instead, or start from one network with init='copy'."
)


@dataclass(frozen=True, kw_only=True)
class Replicate(Method):
    """Each member has its own copy of the tensors you choose; the rest is shared.

    Args:
        members: how many networks.
        where: which tensors: "all", "head", "norms", "stem", names, module paths, regular expressions, or several.
            With () members share everything, and gradients of their minibatches add up, as a control experiment.
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
        check_choice("init", self.init, ("copy", "fresh"))
        check_least("noise", self.noise, 0)
        check_least("decay", self.decay, 0)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """The chosen tensors, and how each is initialised."""
        (body,) = bodies
        chosen = body.select(self.where)
        if not chosen and self.where:
            raise ConversionError(
                f"where={self.where!r} names only frozen tensors, so members would not differ."
            )
        if self.init == "fresh":
            drawn = how_fresh(body.network, self.factory)
            notes = {name: drawn[name] for name in chosen}
        else:
            notes = dict.fromkeys(chosen, f"copies with noise {self.noise}" if self.noise else "copies")
        return Layout.of(bodies, own=chosen, tensors={"replicated": chosen}, notes=notes)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """M copies of the chosen tensors of one network."""
        (body,) = bodies
        chosen = layout.tensors["replicated"]
        made: list[nn.Module] = []
        copies = {}
        if self.init == "fresh":
            made = [fresh(body.network, self.factory) for _ in range(self.members)]
            for name in chosen:
                copies[name] = torch.stack([network.get_parameter(name).detach() for network in made])
        else:
            for name, tensor in body.values(chosen).items():
                copies[name] = stack(tensor, self.members, self.noise)
        why_apart = _WHY_APART if self.init == "fresh" else ""
        part = Replicated(copies, notes=layout.notes, decay=self.decay, why_apart=why_apart)
        gamma = 1 / self.members if self.gamma is None else self.gamma
        ensemble = assemble(self, bodies, layout, {"replicated": part}, gamma=gamma)
        ensemble.state[0].set_own(made)  # members that were made anew start with new running statistics too
        return ensemble

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """M P_c + P_s."""
        chosen = layout.tensors["replicated"]
        total = 0
        for name, tensor in bodies[0].network.named_parameters():
            total += tensor.numel() * (self.members if name in chosen else 1)
        return total

    @property
    def keeps_weights(self) -> bool:
        """Copies do."""
        return self.init == "copy"

    @property
    def collapses(self) -> bool:
        """Copies of one network do."""
        return self.init == "copy"

    @property
    def allows_equal_members(self) -> bool:
        """With nothing chosen, members are a control that only adds up gradients."""
        return self.where == ()

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """Copies can be started late."""
        if self.init == "fresh":
            raise OptionError(
                f"{type(self).__name__} initialises every member anew (init='fresh'), so nothing would be left "
                "of the training before. Copies of all tensors are Replicate(where='all')."
            )
        return "widen"

    def before_late_start(self) -> Replicate:
        """One member, whose tensors decay like any others: `decay` is for what members own."""
        return replace(self, members=1, gamma=1.0, decay=1.0)

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Replicate):
    """M networks that share nothing, each initialised anew: the strongest baseline, at M times the price.

    Lakshminarayanan et al. (2017). Stores M P parameters.
    """

    where: Where = "all"
    init: Literal["copy", "fresh"] = "fresh"


@dataclass(frozen=True, kw_only=True)
class MultiHead(Replicate):
    """One shared body with M heads: hardly more expensive than one network, and hardly more diverse.

    TreeNet at its last layer (Lee et al., 2015).
    """

    where: Where = "head"
    init: Literal["copy", "fresh"] = "fresh"


@dataclass(frozen=True, kw_only=True)
class NormEnsemble(Replicate):
    """Each member has its own norms and head, copied from the network; the rest is shared.

    Late-phase BatchNorm weights (von Oswald et al., 2021).
    """

    where: Where = ("norms", "head")
    noise: float = 0.0
