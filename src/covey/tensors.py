"""Tensors under their network's names, and what becomes of a tensor's gradient on its way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def rows_of(tree: Any, rows: Tensor | slice) -> Any:
    """Some samples of a batch, which is a tensor, or a tuple or dict of tensors with the samples on axis 0.

    >>> rows_of({"x": torch.tensor([5, 6, 7])}, torch.tensor([2, 0]))
    {'x': tensor([7, 5])}
    """
    if isinstance(tree, Tensor):
        return tree[rows]
    return tree_map(lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and leaf.ndim else leaf, tree)


def moved(tree: Any, device: torch.device) -> Any:
    """A tensor, or every tensor of a tuple or dict, on a device."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


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


class _ScaledGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, factor: float) -> Tensor:
        # not a view: autograd forbids to change one in place, as embeddings with a max_norm do with their weights
        return tensor.detach()

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


def with_gradient(tensor: Tensor) -> Tensor:
    """A plain tensor of the same values that a gradient can be taken of: of a frozen one too, or with gradients off."""
    values = tensor.clone()
    if values.requires_grad or not values.is_floating_point():
        return values
    return values.detach().requires_grad_()


class _DenseGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to_dense() if gradient.is_sparse else gradient


def dense_gradient(tensor: Tensor) -> Tensor:
    """The same tensor, whose gradient goes back dense: torch cannot take a sparse one through most of its functions.

    A parameter that is used as it is keeps its sparse gradient, and a tensor that acts makes itself dense.
    """
    if tensor.is_leaf or type(tensor) is not Tensor or not (torch.is_grad_enabled() and tensor.requires_grad):
        return tensor
    return _DenseGradient.apply(tensor)
