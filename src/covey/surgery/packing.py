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
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Node

from covey.errors import ConversionError, CoveyError
from covey.networks.calls import Output, pick
from covey.networks.layers import owner_of, ties
from covey.seeds import random_state_kept
from covey.surgery.packed_checks import check_packed
from covey.surgery.packed_functions import FixedInput
from covey.surgery.packer import FRONT, SHARED, VALUE, Packer, new_name
from covey.surgery.packing_functions import pack_function
from covey.surgery.packing_layers import pack_layer
from covey.surgery.source import failure, module_names
from covey.surgery.torch_internals import leaves, map_leaves, shapes_of_nodes

_AS_IT_IS = "Use the ensemble as it is (run='loop' or 'batched')."


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
        ConversionError: the architecture cannot be traced, ties tensors of different layers, or answers otherwise
            when it is packed.
    """
    _check_ties(members[0])
    _check_hooks(members[0])
    try:
        packed = _packed(members, _inputs(members[0], args, kwargs), output)
        check_packed(packed, members, args, kwargs, output)
    except CoveyError:
        raise
    except Exception as problem:
        raise ConversionError(
            f"the network cannot be packed into one: {type(problem).__name__}: {problem}. {_AS_IT_IS}"
        ) from problem
    return packed


def _packed(members: Sequence[nn.Module], inputs: _Inputs, output: Output) -> nn.Module:
    root = nn.Module()
    # Training first: it shows which buffers change, so that each member gets its own.
    forms: dict[str, str] = {}
    bare: set[str] = set()
    training = _packed_graph(members, inputs, root, forms, bare, training=True)
    evaluating = _packed_graph(members, inputs, root, forms, bare, training=False)
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
                f"tie would break. {_AS_IT_IS}"
            )


def _check_hooks(network: nn.Module) -> None:
    """Hooks belong to layers that a packed network does not have."""
    for path, module in network.named_modules():
        if any(getattr(module, kind) for kind in _HOOKS):
            raise ConversionError(
                f"the network cannot be packed into one: module {path!r} has a hook, which would be lost. "
                f"Remove it first. {_AS_IT_IS}"
            )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class _Inputs:
    """What the example gives a network.

    Args:
        values: each input by the name that it has in the packed network, with defaults filled in.
        unnamed: the names of those that the network takes as *args.
        options: the names of those that the network takes as **kwargs.
    """

    values: dict[str, Any]
    unnamed: tuple[str, ...]
    options: tuple[str, ...]

    def is_fixed(self, name: str) -> bool:
        """Whether an input holds no tensor; the packed network keeps to its value."""
        return not any(isinstance(leaf, Tensor) for leaf in leaves(self.values[name]))


def _inputs(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> _Inputs:
    signature = inspect.signature(network.forward)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values: dict[str, Any] = {}
    unnamed: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            unnamed = {f"{name}_{number}": each for number, each in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            options = value
        else:
            values[name] = value
    return _Inputs({**values, **unnamed, **options}, tuple(unnamed), tuple(options))


# --- tracing -----------------------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    """Follows buffers as it follows parameters; else what is computed from them would be a constant.

    Args:
        inputs: the example's; what holds no tensor keeps its value, by which the network's code may decide.
    """

    proxy_buffer_attributes = True

    def __init__(self, inputs: _Inputs) -> None:
        super().__init__()
        self.inputs = inputs

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """What the network is called with while it is traced."""
        forward, given = super().create_args_for_root(*args, **kwargs)
        return forward, [self._given(value) for value in given]

    def _given(self, value: Any) -> Any:
        if not isinstance(value, fx.Proxy):
            return value  # the network itself
        name = str(value.node.target)
        if not name.startswith("*"):
            return self.inputs.values[name] if self.inputs.is_fixed(name) else value
        self.graph.erase_node(value.node)  # torch.fx has one name for any number of inputs
        if name.startswith("**"):
            return {each: self._one_of_any(each) for each in self.inputs.options}
        return tuple(map(self._one_of_any, self.inputs.unnamed))

    def _one_of_any(self, name: str) -> Any:
        proxy = self.create_proxy("placeholder", name, (), {})
        return self.inputs.values[name] if self.inputs.is_fixed(name) else proxy


def _trace(network: nn.Module, inputs: _Inputs) -> fx.GraphModule:
    """Trace with torch.fx, which cannot follow `len(x)`: while it traces, that is the first size."""
    scopes = _users_globals(network)
    try:
        for scope in scopes:
            scope["len"] = _len
        tracer = _Tracer(inputs)
        graph = tracer.trace(network)
        return fx.GraphModule(tracer.root, graph)
    except Exception as problem:
        place = failure(problem, module_names(network))
        at = f" ({place})" if place else ""
        raise ConversionError(
            f"the network cannot be packed into one, because torch.fx cannot trace it{at}: {problem}. {_AS_IT_IS}"
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
    inputs: _Inputs,
    root: nn.Module,
    forms: dict[str, str],
    bare: set[str],
    training: bool,
) -> fx.GraphModule:
    """One member's graph in train or eval mode, written again for all; layers go into `root`."""
    example = copy.deepcopy(members[0]).train(training)
    traced = _trace(example, inputs)
    names = [str(node.target) for node in traced.graph.nodes if node.op == "placeholder"]
    values = tuple(map_leaves(_copied, inputs.values[name]) for name in names)
    with torch.no_grad(), random_state_kept(example):
        shapes = shapes_of_nodes(copy.deepcopy(traced).eval(), values)
    packer = Packer(list(members), shapes, root, traced, forms, bare)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            _input(packer, node, inputs)
        else:
            _NODE_RULES[node.op](packer, node)
    return fx.GraphModule(root, packer.graph, "Packed")


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _input(packer: Packer, node: Node, inputs: _Inputs) -> None:
    name = str(node.target)
    if not inputs.is_fixed(name):
        default = node.args[0] if node.args else inspect.Signature.empty
        packer.put(node, packer.graph.placeholder(name, default_value=default), SHARED)
        return
    value = inputs.values[name]
    made = packer.graph.placeholder(name, default_value=value)
    packer.put(node, made, VALUE)
    packer.module(f"fixed_{name}", FixedInput(name, value), made)


