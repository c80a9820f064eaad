"""How each function and tensor method is written for M members at once: small rules, looked up by name.

A rule gets the packer and the call, writes the operation with members side by side and returns True; or it returns
False, because members get in each other's way. Then, and for functions without a rule, members get an axis of
their own in front and the function is applied over it. To pack another function well, write a rule and add it to
`_RULES`; without one it is right, but slower.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from covey.errors import ConversionError
from covey.surgery import packed_functions
from covey.surgery.packer import FRONT, SHARED, VALUE, Layout, Packer, argument

_ELEMENTWISE = (
    "abs",
    "add",
    "add_",
    "clamp",
    "clone",
    "contiguous",
    "cos",
    "detach",
    "div",
    "dropout",
    "dropout2d",
    "elu",
    "erf",
    "exp",
    "float",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "iadd",
    "imul",
    "isub",
    "leaky_relu",
    "mish",
    "mul",
    "mul_",
    "neg",
    "pow",
    "relu",
    "relu6",
    "relu_",
    "rsqrt",
    "selu",
    "sigmoid",
    "sigmoid_",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "sub",
    "tanh",
    "truediv",
)
_OVER_SPACE = (
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "boolean_dispatch",  # what F.max_pool2d and its like are called in some releases of PyTorch, as is "fn"
    "fn",
    "interpolate",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
)
_QUESTIONS = ("size", "dim", "getattr")
_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
)
_RANDOM = (
    *_DROPOUTS,
    "bernoulli",
    "bernoulli_",
    "exponential_",
    "multinomial",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rrelu",
    "uniform_",
)


@dataclass(frozen=True)
class FunctionCall:
    """A function or method that the traced network calls.

    Args:
        node: the call.
        function: what is called.
        inputs: the nodes of its tensors.
        layouts: where members are in them.
    """

    node: Node
    function: Callable[..., Any]
    inputs: list[Node]
    layouts: set[Layout]

    @property
    def source(self) -> Any:
        """The first argument, as a rule the tensor that something is done to."""
        return self.node.args[0] if self.node.args else None


Rule = Callable[[Packer, FunctionCall], bool]


def pack_function(
    packer: Packer,
    node: Node,
    name: str,
    function: Callable[..., Any],
) -> None:
    """Write the call of a function or tensor method for all members.

    Args:
        packer: the packed network so far.
        node: the call.
        name: the function's name.
        function: the function itself; for a method, that of torch.Tensor.
    """
    inputs = [each for each in node.all_input_nodes if packer.layout[each] != VALUE]
    layouts = {packer.layout[each] for each in inputs}
    call = FunctionCall(node, function, inputs, layouts)
    if name in _QUESTIONS and inputs:
        _answer_question(packer, call, name)
    elif layouts <= {SHARED} and _draws(node, name):
        _draw_for_each(packer, call)
    elif layouts <= {SHARED}:
        packer.copy(node, SHARED if inputs or packer.is_tensor(node) else VALUE)
    else:
        rule = _RULES.get(name)
        if rule is None or not rule(packer, call):
            _apply_over_members(packer, node, function)


def _draws(node: Node, name: str) -> bool:
    """Whether a function draws random numbers, as dropout does in train mode only."""
    if name in _DROPOUTS:
        return argument(node, 2, "training", True) is not False
    return name in _RANDOM


def _draw_for_each(packer: Packer, call: FunctionCall) -> None:
    """Random numbers that all members would share are drawn once for each instead."""
    draw = packed_functions.ForEachMember(call.function, packer.count)
    args = packer.translate(call.node.args)
    kwargs = packer.translate(dict(call.node.kwargs))
    made = packer.module("for_each_member", draw, *args, **kwargs)
    packer.put(call.node, made, FRONT)
    if str(call.node.target).endswith("_"):  # in place, so the tensor is the members' own from here on
        packer.put(call.source, made, FRONT)


# --- questions about a tensor ------------------------------------------------------------------------------------


def _answer_question(packer: Packer, call: FunctionCall, name: str) -> None:
    """Questions about a tensor's shape are answered for one member."""
    node = call.node
    layout = packer.layout[call.source]
    question = node.args[1] if name == "getattr" else name
    if layout == SHARED or question in ("dtype", "device"):
        packer.copy(node, VALUE)  # the packed tensor gives the same answer
        return
    if question not in ("shape", "size", "dim", "ndim"):
        _apply_over_members(packer, node, getattr)
        return
    ask = packed_functions.MemberShape(layout, packer.count, counted=question in ("dim", "ndim"))
    answer = packer.module("member_shape", ask, packer.new[call.source])
    if question == "size" and len(node.args) > 1:
        answer = packer.function(operator.getitem, answer, node.args[1])
    packer.put(node, answer, VALUE)


