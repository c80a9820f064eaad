"""Slimmable networks: narrow members are the leading channels of the widest one.

    w_k = theta[: outputs_k, : inputs_k]

Yu et al. (2019). Give networks of several widths, which are one member each. With `norms="switch"` (slimmable) every
width has norms of its own; with `norms="shared"` (universally slimmable, Yu and Huang 2019) all widths use the leading
numbers of the widest one's norms, a step trains the widest, the narrowest and a few others (`draw`), and running
statistics, which are always each width's own, are re-estimated after training. It stores the widest network, and with
"switch" the other widths' norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble, Group, Method, Parameterization
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import norms
from covey.parts.templates import Separate, corner
from covey.tensors import Tensors, scale_gradient

if TYPE_CHECKING:
    from covey.train.recipe import Recipe
    from covey.train.state import Phase


@dataclass(frozen=True, kw_only=True)
class Slimmable(Method):
    """Members of several widths that share the leading channels.

    Args:
        members: as many as networks are given.
        norms: own ones for each width ("switch"), or the widest one's cut to each width ("shared").
        widths: how many widths a step of universally slimmable training runs; None for all.
        gamma: factor of the shared tensors' gradient.
    """

    norms: Literal["switch", "shared"] = "switch"
    widths: int | None = None
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norms not in ("switch", "shared"):
            raise OptionError(f"norms is 'switch' or 'shared'; got {self.norms!r}.")
        if self.widths is not None and self.widths < 2:
            raise OptionError(f"widths is at least 2, the widest and the narrowest; got {self.widths}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """The widest network's tensors, cut for the others."""
        if len(bodies) < 2:
            raise ConversionError("Slimmable takes several networks of different widths; got one.")
        found = [dict(body.network.named_parameters()) for body in bodies]
        widest = max(found, key=lambda tensors: sum(t.numel() for t in tensors.values()))
        for tensors in found:
            for name in {**tensors, **widest}:
                ours, most = (None if name not in t else tuple(t[name].shape) for t in (tensors, widest))
                if not (ours and most and len(ours) == len(most) and all(map(int.__le__, ours, most))):
                    raise ConversionError(
                        f"widths of one network have the same tensors, none larger than the widest one's; {name!r} is "
                        f"{ours or 'missing'} in one and {most or 'missing'} in the widest."
                    )
        switched = norms(bodies[0].network) if self.norms == "switch" else set()
        shared = {name: t for name, t in widest.items() if name not in switched}
        shapes = [
            {name: tuple(t.shape) for name, t in tensors.items() if name in shared} for tensors in found
        ]
        parts: dict[str, Parameterization] = {"slimmable": Cut(shared, shapes, self.gamma)}
        if switched:
            parts["norms"] = Separate([{n: t for n, t in each.items() if n in switched} for each in found])
        return Ensemble(replace(self, members=len(bodies)), bodies, parts)

    def phases(self, recipe: Recipe) -> list[Phase]:
        """What `covey.fit` does: statistics are estimated again at the end where widths share norms."""
        from covey.train.slim import phases

        return phases(self, recipe)

    def draw(self, ensemble: Ensemble, generator: torch.Generator | None = None) -> list[int]:
        """Which members a step runs: the widest, the narrowest, and others at random until there are `widths`."""
        sizes = [sum(t.numel() for t in ensemble.skeleton(k).parameters()) for k in range(ensemble.members)]
        order = sorted(range(ensemble.members), key=sizes.__getitem__)
        if self.widths is None or self.widths >= len(order):
            return order[::-1]
        middle = order[1:-1]
        drawn = torch.randperm(len(middle), generator=generator)[: self.widths - 2].tolist()
        return [order[-1], *(middle[i] for i in drawn), order[0]]


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

    def numbers(self, name: str) -> int:
        """The widest network's."""
        return self.theta[name].numel()
