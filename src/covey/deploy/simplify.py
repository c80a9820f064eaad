"""A graph that gives the same answer with less work."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from covey.deploy.constants import Constants

_aten = torch.ops.aten
CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)
LINEAR = _aten.linear.default
BATCH_NORM = _aten.batch_norm.default
_BATCH_NORM_OF_THREE = _aten._native_batch_norm_legit_no_training.default
_COPIES = (
    _aten.clone.default,
    _aten.alias.default,
    _aten.detach.default,
    _aten.detach_.default,  # of a tensor that is made in the code: it counts as a change, and torch refuses to run it
    _aten.lift_fresh_copy.default,
)
_IN_PLACE = {_aten.relu.default: _aten.relu_.default, _aten.add.Tensor: _aten.add_.Tensor}
_MAKES_NEW = (*CONVOLUTIONS, LINEAR, _aten.add.Tensor, _aten.add_.Tensor)
_UNSAFE = (torch.Tag.nondeterministic_seeded,)


def without_copies(graph: Graph) -> None:
    """Drop copies, which matter only where something is written in place."""
    for node in list(graph.nodes):
        if node.target in _COPIES and "memory_format" not in node.kwargs:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def compute_constants(graph: Graph, constants: Constants) -> None:
    """Compute once whatever depends on no input: generated weights, normalised weights, tables of positions."""
    values: dict[Node, Any] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            values[node] = constants.of(node)
        if node.op != "call_function" or not all(parent in values for parent in node.all_input_nodes):
            continue
        if _is_random(node) or not node.all_input_nodes:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            values[node] = node.target(*args, **kwargs)
        if isinstance(values[node], Tensor):
            with graph.inserting_before(node):
                constant = constants.node(graph, node.name, values[node])
            node.replace_all_uses_with(constant)
            values[constant] = values[node]
    graph.eliminate_dead_code()


def merge_equal(graph: Graph) -> None:
    """Compute once what several members compute from the same tensors, such as a shared prefix."""
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "get_attr") or _is_random(node):
            continue
        key = (node.op, node.target, _key(node.args), _key(node.kwargs))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node


def _key(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in sorted(value.items()))
    # 1, 1.0 and True are equal to Python, and not to torch
    return value if isinstance(value, Node) else (type(value), value)


def _is_random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return any(tag in tags for tag in _UNSAFE)


def write_in_place(graph: Graph) -> None:
    """Let additions and ReLUs write into what a layer or an addition just made for them alone.

    Gradients with respect to inputs stay right: neither a layer nor an addition keeps its result for them.
    """
    for node in graph.nodes:
        if node.target not in _IN_PLACE or not _may_overwrite(node):
            continue
        node.target = _IN_PLACE[node.target]


def _may_overwrite(node: Node) -> bool:
    """Whether the first operand is new, read by nobody else, and as large as the result."""
    operand = node.args[0]
    if not isinstance(operand, Node) or operand.target not in _MAKES_NEW or len(operand.users) != 1:
        return False
    own, result = (each.meta.get("val") for each in (operand, node))
    if not isinstance(own, Tensor) or not isinstance(result, Tensor):
        return False
    return operand not in node.args[1:] and (own.shape, own.dtype) == (result.shape, result.dtype)


def fold_batch_norms(graph: Graph, constants: Constants, *, keep_shared: bool = False) -> None:
    """Fold a BatchNorm into the convolution or linear layer before it, where nothing else reads that layer.

    Args:
        graph: to change.
        constants: its tensors.
        keep_shared: leave layers alone whose weight several layers use, which would then be stored several times.
    """
    for norm in list(graph.nodes):
        if not _is_settled_norm(norm):
            continue
        layer = argument(norm, 0)
        if _foldable(layer, keep_shared):
            _fold(graph, constants, norm, layer)
            norm.replace_all_uses_with(layer)
    graph.eliminate_dead_code()


def one_batch_norm(graph: Graph) -> None:
    """Write every BatchNorm of running statistics in the same way; torch has two."""
    for norm in list(graph.nodes):
        if norm.target is not _BATCH_NORM_OF_THREE:
            continue
        readers = [user for user in norm.users if user.target is operator.getitem and user.args[1] == 0]
        if len(readers) != len(norm.users):
            continue
        *tensors, momentum, eps = norm.args
        with graph.inserting_before(norm):
            plain = graph.call_function(BATCH_NORM, (*tensors, False, momentum, eps, False))
        plain.meta = {**norm.meta, "val": norm.meta["val"][0]}
        for reader in readers:
            reader.replace_all_uses_with(plain)
    graph.eliminate_dead_code()


def _is_settled_norm(node: Node) -> bool:
    """Whether this is a BatchNorm with constant tensors that uses its running statistics."""
    if node.target is not BATCH_NORM or node.args[5] is not False:
        return False
    gain, shift, mean, variance = node.args[1:5]
    return all(is_constant(each) for each in (mean, variance)) and all(
        each is None or is_constant(each) for each in (gain, shift)
    )


def is_constant(value: Any) -> bool:
    """Whether an argument is a tensor of the graph's own."""
    return isinstance(value, Node) and value.op == "get_attr"


def _foldable(layer: Any, keep_shared: bool) -> bool:
    if not isinstance(layer, Node) or layer.target not in (*CONVOLUTIONS, LINEAR) or len(layer.users) != 1:
        return False
    weight, bias = argument(layer, 1), argument(layer, 2)
    if not is_constant(weight) or not (bias is None or is_constant(bias)):
        return False
    if layer.target is LINEAR and layer.meta["val"].ndim != 2:
        return False  # the norm's channels are the axis after the batch, a linear layer's features the last
    return not keep_shared or len(weight.users) == 1


def argument(node: Node, position: int) -> Any:
    """A positional argument, or None where it was left out."""
    return node.args[position] if len(node.args) > position else None


def _fold(graph: Graph, constants: Constants, norm: Node, layer: Node) -> None:
    def value(node: Any) -> Tensor | None:
        return None if node is None else constants.of(node).double()

    gain, shift, mean, variance = (value(node) for node in norm.args[1:5])
    weight, bias = value(layer.args[1]), value(argument(layer, 2))
    assert weight is not None
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + argument(norm, 7))
    scale = scale if gain is None else scale * gain
    offset = -mean * scale if bias is None else (bias - mean) * scale
    offset = offset if shift is None else offset + shift
    dtype = constants.of(layer.args[1]).dtype
    new_weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    set_layer(graph, constants, layer, new_weight.to(dtype), offset.to(dtype))


def set_layer(graph: Graph, constants: Constants, layer: Node, weight: Tensor, bias: Tensor | None) -> None:
    """Give a convolution or linear layer other tensors."""
    name = str(argument(layer, 1).target)
    with graph.inserting_before(layer):
        new_weight = constants.node(graph, name, weight)
        new_bias = None if bias is None else constants.node(graph, f"{name}_bias", bias)
    layer.args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
