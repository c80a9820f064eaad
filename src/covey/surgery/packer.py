"""Keeps track of a network that is written again for M members at once: its graph, and where members are in a tensor.

A member's tensor of (B, C, ...) is found in the packed network in one of these layouts:

    SHARED   (B, C, ...)       the same for all members, as the input is
    1, 2...  (B, M C, ...)     members side by side on this axis, member after member
    FRONT    (M, B, C, ...)    members on an axis of their own in front
    VALUE    no tensor         a shape, a dtype, a number
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

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
    """

    def __init__(self, members: list[nn.Module], shapes: dict[str, Any], root: nn.Module) -> None:
        self.members = members
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
        name = new_name(node) + suffix
        if not hasattr(self.root, name):
            self.root.add_module(name, module)
        made = self.graph.call_module(name, args, kwargs)
        self.put(node, made, layout)


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
