"""MIMO: one network takes M inputs at once and gives M answers.

    y_k = head_k(body(sum_j stem_j(x_j)))

Havasi et al. (2021): inputs concatenated on channels, one body, M heads. A convolution over concatenated channels is
the sum of M convolutions, so the members' tensors are the first layer's weights W_j and the heads. Trained on M
different inputs, asked with the same input M times: then member k is a plain network whose first layer has the weights
sum_j W_j. Stores P + (M - 1) (first layer's weights + head) parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method, Share
from covey.networks.anatomy import Anatomy
from covey.networks.initial import fresh
from covey.networks.layers import axes, owner_of
from covey.options import check_between, check_choice, check_whole
from covey.parameterization import Group, Parameterization
from covey.parts.plain import Replicated, assemble, stack
from covey.tensors import Tensors

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class MIMO(Method):
    """One network takes M inputs and gives M answers in a single pass; members share the body's capacity.

    Args:
        members: how many inputs and answers the network has.
        init: "fresh" draws first layers and heads anew; "copy" keeps a pretrained network's answers.
        repeats: batch repetition in training, how often a sample stands in a batch (4 on CIFAR).
        rho: share of a batch that is the same for all members (0 on CIFAR, 0.6 on ImageNet).
        gamma: factor of the body's gradient.
    """

    own_batches = True

    members: int = 3
    init: Literal["copy", "fresh"] = "fresh"
    repeats: int = 4
    rho: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("init", self.init, ("copy", "fresh"))
        check_whole("repeats", self.repeats)
        check_between("rho", self.rho, 0, 1)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """First layers that are summed, heads that are replicated, a shared body."""
        (body,) = bodies
        stem = [name for name in body.stem if axes(body.network, name) is not None]
        for part, names in (("stem", stem), ("head", body.head)):
            _check_layer(body.network, part, names)
            _check_trainable(body, part, names)
        both = sorted({*stem} & {*body.head})
        if both:
            raise ConversionError(f"the first layer and the head share {both}: MIMO needs two layers.")
        layout = Layout.of(bodies, own=body.head, tensors={"stem": stem, "replicated": body.head})
        self._try(bodies, layout)
        return layout

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw or copy first layers and heads."""
        (body,) = bodies
        stem, head = (body.values(layout.tensors[label]) for label in ("stem", "replicated"))
        if self.init == "copy":
            stems = {name: stack(tensor / self.members, self.members) for name, tensor in stem.items()}
            heads = {name: stack(tensor, self.members) for name, tensor in head.items()}
        else:
            made = [fresh(body.network) for _ in range(self.members)]
            drawn = {n: torch.stack([net.get_parameter(n) for net in made]) for n in (*stem, *head)}
            # M summed layers of this size have the variance of one
            stems = {name: drawn[name] / self.members**0.5 for name in stem}
            heads = {name: drawn[name] for name in head}
        parts = {"stem": Summed(stems), "replicated": Replicated(heads)}
        return assemble(self, bodies, layout, parts, gamma=self.gamma, kind=JointEnsemble)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P + (M - 1) (first layer's weights + head)."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for label in ("stem", "replicated"):
            for tensor in body.values(layout.tensors[label]).values():
                total += (self.members - 1) * tensor.numel()
        return total

    @property
    def keeps_weights(self) -> bool:
        """Copies do."""
        return self.init == "copy"

    @property
    def collapses(self) -> bool:
        """Heads that began as copies can be averaged."""
        return True

    @property
    def forward_passes(self) -> float:
        """All members share one pass."""
        return 1.0

    @property
    def training_passes(self) -> float:
        """A sample stands in a batch so many times."""
        return float(self.repeats)

    def share_out(self, layout: Layout, samples: int, generator: torch.Generator | None = None) -> Share:
        """Each member sees the samples in an order of its own, (M, batch * repeats).

        Indices are repeated and shuffled; each member then shuffles the first 1 - rho of them again.
        """
        order = torch.arange(samples).repeat(self.repeats)
        order = order[torch.randperm(len(order), generator=generator)]
        own = round((1 - self.rho) * len(order))
        rows = []
        for _ in range(self.members):
            shuffled = order[:own][torch.randperm(own, generator=generator)]
            rows.append(torch.cat([shuffled, order[own:]]))
        return Share(tuple(range(self.members)), torch.stack(rows))

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """A trained network gets further inputs and heads."""
        if self.init == "fresh":
            raise OptionError(
                "MIMO initialises first layers and heads anew (init='fresh'), so a network trained before would have "
                "to learn from the start. Start it late with init='copy'."
            )
        return "convert"

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)

    def _try(self, bodies: Sequence[Anatomy], layout: Layout) -> None:
        """Fail now rather than in training where the network cannot be run on all inputs at once."""
        example = bodies[0].example
        if example is None:
            return
        args, kwargs = tree_map(lambda leaf: _repeated(leaf, self.members), example)
        ensemble = self.build(bodies, layout)
        with ensemble.evaluating(), torch.no_grad():
            ensemble(*args, per_member=True, **kwargs)


