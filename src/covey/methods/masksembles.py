"""Masksembles: members are one set of weights seen through fixed, different masks on features.

    w_k = W * (1 m_k^T)        m_k in {0, 1}^in, drawn once

Durasov et al. (2021). Masks sit on the inputs of every convolution and linear layer but the first, where they can
be cut out of a member exactly. Masks are not parameters: it stores P parameters, as the network does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from covey.ensemble import Ensemble
from covey.errors import ConversionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where
from covey.options import check_least
from covey.parts.plain import RankOne, assemble

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Masksembles(Method):
    """Each member sees the shared weights through a fixed mask on their inputs; no more parameters.

    Args:
        members: how many networks.
        scale: how little the masks overlap; at 1 they are all ones, at 2 members share about half of what they keep.
        where: which layers' inputs are masked; the first layer's never are.
        gamma: factor of the weights' gradient; 1/M if None.
    """

    scale: float = 2.0
    where: Where = "all"
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("scale", self.scale, 1)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Masks on the inputs of every matrix but the stem's, where there are masks of its width."""
        (body,) = bodies
        if not body.stem:
            raise ConversionError(
                "Masksembles leaves the first layer alone and so must know it: give convert() an example input, "
                "from which it is found, or name it with stem='module.path'."
            )
        notes = dict.fromkeys(body.stem, "first layer, sees the raw input")
        seeds: dict[str, int] = {}
        for name, how in body.matrices(self.where).items():
            if how.inputs is None or name in body.stem:
                continue
            seed = int(torch.randint(2**31, ()).item())
            if draw_masks(how.inputs, self.members, self.scale, seed) is None:
                notes[name] = (
                    f"no {self.members} masks of scale {self.scale} exist over {how.inputs} features"
                )
            else:
                seeds[name] = seed
        if not seeds:
            raise ConversionError(
                f"no layer can be masked with {self.members} members and scale {self.scale}: it needs a convolution "
                "or linear layer behind the first one with enough input features. Take fewer members or another scale."
            )
        return Layout.of(bodies, own=seeds, tensors={"masked": seeds}, notes=notes, facts={"seeds": seeds})

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """The masks that the layout's seeds draw; everything else is shared."""
        (body,) = bodies
        weights = body.values(layout.tensors["masked"])
        found, masks = {}, {}
        for name, weight in weights.items():
            found[name] = how = body.axes(name)
            assert how.inputs is not None
            seed = layout.facts["seeds"][name]
            drawn = None if seed is None else draw_masks(how.inputs, self.members, self.scale, seed)
            # without a seed the masks are in the stored tensors
            masks[name] = weight.new_empty(self.members, how.inputs) if drawn is None else drawn.to(weight)
        gamma = 1 / self.members if self.gamma is None else self.gamma
        part = RankOne(weights, found, masks, {}, role="masked", gamma=gamma)
        return assemble(self, bodies, layout, {"masked": part}, gamma=gamma)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P, since masks are no parameters."""
        return sum(tensor.numel() for tensor in bodies[0].network.parameters())

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """Which layers are masked is told by the masks that were stored; the seeds were not."""
        prefix = "parts.masked.r."
        seeds = {
            name.removeprefix(prefix).replace("/", "."): None for name in tensors if name.startswith(prefix)
        }
        return Layout.of(bodies, own=seeds, tensors={"masked": seeds}, facts={"seeds": seeds})

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """A trained network is masked."""
        return "convert"

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)


def draw_masks(features: int, members: int, scale: float, seed: int, tries: int = 200) -> Tensor | None:
    """Masks with `features` columns, (members, features) bool, or None where there are none of this shape.

    Each keeps m features, drawn out of int(m s) positions, and positions that no mask keeps are dropped. m follows
    from the expected width, and s is searched near `scale` until the width is exactly `features`.

    >>> masks = draw_masks(64, 4, 2.0, seed=0)
    >>> masks.shape, masks.sum(1).tolist(), masks.any(0).all().item()
    (torch.Size([4, 64]), [34, 34, 34, 34], True)
    """
    if members == 1 or scale == 1:
        return torch.ones(members, features, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for slack in torch.linspace(0, 0.3, 61).tolist():
        for near in dict.fromkeys((scale * (1 + slack), max(scale * (1 - slack), 1.01))):
            for keep in _kept(features, members, near):
                masks = _masks_of_width(features, members, keep, int(keep * near), tries, generator)
                if masks is not None:
                    return masks
    return None


def _kept(features: int, members: int, scale: float) -> list[int]:
    """How many features a mask keeps for the union of the masks to be `features` wide, expected and its neighbours."""
    expected = int(features / (scale * (1 - (1 - 1 / scale) ** members)))
    return [keep for keep in (expected, expected + 1) if 0 < keep <= features]


def _masks_of_width(
    features: int, members: int, keep: int, positions: int, tries: int, generator: torch.Generator
) -> Tensor | None:
    if positions < features or keep * members < features:
        return None
    for _ in range(tries):
        order = torch.rand(members, positions, generator=generator).argsort(1)[:, :keep]
        masks = torch.zeros(members, positions, dtype=torch.bool).scatter_(
            1, order, torch.ones_like(order, dtype=torch.bool)
        )
        masks = masks[:, masks.any(0)]
        if masks.shape[1] == features and not masks.eq(masks[0]).all():
            return masks
    return None
