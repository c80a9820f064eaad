"""TabM: rank-one members for tables, which differ by their first factor and their heads.

    first layer: w_k = W * (s_k r_k^T) with r_k random, s_k of ones; other layers: all factors of ones at the start

Gorishniy, Kotelnikov, Babenko (2024). A preset of BatchEnsemble with heads of the members' own; its `mini` form has the
first layer's r_k and the heads, and shares all else. With P parameters in the network it stores
P + M (in + out) for each matrix but the head's + (M - 1) (biases + norms + head), or P + M in + (M - 1) head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.initial import fresh, how_fresh
from covey.options import check_choice
from covey.parts.plain import RankOne, Replicated, assemble, stack

if TYPE_CHECKING:
    from typing_extensions import Self

_WHY_APART = (
    "members of TabM have heads that were initialised apart, so the mean of their weights is no trained network. "
    "Average predictions instead."
)


@dataclass(frozen=True, kw_only=True)
class TabM(Method):
    """Many members for tables: each sees the inputs through its own random signs and has its own head.

    Args:
        members: how many networks; 32 in the paper.
        start: how the first layer's factors start: "sign" (+1 or -1), or "normal" for inputs that were embedded.
        mini: share all but the first factors and the heads.
        gamma: factor of the shared tensors' gradient; 1/M if None.
    """

    members: int = 32
    start: Literal["sign", "normal"] = "sign"
    mini: bool = False
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("start", self.start, ("sign", "normal"))

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Factors for every matrix but the head's, or for the first; biases, norms and the head of the members' own."""
        (body,) = bodies
        heads = body.select("head")
        inside = [name for name in body.select("stem" if self.mini else "all") if name not in heads]
        matrices = [name for name in body.matrices("stem" if self.mini else "all") if name in inside]
        first = [name for name in body.select("stem") if name in matrices]
        if not first or not heads:
            raise ConversionError(
                "TabM scales the inputs of the first layer and gives each member a head, so it needs a first layer "
                "with a weight matrix that is not the head; the first layer here is "
                f"{', '.join(body.stem) or 'not known'}."
            )
        vectors = []
        if not self.mini:
            vectors = [name for name, tensor in body.values(inside).items() if tensor.ndim == 1]
        drawn = how_fresh(body.network)
        notes = {name: drawn[name] for name in heads}
        tensors = {
            "rank_one": tuple(first if self.mini else matrices),
            "first": tuple(first),
            "replicated": tuple(vectors),
            "heads": tuple(heads),
        }
        return Layout.of(bodies, own=[*tensors["rank_one"], *vectors, *heads], tensors=tensors, notes=notes)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw the first factors and the heads; all else starts equal."""
        (body,) = bodies
        weights = body.values(layout.tensors["rank_one"])
        how = {name: body.axes(name) for name in weights}
        r: dict[str, Tensor] = {}
        s: dict[str, Tensor] = {}
        for name, weight in weights.items():
            inputs, outputs = how[name].inputs, how[name].outputs
            is_first = name in layout.tensors["first"]
            if inputs is not None:
                r[name] = nn.Parameter(self._factors(weight, inputs, random=is_first))
            if (
                inputs is None or not self.mini
            ):  # an embedding's outputs are the first numbers that can be scaled
                s[name] = nn.Parameter(self._factors(weight, outputs, random=is_first and inputs is None))
        copies = {n: stack(t, self.members) for n, t in body.values(layout.tensors["replicated"]).items()}
        networks = [fresh(body.network) for _ in range(self.members)]
        heads = {}
        for name in layout.tensors["heads"]:
            heads[name] = torch.stack([network.get_parameter(name).detach() for network in networks])
        gamma = 1 / self.members if self.gamma is None else self.gamma
        parts = {
            "rank_one": RankOne(weights, how, r, s, gamma=gamma),
            "replicated": Replicated(copies),
            "heads": Replicated(heads, notes=layout.notes, why_apart=_WHY_APART),
        }
        return assemble(self, bodies, layout, parts, gamma=gamma)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P, the factors, and M - 1 further copies of biases, norms and head."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for name in layout.tensors["rank_one"]:
            how = body.axes(name)
            has_outputs = how.inputs is None or not self.mini
            total += self.members * ((how.inputs or 0) + (how.outputs if has_outputs else 0))
        for name in (*layout.tensors["replicated"], *layout.tensors["heads"]):
            total += (self.members - 1) * body.network.get_parameter(name).numel()
        return total

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """Its heads are drawn anew."""
        raise OptionError(
            "TabM initialises first factors and heads anew, so nothing would be left of the training before. "
            "BatchEnsemble(init='ones') starts late."
        )

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)

    def _factors(self, like: Tensor, size: int, *, random: bool) -> Tensor:
        factors = like.detach().new_ones(self.members, size)
        if not random:
            return factors
        if self.start == "normal":
            return factors.normal_()
        halves = torch.full(factors.shape, 0.5, device=factors.device)
        return (2 * torch.bernoulli(halves) - 1).to(factors)