class Summed(Parameterization):
    """w_k = sum_j phi_j: what all members use is the sum of the slots' own weights.

    phi: W (M, *shape) by name.
    """

    role = "summed over inputs"
    varies = False

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(tensors)
        self.phi = Tensors({name: nn.Parameter(tensor.detach().clone()) for name, tensor in tensors.items()})

    def member(self, k: int) -> dict[str, Tensor]:
        """The sum over slots."""
        return {name: tensor.sum(0) for name, tensor in self.phi.items()}

    def slot(self, j: int) -> dict[str, Tensor]:
        """The weights that act on the j-th input."""
        return {name: tensor[j] for name, tensor in self.phi.items()}

    def groups(self) -> list[Group]:
        """One group of member tensors."""
        return [Group(list(self.phi.parameters()), "member")]

    def parameter_count(self, name: str) -> int:
        """M times the network's."""
        return self.phi[name].numel()

    def collapsed(self) -> dict[str, Tensor]:
        """The sum, which is the same for all members."""
        return self.member(0)


class JointEnsemble(Ensemble):
    """An ensemble whose members share a forward pass when each has an input of its own."""

    def forward(
        self, *args: Any, members: Sequence[int] | None = None, per_member: bool = False, **kwargs: Any
    ) -> Tensor:
        """Members' outputs, (M, B, ...); with `per_member`, of one pass that sees all M inputs at once."""
        if not per_member:
            return super().forward(*args, members=members, **kwargs)
        if members is not None:
            raise OptionError(
                "MIMO runs all its members in one pass; members= has no meaning with per_member=True."
            )
        inputs = self.inputs(args, kwargs, self.members)
        flat_args, flat_kwargs = tree_map(
            lambda leaf: _joined(leaf, inputs.copied), (inputs.args, inputs.kwargs)
        )
        buffers, _ = self.buffers_of(0)
        # copies, since writing the statistics back would spoil what the backward pass has kept
        tensors = {**self.tensors(0), **{name: t.clone() for name, t in buffers.member(0).items()}}
        with self._joint(tensors), self.nothing_left_behind():
            try:
                outputs = self.call(0, tensors, flat_args, flat_kwargs)
            except RuntimeError as error:
                raise ConversionError(
                    "MIMO sums the members' inputs in the first layer and splits them in the head, and this network "
                    f"does something else with its input in between. It says: {error}"
                ) from error
        with torch.no_grad():
            for name, tensor in [*buffers.own.items(), *buffers.shared.items()]:
                tensor.copy_(tensors[name])
        return outputs.unflatten(0, (self.members, -1))

    def _joint(self, tensors: dict[str, Tensor]) -> _Patched:
        head = self.layout.tensors["replicated"]
        paths = {owner_of(name): "head" for name in head}
        paths |= {owner_of(name): "stem" for name in self.parts["stem"].names}
        forwards = {}
        for path, kind in paths.items():
            module = self.skeleton().get_submodule(path)
            each = [self._layer_tensors(path, k, kind, tensors) for k in range(self.members)]
            forwards[module] = _Joint(copy.deepcopy(module), each, joins=kind == "stem")
        return _Patched(forwards)

    def _layer_tensors(self, path: str, k: int, kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the layer at `path` uses for slot k; a first layer's bias counts once."""
        stem = cast(Summed, self.parts["stem"])
        part = stem.slot(k) if kind == "stem" else self.parts["replicated"].member(k)
        layer = self.skeleton().get_submodule(path)
        found = {}
        for leaf, _ in layer.named_parameters():
            name = f"{path}.{leaf}"
            found[leaf] = part.get(name, tensors[name])
            if kind == "stem" and name not in part and k > 0:
                found[leaf] = torch.zeros_like(found[leaf])
        return found


class _Joint:
    """A layer for all slots: as the stem the sum of its M inputs' outputs, as the head M outputs for one input."""

    def __init__(self, layer: nn.Module, tensors: list[dict[str, Tensor]], joins: bool) -> None:
        self.layer, self.tensors, self.joins = layer, tensors, joins

    def __call__(self, x: Tensor) -> Tensor:
        members = len(self.tensors)
        inputs = x.unflatten(0, (members, -1)) if self.joins else [x] * members
        outputs = [functional_call(self.layer, t, (x,)) for t, x in zip(self.tensors, inputs, strict=True)]
        return torch.stack(outputs).sum(0) if self.joins else torch.cat(outputs)


class _Patched:
    """Modules answer with other functions for a while."""

    def __init__(self, forwards: dict[nn.Module, _Joint]) -> None:
        self.forwards = forwards

    def __enter__(self) -> None:
        for module, forward in self.forwards.items():
            module.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for module in self.forwards:
            del module.__dict__["forward"]


def _repeated(leaf: Any, members: int) -> Any:
    return torch.stack([leaf] * members) if isinstance(leaf, Tensor) else leaf


def _joined(leaf: Any, copied: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    flat = leaf.flatten(0, 1)
    return flat.clone() if copied else flat


def _check_trainable(body: Anatomy, part: str, names: Sequence[str]) -> None:
    for name, tensor in body.values(names).items():
        if not tensor.requires_grad:
            raise ConversionError(
                f"MIMO gives every member a {part} of its own to train, and {name!r} is frozen. Unfreeze it, or take "
                "another method."
            )


def _check_layer(network: nn.Module, part: str, names: Sequence[str]) -> None:
    if not names:
        raise ConversionError(
            f"MIMO must know the network's {part}: give convert() an example input, from which it is found, "
            f"or name it with {part}='module.path'."
        )
    simple = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Embedding
    for name in names:
        layer = network.get_submodule(owner_of(name))
        if not isinstance(layer, simple):
            raise ConversionError(
                f"MIMO needs a {part} that is a linear, convolution or embedding layer; {name!r} belongs to a "
                f"{type(layer).__name__}. Name another layer with {part}='module.path'."
            )
