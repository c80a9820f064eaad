"""BatchEnsemble: member weights are the shared weights times a rank-one matrix.

    w_k = W * (s_k r_k^T)        y = ((x * r_k) W^T) * s_k + b_k

Wen, Tran, Ba (2020). A layer of `in` inputs and `out` outputs with bias stores M (in + out + out) - out numbers
more than in the network; with `norms="member"` a norm of c channels stores (M - 1) 2 c more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where, axes, norms
from covey.parts.plain import RankOne, Replicated, assemble, stack, values


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Method):
    """Rank-one members.

    Args:
        members: how many networks.
        init: how r and s start: "normal" around 1, "sign" (+1 or -1), or "ones", which keeps a pretrained
            network's answers.
        spread: standard deviation for "normal".
        positive: probability of +1 for "sign".
        noise: for "ones", Gaussian noise on r and s.
        where: which layers get rank-one weights and biases of their own.
        norms: whether members have norms of their own ("member") or share their scales and shifts ("shared").
        lr: factor of the learning rate of r and s (0.5 on CIFAR, 0.25 on ImageNet in the papers).
        gamma: factor of the shared weights' gradient; 1/M if None.
    """

    init: Literal["normal", "sign", "ones"] = "normal"
    spread: float = 0.5
    positive: float = 0.5
    noise: float = 0.0
    where: Where = "all"
    norms: Literal["member", "shared"] = "member"
    lr: float = 0.5
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init not in ("normal", "sign", "ones"):
            raise OptionError(f"init is 'normal', 'sign' or 'ones'; got {self.init!r}.")
        if self.norms not in ("member", "shared"):
            raise OptionError(f"norms is 'member' or 'shared'; got {self.norms!r}.")
        if not 0 <= self.positive <= 1:
            raise OptionError(f"positive is a probability, from 0 to 1; got {self.positive}.")
        if self.spread < 0 or self.noise < 0:
            raise OptionError(f"spread and noise are at least 0; got {self.spread} and {self.noise}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """Rank-one factors for every matrix; biases, and norms if asked, replicated; the rest shared."""
        (body,) = bodies
        network = body.network
        chosen = body.select(self.where)
        matrices = {name: found for name in chosen if (found := axes(network, name)) is not None}
        if not matrices:
            raise ConversionError(
                f"none of the tensors that where={self.where!r} names is a weight matrix, "
                "so there is nothing for a rank-one factor to act on."
            )
        vectors = [name for name in chosen if network.get_parameter(name).ndim == 1]
        if self.norms == "shared":
            vectors = [name for name in vectors if name not in norms(network)]
        rest = set(chosen) - set(matrices) - set(vectors)
        gamma = 1 / self.members if self.gamma is None else self.gamma
        parts = {
            "rank_one": RankOne(
                values(network, matrices),
                matrices,
                {n: self._draw(network, n, a.inputs) for n, a in matrices.items() if a.inputs is not None},
                {n: self._draw(network, n, a.outputs) for n, a in matrices.items()},
                gamma=gamma,
                lr=self.lr,
            ),
            "replicated": Replicated(
                {n: stack(t, self.members) for n, t in values(network, vectors).items()}
            ),
        }
        return assemble(
            self, body, parts, gamma=gamma, notes={name: _why_shared(network, name) for name in rest}
        )

    def _draw(self, network: nn.Module, name: str, size: int) -> Tensor:
        like = network.get_parameter(name)
        factors = torch.ones(self.members, size, dtype=like.dtype, device=like.device)
        if self.init == "normal":
            factors.normal_(1.0, self.spread)
        elif self.init == "sign":
            factors = 2 * torch.bernoulli(factors * self.positive) - 1
        else:
            factors += self.noise * torch.randn_like(factors)
        return nn.Parameter(factors)


def _why_shared(network: nn.Module, name: str) -> str:
    tensor = network.get_parameter(name)
    if ".parametrizations." in name:
        return "reparametrised weight, a rank-one factor would be normalised away; remove_parametrizations() first"
    if tensor.ndim == 1:
        return "norms are shared"
    return "not a matrix"
