"""What the methods have in common whose weights are made of shared templates.

Such a method only decides: which banks there are, and of which pieces each tensor is made (`draft`). Storing that
decision, building from it and counting it is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where
from covey.options import check_least
from covey.parameterization import Parameterization
from covey.parts.banks import BankSpec
from covey.parts.budget import (
    Budget,
    TooSmallError,
    allowance,
    check_budget,
    linear_counts,
    own_copies,
    unused,
)
from covey.parts.plain import Replicated, Separate, assemble
from covey.parts.templates import Makeup, Templates

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Draft:
    """What a method decided.

    Args:
        banks: by label.
        makeup: for each network, how every tensor is made that the banks make.
        own: where members are rows of one network, the tensors that each has a copy of.
        facts: whatever else the method wants to remember, as JSON holds it.
    """

    banks: Mapping[str, BankSpec]
    makeup: Sequence[Mapping[str, Makeup]]
    own: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "banks": {label: asdict(spec) for label, spec in self.banks.items()},
            "makeup": [{name: made.to_dict() for name, made in each.items()} for each in self.makeup],
            **self.facts,
        }


@dataclass(frozen=True, kw_only=True)
class TemplateMethod(Method):
    """Options that all methods with shared templates have.

    Args:
        budget: trainable parameters of all members together: a count (int), or a ratio to the network's (float). "auto"
            takes as many as the network has, or where those are too few, the fewest that work.
        linear: make the weights of linear layers, attention and recurrences too, not only of convolutions. None does so
            where convolutions have less than half of the parameters that could be made.
        where: which layers are made.
        gamma: factor of the templates' gradient.
        keep: megabytes of generated weights that eval mode may keep.
        recompute: make each layer's weights when the layer runs, and again in the backward pass, instead of keeping all
            of them for it: less memory in training, more time. Members then run in a loop.
    """

    role: ClassVar[str]

    budget: Budget = "auto"
    linear: bool | None = None
    where: Where = "all"
    gamma: float = 1.0
    keep: float = 256
    recompute: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.budget)
        check_least("keep", self.keep, 0)

    def draft(self, bodies: Sequence[Anatomy], idle: Sequence[Collection[str]]) -> Draft:
        """Decide on banks and pieces.

        Args:
            bodies: the networks.
            idle: for each, the layers that its answer does not depend on.
        """
        raise NotImplementedError

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Banks for the chosen layers; heads, biases and norms are each member's own."""
        idle = [unused(body) for body in bodies]
        linear = self.linear
        if linear is None:
            linear = linear_counts(bodies, self.where, type(self).__name__, idle)
        budget = 1.0 if self.budget == "auto" else self.budget
        method = replace(self, linear=linear, budget=budget)
        try:
            draft = method.draft(bodies, idle)
        except TooSmallError as error:
            if self.budget != "auto":
                raise
            method = replace(method, budget=error.minimum)
            draft = method.draft(bodies, idle)
        return method.lay_out(bodies, draft, idle)

    def as_designed(self, layout: Layout) -> Self:
        """The method with the options that a layout was made with, where it left them open."""
        budget = layout.facts.get("budget", self.budget)
        return replace(self, linear=layout.facts.get("linear", self.linear), budget=budget)

    def widened(self, bodies: Sequence[Anatomy], layout: Layout) -> Layout:
        """For more members of the same network."""
        method, idle = self.as_designed(layout), layout.facts["idle"]
        wide = method.lay_out(bodies, method.draft(bodies, idle), idle)
        return replace(wide, shared_buffers=layout.shared_buffers)

    def allowed(self, bodies: Sequence[Anatomy]) -> int:
        """The budget as a number of parameters."""
        assert not isinstance(self.budget, str | None)  # `design` has settled it
        return allowance(self.budget, [body.network for body in bodies])

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """Idle layers were kept, the rest follows from the options."""
        idle = [extra.get(f"idle {i}", ()) for i in range(len(bodies))]
        return self.lay_out(bodies, self.draft(bodies, idle), idle)

    def lay_out(self, bodies: Sequence[Anatomy], draft: Draft, idle: Sequence[Collection[str]]) -> Layout:
        """A draft as a layout."""
        made = [name for each in draft.makeup for name in each]
        differing = [*made, *draft.own]
        if len(bodies) > 1:
            differing += [name for body in bodies for name, _ in body.network.named_parameters()]
        facts = {
            **draft.to_dict(),
            "idle": [list(names) for names in idle],
            "linear": self.linear,
            "budget": self.budget,
        }
        return Layout.of(bodies, own=differing, tensors={"own": draft.own}, facts=facts)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw the banks; copy what is each member's own."""
        makeup = makeup_of(layout)
        first_use: dict[str, tuple[int, str]] = {}
        for i, each in enumerate(makeup):
            for name, made in each.items():
                for piece in made.pieces:
                    first_use.setdefault(piece.bank, (i, name))
        banks = {}
        for label, stored in layout.facts["banks"].items():
            i, name = first_use[label]
            banks[label] = BankSpec.from_dict(stored).draw(bodies[i].network.get_parameter(name))
        parts: dict[str, Parameterization] = {
            self.role: Templates(
                banks, makeup, role=self.role, gamma=self.gamma, keep=self.keep, recompute=self.recompute
            )
        }
        if len(bodies) == 1:
            parts["replicated"] = Replicated(own_copies(bodies[0], layout.tensors["own"], self.members))
        else:
            parts["own"] = Separate([_rest(body, made) for body, made in zip(bodies, makeup, strict=True)])
        return assemble(self, bodies, layout, parts, gamma=self.gamma)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """Templates and coefficients, M copies of what is a member's own, and the rest."""
        total = sum(BankSpec.from_dict(stored).parameters for stored in layout.facts["banks"].values())
        for body, each in zip(bodies, layout.facts["makeup"], strict=True):
            for name, tensor in body.network.named_parameters():
                if name not in each:
                    total += tensor.numel() * (self.members if name in layout.tensors["own"] else 1)
        return total

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """One member is widened, if what is shared does not depend on the number of members."""
        if self.budget is not None:
            raise OptionError(
                f"{type(self).__name__} shares a budget out among its members, so an ensemble of one cannot be "
                "widened. Hypernetwork(budget=None) can be started late."
            )
        return "widen"

    @property
    def collapses(self) -> bool:
        """The mean of the members' tensors is the tensor of their mean coefficients."""
        return True

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)


def _rest(body: Anatomy, made: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a network that no bank makes."""
    return {name: tensor for name, tensor in body.network.named_parameters() if name not in made}


def makeup_of(layout: Layout) -> list[dict[str, Makeup]]:
    """How every tensor is made, for each network, out of a layout."""
    found = []
    for each in layout.facts["makeup"]:
        found.append({name: Makeup.from_dict(stored) for name, stored in each.items()})
    return found