# --- members stay side by side -----------------------------------------------------------------------------------


def _elementwise(packer: Packer, call: FunctionCall) -> bool:
    """Keep members side by side if every input can be brought to the same axis."""
    rank = packer.rank(call.node)
    axes = set()
    for node in call.inputs:
        axis = packer.layout[node]
        if isinstance(axis, int) and packer.rank(node) == rank:
            axes.add(axis)
    if len(axes) != 1:
        return False
    (axis,) = axes
    replaced: dict[Node, Node] = {}
    for node in call.inputs:
        if _broadcasts(packer, node, axis, rank):
            replaced[node] = packer.new[node]
        elif _is_alike(packer, node, call.node, axis):
            replaced[node] = packer.side(node, axis)
        else:
            return False
    packer.copy(call.node, axis, replaced)
    return True


def _is_alike(
    packer: Packer,
    node: Node,
    other: Node,
    axis: int,
) -> bool:
    """Whether two tensors have as many axes, and as many entries along one of them."""
    if packer.rank(node) != packer.rank(other):
        return False
    return packer.size(node, axis) == packer.size(other, axis)


def _broadcasts(
    packer: Packer,
    node: Node,
    axis: int,
    rank: int,
) -> bool:
    """Whether a shared tensor has no entries of its own along the members' axis, so it serves all as it is."""
    if packer.layout[node] != SHARED:
        return False
    own_axis = axis - (rank - packer.rank(node))
    return own_axis < 0 or packer.size(node, own_axis) == 1


def _over_space(packer: Packer, call: FunctionCall) -> bool:
    if call.layouts != {1}:
        return False
    packer.copy(call.node, 1)
    return True


def _reduction(packer: Packer, call: FunctionCall) -> bool:
    """A mean or sum over axes other than the members'."""
    axis = packer.layout[call.source]
    given = argument(call.node, 1, "dim")
    has_more_options = len(call.node.args) > 3
    if not isinstance(axis, int) or given is None or has_more_options:
        return False
    rank = packer.rank(call.source)
    reduced = given if isinstance(given, tuple | list) else (given,)
    removed_before = 0
    for dim in reduced:
        if dim % rank == axis:
            return False
        removed_before += dim % rank < axis
    keeps_axes = bool(argument(call.node, 2, "keepdim", False))
    packer.copy(call.node, axis if keeps_axes else axis - removed_before)
    return True


def _flatten(packer: Packer, call: FunctionCall) -> bool:
    """Flattening (B, M C, ...) from the first axis on keeps members side by side."""
    start = argument(call.node, 1, "start_dim")
    has_end = len(call.node.args) > 2
    if call.layouts != {1} or start != 1 or has_end:
        return False
    packer.copy(call.node, 1)
    return True


def _concatenation(packer: Packer, call: FunctionCall) -> bool:
    node = call.node
    dim = argument(node, 1, "dim", 0)
    if not isinstance(dim, int):
        return False
    given: Any = node.args[0] if node.args else node.kwargs["tensors"]
    parts = list(given)
    dim = dim % packer.rank(node)
    axis = _members_axis(packer, parts, dim)
    if axis != dim:
        sides = [packer.side(part, axis) for part in parts]
        made = packer.function(torch.cat, sides, dim)
        packer.put(node, made, axis)
        return True
    # Along the members' own axis each member's parts must come together, so members get an axis for a while.
    split = []
    for part in parts:
        side = packer.side(part, dim)
        split.append(packer.split(side, dim))
    joined = packer.function(torch.cat, split, dim + 1)
    packer.put(node, packer.join(joined, dim), dim)
    return True


