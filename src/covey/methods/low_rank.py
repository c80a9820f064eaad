"""Low-rank members: a pretrained network that stays, and a small update for each member.

    w_k = W + scaling B_k A_k        y = x W^T + scaling (x A_k^T) B_k^T

LoRA ensembles (Wang et al., 2023; Muhlematter et al., 2024). B_k starts at zero, so that every member begins with the
pretrained answers; members differ by their A_k, which are drawn apart. With P parameters in the network, matrices of
in inputs and out outputs, and P_c parameters in the members' own copies, it stores
P + M rank (in + out) summed over matrices + (M - 1) P_c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError
from covey.layout import Layout
from covey.method import Method
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes, Where, axes, is_of_a_layer, select
from covey.options import check_above, check_least, check_share, check_whole
from covey.parts.low_rank import LowRankUpdate
from covey.parts.plain import Replicated, assemble, stack

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class LowRank(Method):
    """Each member adds a small low-rank update to a pretrained network that stays as it is.

    Args:
        members: how many networks.
        rank: of the updates.
        scaling: factor of the updates; peft's lora_alpha / r.
        where: which weights get updates; by default the linear layers of a network that is mostly made of them, as
            transformers are, elsewhere all convolutions and linear layers; never the head, nor layers of smaller rank.
        own: tensors of which every member has its own copy to train, such as "head", "norms" or r"bias$".
        base: factor of the pretrained tensors' learning rate; 0 freezes them, 1 trains them like the rest.
        dropout: probability that an input of an update is zeroed in training.
        gamma: factor of the gradient of what members share; 1/M if None.
    """

    rank: int = 8
    scaling: float = 2.0
    where: Where | None = None
    own: Where = ("head",)
    base: float = 0.0
    dropout: float = 0.0
    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("rank", self.rank)
        check_above("scaling", self.scaling)
        check_least("base", self.base, 0)
        check_share("dropout", self.dropout)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Which matrices get an update, and which tensors are copied for each member."""
        (body,) = bodies
        copied = body.select(self.own, "own") if self.own else []
        matrices = updated_matrices(body, self.where, self.rank, copied)
        tensors = {"low_rank": tuple(matrices), "replicated": tuple(copied)}
        notes = dict.fromkeys(copied, "copies")
        return Layout.of(bodies, own=[*matrices, *copied], tensors=tensors, notes=notes)

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw every member's A; B is zero."""
        (body,) = bodies
        weights = body.values(layout.tensors["low_rank"])
        how = {name: body.axes(name) for name in weights}
        a, b = draw_updates(weights, how, self.rank, self.members)
        gamma = 1 / self.members if self.gamma is None else self.gamma
        update = LowRankUpdate(
            weights, how, a, b, scaling=self.scaling, dropout=self.dropout, base=self.base, gamma=gamma
        )
        return with_copies(self, bodies, layout, update, base=self.base, gamma=gamma)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P, M rank (in + out) for each matrix, and M - 1 further copies."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for name, weight in body.values(layout.tensors["low_rank"]).items():
            outputs, inputs = matrix_shape(weight, body.axes(name))
            total += self.members * self.rank * (outputs + math.prod(inputs))
        for tensor in body.values(layout.tensors["replicated"]).values():
            total += (self.members - 1) * tensor.numel()
        return total

    @property
    def keeps_weights(self) -> bool:
        """B is zero at the start."""
        return True

    @property
    def collapses(self) -> bool:
        """The mean of the updates is a weight like any other."""
        return True

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)


def updated_matrices(body: Anatomy, where: Where | None, rank: int, copied: Sequence[str]) -> list[str]:
    """Names of the weights that get an update, frozen ones among them; unless named, those of smaller rank do not."""
    network = body.network
    if where is not None:
        names = select(network, where, head=body.head, stem=body.stem)
        chosen = [name for name in names if name not in copied and axes(network, name) is not None]
        if not chosen:
            held = next((name for name in names if name in copied), None)
            raise ConversionError(
                f"where={where!r} names no weight matrix that could have a low-rank update of its own"
                + (f"; {held!r} is a copy of each member's already." if held else ".")
            )
        for name in chosen:
            _check_rank(network, name, rank)
        return chosen
    linear: list[str] = []
    convolutions: list[str] = []
    multiplied = None if body.trace is None else body.trace.multiplied()
    for name, weight in network.named_parameters():
        how = axes(network, name)
        is_embedding = how is not None and how.inputs is None
        if how is None or is_embedding or name in copied or name in body.head:
            continue
        # tables that are added, such as biases of positions, are matrices and yet no layers
        if multiplied is not None and name not in multiplied and not is_of_a_layer(network, name):
            continue
        if rank <= min(matrix_sides(network, name)):
            (linear if weight.ndim == 2 else convolutions).append(name)
    sizes = [sum(network.get_parameter(name).numel() for name in names) for names in (linear, convolutions)]
    chosen = linear if sizes[0] > sizes[1] else convolutions + linear
    if not chosen:
        raise ConversionError(
            f"the network has no linear layer or convolution besides its head in which an update of rank {rank} would "
            "be smaller than the layer; name weights with where=, take a smaller rank, or another method."
        )
    return chosen


def matrix_shape(weight: Tensor, how: Axes) -> tuple[int, tuple[int, ...]]:
    """The outputs, and the shape of what each output is made from."""
    if how.inputs_first:
        return weight.shape[1], (weight.shape[0], *weight.shape[2:])
    return weight.shape[0], tuple(weight.shape[1:])


def matrix_sides(network: nn.Module, name: str) -> tuple[int, int]:
    """Rows and columns of a weight as a matrix."""
    how = axes(network, name)
    assert how is not None
    outputs, inputs = matrix_shape(network.get_parameter(name), how)
    return outputs, math.prod(inputs)


def _check_rank(network: nn.Module, name: str, rank: int) -> None:
    outputs, inputs = matrix_sides(network, name)
    if rank > min(outputs, inputs):
        raise ConversionError(
            f"rank {rank} is more than {name!r} has: as a matrix it is {outputs} x {inputs}, of rank "
            f"{min(outputs, inputs)} at most. Take a smaller rank, or leave it out of where=."
        )


def draw_updates(
    weights: Mapping[str, Tensor], how: Mapping[str, Axes], rank: int, rows: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A as a linear layer is initialised, so many apart; B of zeros."""
    a, b = {}, {}
    for name, weight in weights.items():
        outputs, inputs = matrix_shape(weight, how[name])
        bound = 1 / math.sqrt(math.prod(inputs))
        a[name] = weight.detach().new_empty(rows, rank, *inputs).uniform_(-bound, bound)
        b[name] = weight.detach().new_zeros(rows, outputs, rank)
    return a, b


def with_copies(
    method: Method,
    bodies: Sequence[Anatomy],
    layout: Layout,
    update: LowRankUpdate,
    *,
    base: float,
    gamma: float,
) -> Ensemble:
    """The ensemble of updates and of members' copies; all else is the base."""
    copies = {n: stack(t, method.members) for n, t in bodies[0].values(layout.tensors["replicated"]).items()}
    parts = {"low_rank": update, "replicated": Replicated(copies, notes=layout.notes)}
    return assemble(method, bodies, layout, parts, gamma=gamma, lr=base)
