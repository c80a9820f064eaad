"""Masksembles: members are one set of weights seen through fixed, different masks on features.

    w_k = W * (1 m_k^T)        m_k in {0, 1}^in, drawn once

Durasov et al. (2021). Masks sit on the inputs of every convolution and linear layer but the first, where they can
be cut out of a member exactly. Masks are not parameters: it stores P numbers, as the network does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where, axes
from covey.parts.plain import RankOne, assemble, values


@dataclass(frozen=True, kw_only=True)
class Masksembles(Method):
    """Masked members.

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
        if self.scale < 1:
            raise OptionError(f"scale is at least 1; got {self.scale}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """Masks on the inputs of every matrix but the stem's; everything else is shared."""
        (body,) = bodies
        if not body.stem:
            raise ConversionError(
                "Masksembles leaves the first layer alone and so must know it: give convert() an example input, "
                "from which it is found, or name it with stem='module.path'."
            )
        notes = dict.fromkeys(body.stem, "first layer, sees the raw input")
        weights, found, masks = {}, {}, {}
        for name, tensor in values(body.network, body.select(self.where)).items():
            how = axes(body.network, name)
            if how is None or how.inputs is None or name in body.stem:
                continue
            drawn = draw_masks(how.inputs, self.members, self.scale)
            if drawn is None:
                notes[name] = (
                    f"no {self.members} masks of scale {self.scale} exist over {how.inputs} features"
                )
                continue
            weights[name], found[name] = tensor, how
            masks[name] = drawn.to(tensor)
        if not weights:
            raise ConversionError(
                f"no layer can be masked with {self.members} members and scale {self.scale}: it needs a convolution "
                "or linear layer behind the first one with enough input features. Take fewer members or another scale."
            )
        gamma = 1 / self.members if self.gamma is None else self.gamma
        part = RankOne(weights, found, masks, {}, role="masked", gamma=gamma)
        return assemble(self, body, {"masked": part}, gamma=gamma, notes=notes)


def draw_masks(features: int, members: int, scale: float, tries: int = 200) -> Tensor | None:
    """Masks with `features` columns, (members, features) bool, or None where there are none of this shape.

    Each keeps m features, drawn out of int(m s) positions, and positions that no mask keeps are dropped. m follows
    from the expected width, and s is searched near `scale` until the width is exactly `features`. Uses the
    global random state.

    >>> _ = torch.manual_seed(0)
    >>> masks = draw_masks(64, 4, 2.0)
    >>> masks.shape, masks.sum(1).tolist(), masks.any(0).all().item()
    (torch.Size([4, 64]), [34, 34, 34, 34], True)
    """
    if members == 1 or scale == 1:
        return torch.ones(members, features, dtype=torch.bool)
    for slack in torch.linspace(0, 0.3, 61).tolist():
        for near in dict.fromkeys((scale * (1 + slack), max(scale * (1 - slack), 1.01))):
            for keep in _kept(features, members, near):
                masks = _masks_of_width(features, members, keep, int(keep * near), tries)
                if masks is not None:
                    return masks
    return None


def _kept(features: int, members: int, scale: float) -> list[int]:
    """How many features a mask keeps for the union of the masks to be `features` wide, expected and its neighbours."""
    expected = int(features / (scale * (1 - (1 - 1 / scale) ** members)))
    return [keep for keep in (expected, expected + 1) if 0 < keep <= features]


def _masks_of_width(features: int, members: int, keep: int, positions: int, tries: int) -> Tensor | None:
    if positions < features or keep * members < features:
        return None
    for _ in range(tries):
        order = torch.rand(members, positions).argsort(1)[:, :keep]
        masks = torch.zeros(members, positions, dtype=torch.bool).scatter_(
            1, order, torch.ones_like(order, dtype=torch.bool)
        )
        masks = masks[:, masks.any(0)]
        if masks.shape[1] == features and not masks.eq(masks[0]).all():
            return masks
    return None
