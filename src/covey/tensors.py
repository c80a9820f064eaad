"""Where an ensemble keeps tensors under their network's names, and the gradient scale of shared ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covey.networks.anatomy import Anatomy


def key(name: str) -> str:
    """A tensor's name as one attribute of a module, which may not contain dots."""
    return name.replace(".", "/")


class Tensors(nn.Module):
    """Parameters or buffers by their network's names, in order.

    >>> Tensors({"fc.weight": nn.Parameter(torch.zeros(2))}).state_dict().keys()
    odict_keys(['fc/weight'])
    """

    def __init__(self, tensors: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        self.names = tuple(name for name, tensor in tensors.items() if tensor is not None)
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(key(name), tensor)
            elif tensor is not None:
                self.register_buffer(key(name), tensor)

    def __getitem__(self, name: str) -> Tensor:
        return getattr(self, key(name))

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and tensors, in order."""
        return [(name, self[name]) for name in self.names]


class Buffers(nn.Module):
    """A network's buffers: `shared` ones as they are, the members' `own` with a leading axis M.

    Args:
        body: the network.
        shared: names of the buffers that all members share.
        members: M.
    """

    def __init__(self, body: Anatomy, shared: Collection[str], members: int) -> None:
        super().__init__()
        found = {name: tensor.detach().clone() for name, tensor in body.network.named_buffers()}
        self.changing = tuple(name for name in found if name in shared and name in body.state)
        self.shared = Tensors({name: tensor for name, tensor in found.items() if name in shared})
        self.own = Tensors(
            {name: torch.stack([t] * members) for name, t in found.items() if name not in shared}
        )

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's buffers by name; views, so that what changes in place changes here."""
        return {**dict(self.shared.items()), **{name: tensor[k] for name, tensor in self.own.items()}}

    def copies(self) -> dict[str, Tensor]:
        """Copies of the shared buffers that training changes, for one member to start a step from."""
        return {name: self.shared[name].clone() for name in self.changing}

    @torch.no_grad()
    def write(self, k: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Take over member k's own buffers where the network put new tensors in their place."""
        for name, tensor in self.own.items():
            if after[name] is not before[name]:
                tensor[k].copy_(after[name])

    @torch.no_grad()
    def merge(self, copies: Sequence[Mapping[str, Tensor]]) -> None:
        """Set shared buffers from the members' copies after a step: floats to their mean, others to the first."""
        for name in self.changing:
            values = torch.stack([copy[name] for copy in copies])
            self.shared[name].copy_(values.mean(0) if values.is_floating_point() else values[0])


class _ScaledGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, factor: float) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The same tensor, whose gradient is multiplied by `factor` on its way back."""
    if factor == 1 or not (torch.is_grad_enabled() and tensor.requires_grad):
        return tensor
    return _ScaledGradient.apply(tensor, factor)
