"""Keeps track of a network that is written again for M members at once: its graph, and where members are in a tensor.

A member's tensor of (B, C, ...) is found in the packed network in one of these layouts:

    SHARED   (B, C, ...)       the same for all members, as the input is
    1, 2...  (B, M C, ...)     members side by side on this axis, member after member
    FRONT    (M, B, C, ...)    members on an axis of their own in front
    VALUE    no tensor         a shape, a dtype, a number
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from covey.errors import ConversionError

Layout = str | int
Nodes = dict[Node, Node]

SHARED = "shared"
FRONT = "front"
VALUE = "value"


class Packer:
    """The packed network while it is being written, node by node.

    Args:
        members: the members' networks.
        shapes: what each node's tensor looks like for one member on the example, by the node's name.
        root: gets the packed layers; the graphs for training and evaluating share it.
        traced: one member as torch.fx traced it, which holds the constants that its code makes.
        forms: the name of the packed layer that each of the old network's layers became, by its path; the graphs
            share it too.
        bare: paths of the tensors that the network's code reads by themselves; likewise.
    """

    def __init__(
        self,
        members: list[nn.Module],
        shapes: dict[str, Any],
        root: nn.Module,
        traced: nn.Module,
        forms: dict[str, str],
        bare: set[str],
    ) -> None:
        self.members = members
        self.traced = traced
        self.forms = forms
        self.bare = bare
        self.count = len(members)
        self.shapes = shapes
        self.root = root
        self.graph = Graph()
        self.new: Nodes = {}
        self.layout: dict[Node, Layout] = {}

    # --- what is known of a tensor -------------------------------------------------------------------------------

    def rank(self, node: Node) -> int:
        """How many axes the tensor has for one member."""
        return len(self.shapes[node.name].shape)

    def size(self, node: Node, axis: int) -> int:
        """A size for one member on the example."""
        return self.shapes[node.name].shape[axis]

    def is_tensor(self, node: Node) -> bool:
        """Whether the node gives a tensor, and not a tuple of them."""
        return hasattr(self.shapes[node.name], "shape")

    def has_members(self, value: Any) -> bool:
        """Whether an argument (a node, or a list with nodes in it) holds tensors that differ between members."""
        layouts: list[Layout] = []
        map_arg(value, lambda node: layouts.append(self.layout[node]))
        return not set(layouts) <= {SHARED, VALUE}

    # --- tensors in the layout that is needed --------------------------------------------------------------------

    def front(self, node: Node) -> Node:
        """The tensor with members on an axis in front; shared ones as they are."""
        made = self.new[node]
        axis = self.layout[node]
        if not isinstance(axis, int):
            return made
        return self.method("movedim", self.split(made, axis), axis, 0)

    def side(self, node: Node, axis: int) -> Node:
        """The tensor with members side by side on `axis`; shared ones are repeated."""
        made = self.new[node]
        layout = self.layout[node]
        if layout == axis:
            return made
        if layout == SHARED:
            repeats = [1] * self.rank(node)
            repeats[axis] = self.count
            return self.method("repeat", made, *repeats)
        moved = self.method("movedim", self.front(node), 0, axis)
        return self.join(moved, axis)

    def split(self, made: Node, axis: int) -> Node:
        """Write (..., M C, ...) as (..., M, C, ...)."""
        return self.method("unflatten", made, axis, (self.count, -1))

    def join(self, made: Node, axis: int) -> Node:
        """Write (..., M, C, ...) as (..., M C, ...)."""
        return self.method("flatten", made, axis, axis + 1)

    # --- writing -------------------------------------------------------------------------------------------------

    def method(self, name: str, *args: Any) -> Node:
        """Write a call of a tensor's method."""
        return self.graph.call_method(name, args)

    def function(self, function: Callable[..., Any], *args: Any) -> Node:
        """Write a call of a function."""
        return self.graph.call_function(function, args)

    def module(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Node:
        """Write a call of a module without tensors; one that does the same may be there already."""
        for number in itertools.count():
            numbered = f"{name}_{number}"
            if not hasattr(self.root, numbered):
                self.root.add_module(numbered, module)
            if module.does_as(getattr(self.root, numbered)):
                return self.graph.call_module(numbered, args, kwargs)
        raise AssertionError

    def translate(self, value: Any, change: Callable[[Node], Node] | None = None) -> Any:
        """An argument with the old graph's nodes replaced by the new one's, or by what `change` makes of them."""
        if change is None:
            change = self.new.__getitem__
        return map_arg(value, change)

    def put(self, node: Node, made: Node, layout: Layout) -> None:
        """Remember what a node became and where its members are."""
        self.new[node] = made
        self.layout[node] = layout

    def copy(self, node: Node, layout: Layout, replaced: Nodes | None = None) -> None:
        """Write the same operation again, on the new graph's tensors or on those that `replaced` has for a node."""
        inputs = ChainMap(replaced or {}, self.new)
        made = self.graph.node_copy(node, inputs.__getitem__)
        self.put(node, made, layout)

    def add_layer(
        self,
        node: Node,
        module: nn.Module,
        layout: Layout,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        suffix: str = "",
    ) -> None:
        """Give the new network a layer in the place of a node's, and write its call.

        A layer that the old network calls twice is added once, so what is called twice stays one layer.
        """
        name = self._place(new_name(node) + suffix, module)
        path = str(node.target)
        self.forms.setdefault(path, name)
        self._check_one_copy()
        if self.forms[path] != name and not _tied(getattr(self.root, self.forms[path]), module):
            raise ConversionError(
                f"the network cannot be packed into one: its layer {path!r} is used in two ways, which need packed "
                "layers of two kinds. Use the ensemble as it is (run='loop' or 'batched')."
            )
        made = self.graph.call_module(name, args, kwargs)
        self.put(node, made, layout)

    def read(self, path: str) -> None:
        """Remember that the network's code reads a tensor by itself, without calling the layer that holds it."""
        self.bare.add(path)
        self._check_one_copy()

    def _check_one_copy(self) -> None:
        """A tensor that is read by itself and used by its layer too would be two in the packed network."""
        for path in self.bare:
            parts = path.split(".")
            holders = {".".join(parts[:end]) for end in range(1, len(parts))}
            if holders & self.forms.keys():
                raise ConversionError(
                    f"the network cannot be packed into one: {path!r} is used by its layer and by itself, and would "
                    "become two tensors. Use the ensemble as it is (run='loop' or 'batched')."
                )

    def _place(self, name: str, module: nn.Module) -> str:
        """Put a layer under this name, or under the next that is free or holds the same."""
        for number in itertools.count():
            numbered = f"{name}_{number}" if number else name
            if not hasattr(self.root, numbered):
                self.root.add_module(numbered, module)
                return numbered
            if _same_form(getattr(self.root, numbered), module):
                return numbered
        raise AssertionError


def _same_form(there: Any, module: Any) -> bool:
    """Whether two packed forms of one layer are called in the same way."""
    return type(there) is type(module) and getattr(there, "call", None) == getattr(module, "call", None)


def _tied(there: nn.Module, module: nn.Module) -> bool:
    """Let two packed forms of one layer, such as a dense and a grouped convolution, have the same tensors."""
    own = {**dict(there.named_parameters()), **dict(there.named_buffers())}
    others = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if own.keys() != others.keys() or not all(torch.equal(own[name], others[name]) for name in own):
        return False
    for name, tensor in own.items():
        path, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(path), leaf, tensor)
    return True


def new_name(node: Node) -> str:
    """What a layer or tensor of the old network is called in the new one, which has no nesting."""
    return str(node.target).replace(".", "_")


def argument(
    node: Node,
    place: int,
    name: str,
    default: Any = None,
) -> Any:
    """An argument of a traced call, whether it was given by position or by keyword."""
    if len(node.args) > place:
        return node.args[place]
    return node.kwargs.get(name, default)