def _members_axis(packer: Packer, parts: list[Node], default: int) -> int:
    """The axis on which the first part that has its members side by side has them."""
    for part in parts:
        axis = packer.layout[part]
        if isinstance(axis, int):
            return axis
    return default


# --- members in front --------------------------------------------------------------------------------------------


def _tuple_item(packer: Packer, call: FunctionCall) -> bool:
    """What is taken out of a tuple lies as the tuple's tensors do. Taking a part of a tensor is another matter."""
    if packer.is_tensor(call.source):
        return False
    packer.copy(call.node, packer.layout[call.source])
    return True


def _batch_norm(packer: Packer, call: FunctionCall) -> bool:
    """One norm over M times the channels; its statistics are views of the members', so they change with it."""
    args = list(call.node.args)
    given = [argument(call.node, place, name) for place, name in enumerate(_BATCH_NORM_TENSORS)]
    x, mean, variance, weight, bias = given
    is_known = all(statistic is None or packer.layout[statistic] == FRONT for statistic in (mean, variance))
    if not is_known or packer.rank(x) < 2:
        return False
    sides: list[Node | None] = [packer.side(x, 1)]
    for tensor in (mean, variance, weight, bias):
        sides.append(None if tensor is None else packer.side(tensor, 0))
    rest = packer.translate(tuple(args[5:]))
    options = {name: value for name, value in call.node.kwargs.items() if name not in _BATCH_NORM_TENSORS}
    made = packer.graph.call_function(F.batch_norm, (*sides, *rest), packer.translate(options))
    packer.put(call.node, made, 1)
    return True


_BATCH_NORM_TENSORS = ("input", "running_mean", "running_var", "weight", "bias")


def _attention(packer: Packer, call: FunctionCall) -> bool:
    query_key_value = call.node.args[:3]
    if not all(map(packer.has_members, query_key_value)):
        return False
    fronts = {node: packer.front(node) for node in call.inputs}

    def in_front(node: Node) -> Node:
        return fronts.get(node, packer.new[node])

    args = packer.translate(call.node.args, in_front)
    kwargs = packer.translate(dict(call.node.kwargs), in_front)
    made = packer.graph.call_function(packed_functions.attention, args, kwargs)
    packer.put(call.node, made, FRONT)
    return True


def _assignment(packer: Packer, call: FunctionCall) -> bool:
    raise ConversionError("the network cannot be packed into one: it writes into a tensor (x[...] = y).")


def _apply_over_members(packer: Packer, node: Node, function: Callable[..., Any]) -> None:
    """The function as it is, over members in front."""
    values = [*node.args, *node.kwargs.values()]
    fronts = []
    in_dims = []
    for value in values:
        fronts.append(packer.translate(value, packer.front))
        in_dims.append(0 if packer.has_members(value) else None)
    for value in values:
        _check_not_mixed(packer, node, value)
    over = packed_functions.OverMembers(function, tuple(in_dims), tuple(node.kwargs))
    made = packer.module("over_members", over, *fronts)
    packer.put(node, made, FRONT)


def _check_not_mixed(packer: Packer, node: Node, value: Any) -> None:
    """A list of tensors is mapped over members as a whole, so either all of them or none must have members."""
    if not isinstance(value, tuple | list) or not packer.has_members(value):
        return
    if not all(map(packer.has_members, value)):
        raise ConversionError(
            f"the network cannot be packed into one: {node.target} mixes members' and other data."
        )


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_OVER_SPACE, _over_space),
    "amax": _reduction,
    "mean": _reduction,
    "sum": _reduction,
    "flatten": _flatten,
    "cat": _concatenation,
    "concat": _concatenation,
    "getitem": _tuple_item,
    "batch_norm": _batch_norm,
    "scaled_dot_product_attention": _attention,
    "setitem": _assignment,
    "__setitem__": _assignment,
}
