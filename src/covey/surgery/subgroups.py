"""Subgroups (the paper's gamma): convolutions split into groups inside a member.

Not the first layer, nor the first of a residual block, and each group keeps at least 64 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from covey.surgery.edits import Edits, apply_edits
from covey.surgery.probe import without_tensors

FEWEST_CHANNELS = 64

aten = torch.ops.aten
_WEIGHTED = {aten.convolution, aten.addmm, aten.mm, aten.bmm, aten.baddbmm}


def add_subgroups(
    network: nn.Module, small: nn.Module, edits: Edits, args: tuple, kwargs: dict[str, Any], gamma: int
) -> nn.Module:
    """Give the narrow network's convolutions up to `gamma` groups each, record it in `edits`, and rebuild it.

    Args:
        network: the original network.
        small: the narrow one.
        edits: its edits, extended in place.
        args: positional inputs of an example.
        kwargs: inputs by keyword.
        gamma: groups wished for; lowered until channels divide and each group has at least 64.
    """
    left_alone = first_convolutions(small, args, kwargs)
    for path, module in small.named_modules():
        if not isinstance(module, nn.modules.conv._ConvNd) or isinstance(
            module, nn.modules.conv._ConvTransposeNd
        ):
            continue
        if path in left_alone or module.in_channels == module.groups > 1:
            continue
        groups = allowed_groups(module.in_channels, module.out_channels, module.groups, gamma)
        if groups != module.groups:
            shape = list(module.weight.shape)
            shape[1] = module.in_channels // groups
            name = f"{path}.weight" if path else "weight"
            edits["tensors"][name] = shape
            edits["attributes"].setdefault(path, {})["groups"] = groups
    return apply_edits(network, edits)


def allowed_groups(inputs: int, outputs: int, groups: int, gamma: int) -> int:
    """The most groups up to groups x gamma that divide both channel counts and keep 64 channels each.

    >>> allowed_groups(256, 512, 1, 4), allowed_groups(256, 512, 1, 8), allowed_groups(96, 96, 1, 2)
    (4, 4, 1)
    """
    for wanted in range(gamma, 1, -1):
        total = groups * wanted
        if inputs % total == 0 and outputs % total == 0 and inputs // total >= FEWEST_CHANNELS:
            return total
    return groups


def first_convolutions(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> set[str]:
    """Paths of the convolutions that read the input, or begin a residual block, by dataflow.

    A convolution begins a block if what it reads, back to the last weighted layer, is also used elsewhere. One that
    leads to a sum with no other weighted layer between (the shortcut's projection) does not begin the block.
    """
    skeleton = without_tensors(network).eval()
    inputs = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    weights = {id(t): name for name, t in skeleton.named_parameters()}
    flow = _Flow(weights)
    with torch.no_grad(), flow:
        skeleton(*inputs[0], **inputs[1])
    given = {id(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)}
    return {path for path, node in flow.convolutions.items() if flow.begins_block(node, given)}


class _Flow(TorchDispatchMode):
    """Which operator made each tensor and which read it."""

    def __init__(self, weights: dict[int, str]) -> None:
        super().__init__()
        self.weights = weights
        self.convolutions: dict[str, int] = {}
        self.made_by: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.nodes: list[tuple[Any, list[int], list[int]]] = []
        self.alive: list[Tensor] = []  # so that no id is used twice

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.alive += [*read, *made]
        node = len(self.nodes)
        self.nodes.append((func.overloadpacket, [id(t) for t in read], [id(t) for t in made]))
        for tensor in read:
            self.readers.setdefault(id(tensor), []).append(node)
        for tensor in made:
            self.made_by.setdefault(id(tensor), node)
        if func.overloadpacket is aten.convolution and id(args[1]) in self.weights:
            self.convolutions[self.weights[id(args[1])].rpartition(".")[0]] = node
        return out

    def begins_block(self, node: int, given: set[int]) -> bool:
        """Whether this convolution reads the input or a tensor where a residual block branches off."""
        tensor = self.nodes[node][1][0]
        while True:
            if tensor in given:
                return True
            if len(self.readers.get(tensor, [])) > 1:
                return not self._leads_to_sum(node)
            if tensor not in self.made_by:
                return False
            packet, read, _ = self.nodes[self.made_by[tensor]]
            data = [t for t in read if t not in self.weights and (t in self.made_by or t in given)]
            if packet in _WEIGHTED or len(data) != 1:
                return False
            tensor = data[0]

    def _leads_to_sum(self, node: int) -> bool:
        packet, _, made = self.nodes[node]
        readers = self.readers.get(made[0], [])
        if len(readers) != 1:
            return False
        packet = self.nodes[readers[0]][0]
        if packet in (aten.add, aten.add_):
            return True
        return packet not in _WEIGHTED and self._leads_to_sum(readers[0])
