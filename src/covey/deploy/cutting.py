"""Channels that nothing reads are cut out of a graph: what a Masksembles member masks away was never its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Graph, Node

from covey.deploy.constants import Constants
from covey.deploy.simplify import CONVOLUTIONS, LINEAR, argument, is_constant, set_layer

_aten = torch.ops.aten
MULTIPLE = 8
"""Channels stay a multiple of this, which the kernels of processors are made for."""

_ELEMENTWISE = (
    _aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.tanh.default, _aten.sigmoid.default,
    _aten.elu.default, _aten.leaky_relu.default, _aten.hardtanh.default, _aten.hardswish.default,
    _aten.hardsigmoid.default, _aten.softplus.default, _aten.mish.default,
)  # fmt: skip
_POOLS = {
    _aten.max_pool1d.default: 1, _aten.avg_pool1d.default: 1, _aten.adaptive_avg_pool1d.default: 1,
    _aten.max_pool2d.default: 2, _aten.avg_pool2d.default: 2, _aten.adaptive_avg_pool2d.default: 2,
    _aten.max_pool3d.default: 3, _aten.avg_pool3d.default: 3, _aten.adaptive_avg_pool3d.default: 3,
}  # fmt: skip
"""Pools, and how many axes they pool, which are the last ones."""


@dataclass
class _Reach:
    """Where a layer's channels go: the layers that read them, unless something else does too."""

    layers: list[Node] = field(default_factory=list)
    is_open: bool = False  # whether something else reads them


def cut_channels(graph: Graph, constants: Constants) -> int:
    """Cut channels that every reader multiplies by zero; how many there were."""
    total = 0
    for layer in list(graph.nodes):
        if not _is_plain_layer(layer):
            continue
        reach = _Reach()
        axis = 1 if layer.target in CONVOLUTIONS else layer.meta["val"].ndim - 1
        _follow(layer, axis, reach)
        if reach.is_open or not reach.layers:
            continue
        kept = _kept(reach.layers, constants)
        channels = len(constants.of(argument(layer, 1)))
        if len(kept) < channels:
            total += channels - len(kept)
            _cut(graph, constants, layer, reach.layers, kept)
    graph.eliminate_dead_code()
    return total


def _is_plain_layer(node: Node) -> bool:
    """Whether this is a linear layer or convolution without groups, with constant tensors."""
    if node.target not in (*CONVOLUTIONS, LINEAR) or not is_constant(node.args[1]):
        return False
    bias = argument(node, 2)
    if bias is not None and not is_constant(bias):
        return False
    return node.target is LINEAR or argument(node, 6) in (None, 1)


def _follow(node: Node, axis: int, reach: _Reach) -> None:
    """Follow the channels, which are on this axis of a node's result, to whoever reads them."""
    for user in node.users:
        if user.args[0] is not node or user.all_input_nodes.count(node) != 1:
            reach.is_open = True
        elif _is_plain_layer(user) and axis == _axis_of_inputs(user, node):
            reach.layers.append(user)
        elif _keeps_channels(user, node, axis):
            _follow(user, axis, reach)
        else:
            reach.is_open = True
        if reach.is_open:
            return


def _axis_of_inputs(layer: Node, inputs: Node) -> int:
    return 1 if layer.target in CONVOLUTIONS else inputs.meta["val"].ndim - 1


def _keeps_channels(user: Node, node: Node, axis: int) -> bool:
    """Whether each channel of the result depends on that channel alone, and is on the same axis."""
    if len(user.all_input_nodes) != 1:
        return False
    if user.target in _ELEMENTWISE:
        return True
    if axis != 1:
        return False
    before = node.meta["val"].shape
    if user.target in _POOLS:
        # (B, C) is one image of B channels to a pool, which then mixes features
        return len(before) - _POOLS[user.target] > axis
    if user.target is _aten.mean.dim:
        dims = [dim % len(before) for dim in argument(user, 1)]
        return min(dims) > axis
    if user.target in (_aten.flatten.using_ints, _aten.squeeze.dims):
        # (B, C, 1, 1) as (B, C)
        return len(user.meta["val"].shape) == 2 and all(size == 1 for size in before[2:])
    return False


def _kept(readers: list[Node], constants: Constants) -> Tensor:
    """Numbers of the channels that some reader does not multiply by zero, and some more up to the next multiple."""
    used: Tensor | None = None
    for reader in readers:
        weight = constants.of(argument(reader, 1))
        own = weight.transpose(0, 1).flatten(1).ne(0).any(1)
        used = own if used is None else used | own
    assert used is not None
    wanted = min(-(-int(used.sum()) // MULTIPLE) * MULTIPLE, len(used))
    # unused channels that fill up come last in the order of use, and all stay in the order of the network
    order = torch.argsort(used.int(), descending=True, stable=True)
    return order[: max(wanted, 1)].sort().values


def _cut(graph: Graph, constants: Constants, layer: Node, readers: list[Node], kept: Tensor) -> None:
    weight, bias = _tensors(layer, constants)
    set_layer(graph, constants, layer, weight[kept], None if bias is None else bias[kept])
    for reader in dict.fromkeys(readers):
        weight, bias = _tensors(reader, constants)
        set_layer(graph, constants, reader, weight[:, kept], bias)


def _tensors(layer: Node, constants: Constants) -> tuple[Tensor, Tensor | None]:
    bias = argument(layer, 2)
    weight = constants.of(argument(layer, 1))
    return weight, None if bias is None else constants.of(bias)
