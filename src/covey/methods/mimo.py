"""MIMO: one network takes M inputs at once and gives M answers.

    y_k = head_k(body(sum_j stem_j(x_j)))

Havasi et al. (2021): inputs concatenated on channels, one body, M heads. A convolution over concatenated channels is
the sum of M convolutions, so the members' tensors are the first layer's weights W_j and the heads. Trained on M
different inputs, asked with the same input M times: then member k is a plain network whose first layer has the weights
sum_j W_j. Stores P + (M - 1) (first layer's weights + head) numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from covey.ensemble import Ensemble, Group, Method, Parameterization
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import axes, fresh, owner_of
from covey.parts.plain import Replicated, assemble, stack, values
from covey.run import Inputs
from covey.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class MIMO(Method):
    """Members that share one body and one forward pass.

    Args:
        members: how many inputs and answers the network has.
        init: "fresh" draws first layers and heads anew; "copy" keeps a pretrained network's answers.
        repeats: batch repetition in training, how often a sample stands in a batch (4 on CIFAR).
        rho: share of a batch that is the same for all members (0 on CIFAR, 0.6 on ImageNet).
        gamma: factor of the body's gradient.
    """

    members: int = 3
    init: Literal["copy", "fresh"] = "fresh"
    repeats: int = 4
    rho: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init not in ("copy", "fresh"):
            raise OptionError(f"init is 'copy' or 'fresh'; got {self.init!r}.")
        if self.repeats < 1:
            raise OptionError(f"repeats is at least 1; got {self.repeats}.")
        if not 0 <= self.rho <= 1:
            raise OptionError(f"rho is a share, from 0 to 1; got {self.rho}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """First layers that are summed, heads that are replicated, a shared body."""
        (body,) = bodies
        network = body.network
        stem = [name for name in body.stem if axes(network, name) is not None]
        for part, names in (("stem", stem), ("head", body.head)):
            _check_layer(network, part, names)
        if set(stem) & set(body.head):
            raise ConversionError(
                f"the first layer and the head share {sorted(set(stem) & set(body.head))}: MIMO needs two layers."
            )
        if self.init == "copy":
            stems = {n: stack(t / self.members, self.members) for n, t in values(network, stem).items()}
            heads = {n: stack(t, self.members) for n, t in values(network, body.head).items()}
        else:
            made = [fresh(network, None)[0] for _ in range(self.members)]
            # M summed layers of this size have the variance of one
            stems = {n: torch.stack([m.get_parameter(n) for m in made]) / self.members**0.5 for n in stem}
            heads = {n: torch.stack([m.get_parameter(n) for m in made]) for n in body.head}
        parts = {"stem": Summed(stems), "replicated": Replicated(heads)}
        ensemble = assemble(self, body, parts, gamma=self.gamma, kind=JointEnsemble)
        if body.example is not None:  # fail now rather than in training
            args, kwargs = tree_map(lambda leaf: _repeated(leaf, self.members), body.example)
            with ensemble.evaluating(), torch.no_grad():
                ensemble(*args, per_member=True, **kwargs)
        return ensemble

    def indices(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Which samples each member sees in a training step, (M, batch * repeats).

        Indices are repeated and shuffled; each member then shuffles the first 1 - rho of them again.
        """
        order = torch.arange(batch).repeat(self.repeats)
        order = order[torch.randperm(len(order), generator=generator)]
        own = round((1 - self.rho) * len(order))
        rows = []
        for _ in range(self.members):
            shuffled = order[:own][torch.randperm(own, generator=generator)]
            rows.append(torch.cat([shuffled, order[own:]]))
        return torch.stack(rows)


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

    def numbers(self, name: str) -> int:
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
        inputs = Inputs(args, kwargs, self.members, self.memory_format)
        flat_args, flat_kwargs = tree_map(_joined, (inputs.args, inputs.kwargs))
        buffers, _ = self.buffers_of(0)
        # copies, since writing the statistics back would spoil what the backward pass has kept
        tensors = {**self.tensors(0), **{name: t.clone() for name, t in buffers.member(0).items()}}
        with self._joint(tensors):
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
        head = self.records[0]["head"]
        paths = {owner_of(name): "head" for name in head} | {
            owner_of(n): "stem" for n in self.parts["stem"].names
        }
        forwards = {}
        for path, kind in paths.items():
            module = self.skeleton().get_submodule(path)
            each = [self._layer_tensors(path, k, kind, tensors) for k in range(self.members)]
            forwards[module] = _Joint(copy.deepcopy(module), each, kind == "stem")
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


def _joined(leaf: Any) -> Any:
    return leaf.flatten(0, 1) if isinstance(leaf, Tensor) else leaf


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