def _tensor(packer: Packer, node: Node) -> None:
    """A parameter or buffer that the network's code reads: stacked, or shared if it is a buffer that all have alike."""
    read = operator.attrgetter(str(node.target))
    try:
        each = list(map(read, packer.members))
    except AttributeError:  # a constant that the code made while it was traced
        constant = read(packer.traced)
        name = _constant(packer.root, new_name(node), constant)
        packer.put(node, packer.graph.get_attr(name), SHARED)
        return
    if not _is_only_asked(node):
        packer.read(str(node.target))
    name = new_name(node)
    if not hasattr(packer.root, name):
        _store(packer.root, name, each, _is_written(node))
    # A stacked tensor has one axis more. It may have been stored for the other mode's graph.
    stored = getattr(packer.root, name)
    layout = SHARED if stored.dim() == each[0].dim() else FRONT
    packer.put(node, packer.graph.get_attr(name), layout)


def _is_only_asked(node: Node) -> bool:
    """Whether only a tensor's type, device or shape is wanted."""
    return all(user.target is getattr or user.target in ("size", "dim") for user in node.users)


def _is_written(node: Node) -> bool:
    """Whether a function that is called with a buffer may change it, so that each member needs its own."""
    for user in node.users:
        target = user.target
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name in ("batch_norm", "instance_norm", "iadd", "setitem"):
            return True
        if user.op == "call_method" and name.endswith("_") and not name.endswith("__"):
            return True
    return False


def _constant(root: nn.Module, name: str, value: Tensor) -> str:
    """Give the packed network a constant, under a name that no other one has."""
    for number in itertools.count():
        numbered = f"{name}_{number}"
        if not hasattr(root, numbered):
            root.register_buffer(numbered, value.detach().clone(), persistent=False)
        stored = getattr(root, numbered)
        if stored.dtype == value.dtype and torch.equal(stored, value):
            return numbered
    raise AssertionError


def _store(root: nn.Module, name: str, each: list[Tensor], is_written: bool) -> None:
    """Give the packed network the members' tensors under one name."""
    first = each[0]
    if isinstance(first, nn.Parameter):
        stacked = torch.stack([tensor.detach() for tensor in each])
        root.register_parameter(name, nn.Parameter(stacked, first.requires_grad))
    elif not is_written and all(torch.equal(tensor, first) for tensor in each):
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
        layout = packer.layout[part]
        made = packer.front(part)
        if layout == SHARED:
            made = packer.method("unsqueeze", made, 0)
            kept = [-1] * packer.rank(part)
            made = packer.method("expand", made, packer.count, *kept)
        return made

    for part in node.all_input_nodes:
        if not packer.is_tensor(part) and packer.layout[part] not in (FRONT, VALUE):
            raise ConversionError(
                f"the network cannot be packed into one: it returns a tuple as {part.target} gives it. Return its "
                f"parts. {_AS_IT_IS}"
            )

    answer = packer.translate(node.args[0], in_front)
    packer.graph.output(answer)


_NODE_RULES: dict[str, Callable[[Packer, Node], None]] = {
    "get_attr": _tensor,
    "call_module": pack_layer,
    "call_method": _method,
    "call_function": _function,
    "output": _output,
}
