"""The tensors of a graph: each value stored once, whoever uses it."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node


class Constants:
    """Named tensors for `get_attr` nodes of a graph; equal tensors are one.

    >>> constants = Constants()
    >>> constants.add("member_0.weight", torch.ones(2)), constants.add("member_1.weight", torch.ones(2))
    ('member_0_weight', 'member_0_weight')
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple, str] = {}

    def add(self, hint: str, tensor: Tensor) -> str:
        """The name of this tensor, or of the one of equal value that is there already."""
        tensor = tensor.detach()
        key = (tuple(tensor.shape), tensor.dtype, _digest(tensor))
        if key not in self._names:
            self._names[key] = self._free(hint)
            # a copy, since a member's row would keep all members' memory alive, and be written with it
            self.tensors[self._names[key]] = tensor.clone(memory_format=torch.contiguous_format)
        return self._names[key]

    def node(self, graph: Graph, hint: str, tensor: Tensor) -> Node:
        """A node that stands for this tensor."""
        return graph.get_attr(self.add(hint, tensor))

    def of(self, node: Any) -> Tensor:
        """The tensor that a node of this graph stands for."""
        return self.tensors[node.target]

    def _free(self, hint: str) -> str:
        name = re.sub(r"\W", "_", hint)
        return name if name not in self.tensors else f"{name}_{len(self.tensors)}"

    def module(self, graph: Graph) -> nn.Module:
        """A module that holds the tensors which the graph uses."""
        holder = nn.Module()
        for node in graph.nodes:
            if node.op == "get_attr" and node.target not in holder._buffers:
                holder.register_buffer(node.target, self.tensors[node.target])
        return holder


def _digest(tensor: Tensor) -> bytes:
    flat = tensor.cpu().contiguous().reshape(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=16).digest()
