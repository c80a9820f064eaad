"""One low-rank update of a pretrained network, which every member scales by two vectors of its own.

    w_k = W + scaling (s_k r_k^T) * (B A)        y = x W^T + scaling (((x r_k) A^T) B^T) s_k

BatchEnsemble on top of LoRA (arXiv 2409.02976): the cheapest members of all. B starts at zero, so that the pretrained
answers are kept. It stores P + (rank + M) (in + out) summed over matrices + (M - 1) P_c parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from covey.ensemble import Ensemble
from covey.layout import Layout
from covey.methods.low_rank import LowRank, draw_updates, matrix_shape, with_copies
from covey.networks.anatomy import Anatomy
from covey.options import check_least
from covey.parts.low_rank import LowRankUpdate


@dataclass(frozen=True, kw_only=True)
class SharedLowRank(LowRank):
    """All members share one low-rank update of a pretrained network, and each scales it by two small vectors.

    Args:
        members: how many networks.
        rank: of the update.
        scaling: factor of the update; peft's lora_alpha / r.
        where: which weights get an update; by default as in LowRank.
        own: tensors of which every member has its own copy to train, such as "head", "norms" or r"bias$".
        base: factor of the pretrained tensors' learning rate; 0 freezes them, 1 trains them like the rest.
        dropout: probability that an input of the update is zeroed in training.
        gamma: factor of the gradient of what members share; 1/M if None.
        spread: standard deviation of the vectors around 1 at the start, which is what tells members apart.
    """

    spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("spread", self.spread, 0)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw one A and the members' vectors; B is zero."""
        (body,) = bodies
        weights = body.values(layout.tensors["low_rank"])
        how = {name: body.axes(name) for name in weights}
        a, b = draw_updates(weights, how, self.rank, 1)
        r, s = {}, {}
        for name, weight in weights.items():
            outputs, inputs = matrix_shape(weight, how[name])
            r[name] = self._draw(inputs[0], weight)
            s[name] = self._draw(outputs, weight)
        gamma = 1 / self.members if self.gamma is None else self.gamma
        options: dict[str, Any] = dict(
            scaling=self.scaling, dropout=self.dropout, base=self.base, gamma=gamma
        )
        update = LowRankUpdate(weights, how, a, b, r=r, s=s, **options)
        return with_copies(self, bodies, layout, update, base=self.base, gamma=gamma)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P, rank (in + out) and M vectors for each matrix, and M - 1 further copies."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for name, weight in body.values(layout.tensors["low_rank"]).items():
            outputs, inputs = matrix_shape(weight, body.axes(name))
            total += self.rank * (outputs + math.prod(inputs)) + self.members * (outputs + inputs[0])
        for tensor in body.values(layout.tensors["replicated"]).values():
            total += (self.members - 1) * tensor.numel()
        return total

    def _draw(self, size: int, like: Tensor) -> Tensor:
        return like.detach().new_empty(self.members, size).normal_(1.0, self.spread)
