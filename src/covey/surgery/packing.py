"""M networks of one architecture as a single network with grouped layers.

The architecture is traced (torch.fx) and written again for all members at once. Between convolutions and linear
layers members lie side by side on the channel axis, so convolutions become grouped convolutions and norms become wider
norms; where the network does something else with its channels (attention heads, chunks, sums over channels),
members get an axis of their own in front and the function is applied over it. What is not traced is an error.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Node

from covey.errors import ConversionError
from covey.networks.calls import Output, pick
from covey.networks.layers import owner_of, ties
from covey.seeds import random_state_kept
from covey.surgery.packer import FRONT, SHARED, Packer, new_name
from covey.surgery.packing_functions import pack_function
from covey.surgery.packing_layers import pack_layer
from covey.surgery.source import failure, module_names
from covey.surgery.torch_internals import shapes_of_nodes


def pack(
    members: Sequence[nn.Module],
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
) -> nn.Module:
    """Make one network that answers as all members do.

    Args:
        members: plain networks of one architecture and one set of shapes.
        args: an example's positional inputs.
        kwargs: its inputs by keyword.
        output: which part of a member's answer is wanted.

    Returns:
        A network that takes what one member takes and returns (M, B, ...).

    Raises:
        ConversionError: the architecture cannot be traced, or ties tensors of different layers.
    """
    _check_ties(members[0])
    inputs = _positional(members[0], args, kwargs)
    root = nn.Module()
    evaluating = _packed_graph(members, inputs, root, training=False)
    training = _packed_graph(members, inputs, root, training=True)
    body: nn.Module = evaluating
    if evaluating.code != training.code:
        body = _TwoWays(evaluating, training)
    return body if output is None else _Picked(body, output)


class _TwoWays(nn.Module):
    """A network whose code asks whether it is training: one graph for each answer, over the same layers."""

    def __init__(self, when_evaluating: nn.Module, when_training: nn.Module) -> None:
        super().__init__()
        self.when_evaluating = when_evaluating
        self.when_training = when_training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        body = self.when_training if self.training else self.when_evaluating
        return body(*args, **kwargs)


class _Picked(nn.Module):
    """The packed network, and the part of its answer that is wanted."""

    def __init__(self, body: nn.Module, output: Output) -> None:
        super().__init__()
        self.body = body
        self.output = output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return pick(self.body(*args, **kwargs), self.output)


def _check_ties(network: nn.Module) -> None:
    for name, first in ties(network).items():
        owner = network.get_submodule(owner_of(name))
        first_owner = network.get_submodule(owner_of(first))
        if owner is not first_owner:
            raise ConversionError(
                f"{name!r} and {first!r} are one tensor; in a packed network their layers need other shapes, so the "
                "tie would break. Use the ensemble as it is (run='loop' or 'batched')."
            )


def _positional(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """All inputs by position, with defaults filled in, as a traced network takes them."""
    signature = inspect.signature(network.forward)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return (*bound.args, *bound.kwargs.values())


# --- tracing -----------------------------------------------------------------------------------------------------


def _trace(network: nn.Module) -> fx.GraphModule:
    """Trace with torch.fx, which cannot follow `len(x)`: while it traces, that is the first size."""
    scopes = _users_globals(network)
    try:
        for scope in scopes:
            scope["len"] = _len
        return fx.symbolic_trace(network)
    except Exception as problem:
        place = failure(problem, module_names(network))
        at = f" ({place})" if place else ""
        raise ConversionError(
            f"the network cannot be packed into one, because torch.fx cannot trace it{at}: {problem}. "
            "Use the ensemble as it is (run='loop' or 'batched')."
        ) from problem
    finally:
        for scope in scopes:
            scope.pop("len", None)


def _users_globals(network: nn.Module) -> list[dict[str, Any]]:
    """The global names of the files in which forwards are written, but PyTorch's own and those that define len."""
    scopes: dict[int, dict[str, Any]] = {}
    for module in network.modules():
        scope = getattr(type(module).forward, "__globals__", None)
        if scope is None or "len" in scope:
            continue
        is_torchs = str(scope.get("__name__", "")).startswith("torch.")
        if not is_torchs:
            scopes[id(scope)] = scope
    return list(scopes.values())


def _len(x: Any) -> Any:
    if isinstance(x, fx.Proxy):
        return x.size(0)
    return builtins.len(x)


# --- writing the network again -----------------------------------------------------------------------------------


def _packed_graph(
    members: Sequence[nn.Module],
    inputs: tuple,
    root: nn.Module,
    training: bool,
) -> fx.GraphModule:
    """One member's graph in train or eval mode, written again for all; layers go into `root`."""
    example = copy.deepcopy(members[0]).train(training)
    traced = _trace(example)
    with torch.no_grad(), random_state_kept(example):
        shapes = shapes_of_nodes(copy.deepcopy(traced).eval(), inputs)
    packer = Packer(list(members), shapes, root)
    for node in traced.graph.nodes:
        _NODE_RULES[node.op](packer, node)
    return fx.GraphModule(root, packer.graph, "Packed")


def _input(packer: Packer, node: Node) -> None:
    default = node.args[0] if node.args else inspect.Signature.empty
    made = packer.graph.placeholder(str(node.target), default_value=default)
    packer.put(node, made, SHARED)


def _tensor(packer: Packer, node: Node) -> None:
    """A parameter or buffer that the network's code reads: stacked, or shared if it is a buffer that all have alike."""
    name = new_name(node)
    read = operator.attrgetter(str(node.target))
    each = list(map(read, packer.members))
    if not hasattr(packer.root, name):
        _store(packer.root, name, each)
    # A stacked tensor has one axis more. It may have been stored for the other mode's graph.
    stored = getattr(packer.root, name)
    layout = SHARED if stored.dim() == each[0].dim() else FRONT
    packer.put(node, packer.graph.get_attr(name), layout)


def _store(root: nn.Module, name: str, each: list[Tensor]) -> None:
    """Give the packed network the members' tensors under one name."""
    first = each[0]
    if isinstance(first, nn.Parameter):
        stacked = torch.stack([tensor.detach() for tensor in each])
        root.register_parameter(name, nn.Parameter(stacked, first.requires_grad))
    elif all(torch.equal(tensor, first) for tensor in each):
        root.register_buffer(name, first.clone())
    else:
        root.register_buffer(name, torch.stack(each))


def _method(packer: Packer, node: Node) -> None:
    name = str(node.target)
    pack_function(packer, node, name, getattr(Tensor, name))


def _function(packer: Packer, node: Node) -> None:
    function: Any = node.target
    name = getattr(function, "__name__", str(function))
    pack_function(packer, node, name, function)


def _output(packer: Packer, node: Node) -> None:
    """Every tensor of the answer with members in front."""

    def in_front(part: Node) -> Node:
        made = packer.front(part)
        if packer.layout[part] == SHARED:
            made = packer.method("unsqueeze", made, 0)
            kept = [-1] * packer.rank(part)
            made = packer.method("expand", made, packer.count, *kept)
        return made

    answer = packer.translate(node.args[0], in_front)
    packer.graph.output(answer)


_NODE_RULES: dict[str, Callable[[Packer, Node], None]] = {
    "placeholder": _input,
    "get_attr": _tensor,
    "call_module": pack_layer,
    "call_method": _method,
    "call_function": _function,
    "output": _output,
}
