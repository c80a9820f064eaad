"""Subgroups (the paper's gamma): convolutions split into groups inside a member.

Not the first layer, nor the first of a residual block, and each group keeps at least 64 channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covey.networks.copies import hollow
from covey.surgery.edits import Edits, apply_edits
from covey.surgery.torch_internals import (
    convolution_class,
    leaves,
    map_leaves,
    require_operators,
    transposed_convolution_class,
    watch_operators,
)

FEWEST_CHANNELS = 64

_CONVOLUTION = "aten.convolution"
_WEIGHTED = {_CONVOLUTION, "aten.addmm", "aten.mm", "aten.bmm", "aten.baddbmm"}
_SUMS = {"aten.add", "aten.add_"}


def add_subgroups(
    network: nn.Module,
    small: nn.Module,
    edits: Edits,
    args: tuple,
    kwargs: dict[str, Any],
    gamma: int,
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
        if path in left_alone or not _can_be_grouped(module):
            continue
        layer: Any = module
        groups = allowed_groups(layer.in_channels, layer.out_channels, layer.groups, gamma)
        if groups == layer.groups:
            continue
        shape = list(layer.weight.shape)
        shape[1] = layer.in_channels // groups
        name = f"{path}.weight" if path else "weight"
        edits["tensors"][name] = shape
        edits["attributes"].setdefault(path, {})["groups"] = groups
    return apply_edits(network, edits)


def _can_be_grouped(module: nn.Module) -> bool:
    """Whether it is a convolution, neither transposed nor depthwise."""
    if not isinstance(module, convolution_class()):
        return False
    if isinstance(module, transposed_convolution_class()):
        return False
    is_depthwise = module.in_channels == module.groups > 1
    return not is_depthwise


def allowed_groups(
    inputs: int,
    outputs: int,
    groups: int,
    gamma: int,
) -> int:
    """The most groups up to groups x gamma that divide both channel counts and keep 64 channels each.

    >>> allowed_groups(256, 512, 1, 4), allowed_groups(256, 512, 1, 8), allowed_groups(96, 96, 1, 2)
    (4, 4, 1)
    """
    for wanted in range(gamma, 1, -1):
        total = groups * wanted
        if inputs % total or outputs % total:
            continue
        if inputs // total >= FEWEST_CHANNELS:
            return total
    return groups


# --- which convolutions come first -------------------------------------------------------------------------------


def first_convolutions(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> set[str]:
    """Paths of the convolutions that read the input, or begin a residual block, by dataflow.

    A convolution begins a block if what it reads, back to the last weighted layer, is also used elsewhere. One that
    leads to a sum with no other weighted layer between (the shortcut's projection) does not begin the block.
    """
    skeleton = hollow(network).eval()
    args, kwargs = map_leaves(_on_meta, (args, kwargs))
    flow = _Flow(skeleton)
    with torch.no_grad(), watch_operators(flow.observe):
        skeleton(*args, **kwargs)
    given = set(_ids(_tensors((args, kwargs))))
    first = set()
    for path, node in flow.convolutions.items():
        if flow.begins_block(node, given):
            first.add(path)
    return first


def _on_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def _ids(tensors: list[Tensor]) -> list[int]:
    return list(map(id, tensors))


@dataclass(frozen=True)
class _Node:
    """One operator that was run: its name, and the ids of the tensors that it read and made."""

    name: str
    read: list[int]
    made: list[int]


class _Flow:
    """Which operator made each tensor and which read it; made for `torch_internals.watch_operators`."""

    def __init__(self, network: nn.Module) -> None:
        require_operators(_WEIGHTED | _SUMS)
        self.weights = {id(tensor): name for name, tensor in network.named_parameters()}
        self.convolutions: dict[str, int] = {}
        self.made_by: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.nodes: list[_Node] = []
        self.alive: list[Tensor] = []  # so that no id is used twice

    def observe(
        self,
        name: str,
        args: tuple,
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """Run one operator and enter it into the graph."""
        out = run()
        read = _tensors((args, kwargs))
        made = _tensors(out)
        self.alive += [*read, *made]
        number = len(self.nodes)
        node = _Node(name, _ids(read), _ids(made))
        self.nodes.append(node)
        for tensor in node.read:
            self.readers.setdefault(tensor, []).append(number)
        for tensor in node.made:
            self.made_by.setdefault(tensor, number)
        if name == _CONVOLUTION:
            self._enter_convolution(args[1], number)
        return out

    def _enter_convolution(self, weight: Tensor, number: int) -> None:
        name = self.weights.get(id(weight))
        if name is not None:  # else the weight is computed, and belongs to no layer
            path, _, _ = name.rpartition(".")
            self.convolutions[path] = number

    def begins_block(self, number: int, given: set[int]) -> bool:
        """Whether this convolution reads the input or a tensor where a residual block branches off."""
        tensor = self.nodes[number].read[0]
        while True:
            if tensor in given:
                return True
            if len(self.readers.get(tensor, [])) > 1:
                return not self._leads_to_sum(number)
            if tensor not in self.made_by:
                return False
            maker = self.nodes[self.made_by[tensor]]
            sources = self._data_read_by(maker, given)
            if maker.name in _WEIGHTED or len(sources) != 1:
                return False
            tensor = sources[0]

    def _data_read_by(self, node: _Node, given: set[int]) -> list[int]:
        """The tensors that an operator reads, without parameters and constants."""
        data = []
        for tensor in node.read:
            is_known = tensor in self.made_by or tensor in given
            if is_known and tensor not in self.weights:
                data.append(tensor)
        return data

    def _leads_to_sum(self, number: int) -> bool:
        """Whether what this operator makes is only read on the way to a sum, with no weighted layer between."""
        made = self.nodes[number].made[0]
        readers = self.readers.get(made, [])
        if len(readers) != 1:
            return False
        reader = self.nodes[readers[0]]
        if reader.name in _SUMS:
            return True
        return reader.name not in _WEIGHTED and self._leads_to_sum(readers[0])
