"""BatchEnsemble: member weights are the shared weights times a rank-one matrix.

    w_k = W * (s_k r_k^T)        y = ((x * r_k) W^T) * s_k + b_k

Wen, Tran, Ba (2020). A layer of `in` inputs and `out` outputs with bias stores M (in + out + out) - out parameters
more than in the network; with `norms="member"` a norm of c channels stores (M - 1) 2 c more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Where, norms
from covey.options import check_between, check_choice, check_least
from covey.parts.plain import RankOne, Replicated, assemble, stack

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Method):
    """Each member scales the shared weights by two small vectors; about 1 % more parameters.

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
        base: factor of the learning rate of what members share; 0 freezes it, so that only factors, biases and norms
            train.
        gamma: factor of the shared weights' gradient; 1/M if None.
    """

    init: Literal["normal", "sign", "ones"] = "normal"
    spread: float = 0.5
    positive: float = 0.5
    noise: float = 0.0
    where: Where = "all"
    norms: Literal["member", "shared"] = "member"
    lr: float = 0.5
    base: float = 1.0
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("init", self.init, ("normal", "sign", "ones"))
        check_choice("norms", self.norms, ("member", "shared"))
        check_between("positive", self.positive, 0, 1)
        check_least("spread", self.spread, 0)
        check_least("noise", self.noise, 0)
        check_least("base", self.base, 0)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Rank-one factors for every matrix; biases, and norms if asked, replicated; the rest shared."""
        (body,) = bodies
        chosen, matrices = body.select(self.where), body.matrices(self.where)
        if not matrices:
            raise ConversionError(
                f"none of the tensors that where={self.where!r} names is a weight matrix, "
                "so there is nothing for a rank-one factor to act on."
            )
        common = norms(body.network) if self.norms == "shared" else set()
        vectors = []
        notes = {}
        for name, tensor in body.values(chosen).items():
            if tensor.ndim == 1 and name not in common:
                vectors.append(name)
            elif name not in matrices:
                notes[name] = _why_shared(name, tensor)
        tensors = {"rank_one": tuple(matrices), "replicated": vectors}
        return Layout.of(bodies, own=[*matrices, *vectors], tensors=tensors, notes=notes)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw the factors, copy the vectors."""
        (body,) = bodies
        weights = body.values(layout.tensors["rank_one"])
        how = {}
        r: dict[str, Tensor] = {}
        s: dict[str, Tensor] = {}
        for name, weight in weights.items():
            how[name] = found = body.axes(name)
            if found.inputs is not None:
                r[name] = self._draw(weight, found.inputs)
        for name, weight in weights.items():
            s[name] = self._draw(weight, how[name].outputs)
        vectors = body.values(layout.tensors["replicated"])
        gamma = 1 / self.members if self.gamma is None else self.gamma
        parts = {
            "rank_one": RankOne(weights, how, r, s, gamma=gamma, lr=self.lr, base=self.base),
            "replicated": Replicated({name: stack(tensor, self.members) for name, tensor in vectors.items()}),
        }
        return assemble(self, bodies, layout, parts, gamma=gamma, lr=self.base)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P, M (in + out) for each matrix, and M - 1 further copies of each vector."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for name in layout.tensors["rank_one"]:
            how = body.axes(name)
            total += self.members * ((how.inputs or 0) + how.outputs)
        for tensor in body.values(layout.tensors["replicated"]).values():
            total += (self.members - 1) * tensor.numel()
        return total

    @property
    def idle(self) -> Mapping[str, str]:
        """What the other ways of drawing factors go by."""
        of_each = {"normal": "spread", "sign": "positive", "ones": "noise"}
        return {option: f"--init {init}" for init, option in of_each.items() if init != self.init}

    @property
    def keeps_weights(self) -> bool:
        """Factors of one do."""
        return self.init == "ones"

    @property
    def collapses(self) -> bool:
        """The mean of the outer products is a weight like any other."""
        return True

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)

    def _draw(self, like: Tensor, size: int) -> nn.Parameter:
        factors = torch.ones(self.members, size, dtype=like.dtype, device=like.device)
        if self.init == "normal":
            factors.normal_(1.0, self.spread)
        elif self.init == "sign":
            # drawn as real numbers: there is no draw of complex ones
            chances = torch.full(factors.shape, self.positive, device=factors.device)
            factors = (2 * torch.bernoulli(chances) - 1).to(factors)
        else:
            factors += self.noise * torch.randn_like(factors)
        return nn.Parameter(factors)


def _why_shared(name: str, tensor: Tensor) -> str:
    if ".parametrizations." in name:
        return "belongs to a reparametrised weight whose largest part has the factors"
    if tensor.ndim == 1:
        return "norms are shared"
    return "not a matrix"
