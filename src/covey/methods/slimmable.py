"""Slimmable networks: narrow members are the leading channels of the widest one.

    w_k = theta[: outputs_k, : inputs_k]

Yu et al. (2019). Give networks of several widths, which are one member each. With `norms="switch"` (slimmable) every
width has norms of its own; with `norms="shared"` (universally slimmable, Yu and Huang 2019) all widths use the leading
entries of the widest one's norms, a step trains the widest, the narrowest and a few others (`share_out`), and running
statistics, which are always each width's own, are re-estimated after training. It stores the widest network, and with
"switch" the other widths' norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method, Share
from covey.networks.anatomy import Anatomy
from covey.networks.layers import norms
from covey.options import check_choice, check_whole
from covey.parameterization import Group, Parameterization
from covey.parts.banks import corner
from covey.parts.plain import Separate
from covey.tensors import Tensors, scale_gradient

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Slimmable(Method):
    """Networks of several widths in one: narrow members are the leading channels of the widest.

    Args:
        members: as many as networks are given.
        norms: whether each width has norms of its own ("switch") or the first channels of the widest one's ("shared").
        widths: how many widths a step of universally slimmable training runs; None for all.
        gamma: factor of the shared tensors' gradient.
    """

    several_networks = "must"

    norms: Literal["switch", "shared"] = "switch"
    widths: int | None = None
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("norms", self.norms, ("switch", "shared"))
        if self.widths is not None:
            check_whole("widths", self.widths, 2)

    def for_networks(self, count: int) -> Self:
        """As many members as networks."""
        return Method.for_networks(replace(self, members=count), count)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Which member is the widest, which tensors are cut out of it, and which are each width's own."""
        sizes = [sum(tensor.numel() for tensor in body.network.parameters()) for body in bodies]
        order = sorted(range(len(bodies)), key=sizes.__getitem__)
        _check_widths(bodies, order[-1])
        everything = [name for name, _ in bodies[0].network.named_parameters()]
        switched = norms(bodies[0].network) if self.norms == "switch" else set()
        cut = [name for name in everything if name not in switched]
        own = [name for name in everything if name in switched]
        tensors = {"cut": cut, "norms": own}
        return Layout.of(bodies, own=everything, tensors=tensors, facts={"order": order})

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """The widest network's tensors, cut for the others."""
        widest = bodies[layout.facts["order"][-1]]
        shapes = []
        for body in bodies:
            values = body.values(layout.tensors["cut"])
            shapes.append({name: tuple(tensor.shape) for name, tensor in values.items()})
        parts: dict[str, Parameterization] = {
            "slimmable": Cut(widest.values(layout.tensors["cut"]), shapes, self.gamma)
        }
        if layout.tensors["norms"]:
            parts["norms"] = Separate([body.values(layout.tensors["norms"]) for body in bodies])
        return Ensemble(self, bodies, layout, parts)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """The widest network, and the other widths' norms where each has its own."""
        widest = layout.facts["order"][-1]
        total = sum(tensor.numel() for tensor in bodies[widest].network.parameters())
        for i, body in enumerate(bodies):
            if i != widest:
                total += sum(tensor.numel() for tensor in body.values(layout.tensors["norms"]).values())
        return total

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """All follows from the networks."""
        return self.design(bodies)

    def share_out(self, layout: Layout, samples: int, generator: torch.Generator | None = None) -> Share:
        """Which widths a step runs: the widest, the narrowest, and others at random until there are `widths`."""
        order = layout.facts["order"]
        if self.widths is None or self.widths >= len(order):
            return Share(tuple(order[::-1]))
        middle = order[1:-1]
        drawn = torch.randperm(len(middle), generator=generator)[: self.widths - 2].tolist()
        return Share((order[-1], *(middle[i] for i in drawn), order[0]))

    @property
    def refreshes_statistics(self) -> bool:
        """Where widths share norms, no step has kept each width's statistics up to date."""
        return self.norms == "shared"

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """Widths are trained together from the start."""
        raise OptionError(
            "Slimmable takes networks of several widths, so there is no one network to start late from."
        )

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)


def _check_widths(bodies: Sequence[Anatomy], widest: int) -> None:
    """All have the same tensors, none larger than the widest network's."""
    most = {name: tuple(t.shape) for name, t in bodies[widest].network.named_parameters()}
    for body in bodies:
        ours = {name: tuple(t.shape) for name, t in body.network.named_parameters()}
        for name in {**ours, **most}:
            if not _fits(ours.get(name), most.get(name)):
                raise ConversionError(
                    f"widths of one network have the same tensors, none larger than the widest one's; {name!r} is "
                    f"{ours.get(name, 'missing')} in one and {most.get(name, 'missing')} in the widest."
                )


def _fits(shape: tuple[int, ...] | None, into: tuple[int, ...] | None) -> bool:
    if shape is None or into is None or len(shape) != len(into):
        return False
    return all(size <= room for size, room in zip(shape, into, strict=True))


class Cut(Parameterization):
    """w_k = the leading corner of theta, of member k's shape."""

    role = "cut"

    def __init__(
        self, tensors: Mapping[str, Tensor], shapes: Sequence[Mapping[str, tuple[int, ...]]], gamma: float
    ) -> None:
        super().__init__()
        self.names = tuple(tensors)
        self.theta = Tensors(
            {n: nn.Parameter(t.detach().clone(), t.requires_grad) for n, t in tensors.items()}
        )
        self.shapes, self.gamma = [dict(each) for each in shapes], gamma

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's corners."""
        return {
            name: scale_gradient(self.theta[name], self.gamma)[corner(shape)]
            for name, shape in self.shapes[k].items()
        }

    def groups(self) -> list[Group]:
        """One group."""
        return [Group(list(self.theta.parameters()), "shared")]

    def parameter_count(self, name: str) -> int:
        """The widest network's."""
        return self.theta[name].numel()
