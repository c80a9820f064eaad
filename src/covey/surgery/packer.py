"""Writes a traced network again for M members at once, node by node (see `pack`)."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from covey.errors import ConversionError
from covey.surgery import packed_layers as layers

Layout = str | int  # "shared", "front", "value" (no tensor), or the axis on which members lie side by side

_ELEMENTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
_SPATIAL_MODULES = (
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd, nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d,
)  # fmt: skip
_ELEMENTWISE = frozenset(
    {
        "relu", "relu_", "relu6", "gelu", "silu", "mish", "elu", "selu", "leaky_relu", "hardswish", "hardsigmoid",
        "tanh", "sigmoid", "sigmoid_", "softplus", "exp", "erf", "sin", "cos", "sqrt", "rsqrt", "square", "abs", "neg",
        "clamp", "add", "iadd", "add_", "sub", "isub", "mul", "imul", "mul_", "truediv", "div", "pow", "dropout",
        "dropout2d", "contiguous", "clone", "float", "detach",
    }
)  # fmt: skip
_SPATIAL = frozenset(
    {
        "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
        "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "interpolate",
        "boolean_dispatch", "fn",
    }
)  # fmt: skip


class Packer:
    """Writes a traced network again, node by node, keeping track of where members are in each tensor."""

    def __init__(
        self, members: list[nn.Module], traced: fx.GraphModule, shapes: dict[str, Any], root: nn.Module
    ) -> None:
        self.members, self.traced = members, traced
        self.shapes, self.root = shapes, root
        self.graph = fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}
        self.layout: dict[fx.Node, Layout] = {}

    def run(self) -> fx.GraphModule:
        """The new network."""
        for node in self.traced.graph.nodes:
            getattr(self, f"_{node.op}")(node)
        return fx.GraphModule(self.root, self.graph, "Packed")

    # --- where tensors are -------------------------------------------------------------------------------

    def rank(self, node: fx.Node) -> int:
        """How many axes the tensor has for one member."""
        return len(self.shapes[node.name].shape)

    def size(self, node: fx.Node, axis: int) -> int:
        """A size for one member on the example."""
        return self.shapes[node.name].shape[axis]

    def front(self, node: fx.Node) -> fx.Node:
        """The tensor with members on an axis in front; shared ones as they are."""
        made, layout = self.new[node], self.layout[node]
        if isinstance(layout, int):
            made = self.graph.call_method("unflatten", (made, layout, (len(self.members), -1)))
            made = self.graph.call_method("movedim", (made, layout, 0))
        return made

    def side(self, node: fx.Node, axis: int) -> fx.Node:
        """The tensor with members side by side on `axis`; shared ones are repeated."""
        made, layout = self.new[node], self.layout[node]
        if layout == axis:
            return made
        if layout == "shared":
            repeats = [1] * self.rank(node)
            repeats[axis] = len(self.members)
            return self.graph.call_method("repeat", (made, *repeats))
        made = self.graph.call_method("movedim", (self.front(node), 0, axis))
        return self.graph.call_method("flatten", (made, axis, axis + 1))

    def put(self, node: fx.Node, made: fx.Node, layout: Layout) -> None:
        """Remember what a node became and where its members are."""
        self.new[node], self.layout[node] = made, layout

    def add(self, node: fx.Node, module: nn.Module, suffix: str = "") -> str:
        """Give the new network a layer, once for each that the old one has."""
        name = str(node.target).replace(".", "_") + suffix
        if not hasattr(self.root, name):
            self.root.add_module(name, module)
        return name

    # --- nodes ---------------------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        self.put(node, self.graph.placeholder(str(node.target), default_value=_default(node)), "shared")

    def _get_attr(self, node: fx.Node) -> None:
        name = str(node.target).replace(".", "_")
        each = [operator.attrgetter(str(node.target))(member) for member in self.members]
        alike = all(torch.equal(tensor, each[0]) for tensor in each)
        if hasattr(self.root, name):  # read before
            alike = getattr(self.root, name).dim() == each[0].dim()
        elif isinstance(each[0], nn.Parameter):
            stacked = torch.stack([tensor.detach() for tensor in each])
            self.root.register_parameter(name, nn.Parameter(stacked, each[0].requires_grad))
            alike = False
        else:
            self.root.register_buffer(name, each[0].clone() if alike else torch.stack(each))
        self.put(node, self.graph.get_attr(name), "shared" if alike else "front")

    def _call_module(self, node: fx.Node) -> None:
        each: list[Any] = [member.get_submodule(str(node.target)) for member in self.members]
        first = each[0]
        source = next((a for a in node.args if isinstance(a, fx.Node)), None)
        layout = self.layout[source] if source is not None else "value"
        shared = layout == "shared"
        if source is None or layout == "value":
            self._each_on_its_own(node, each)
        elif isinstance(first, nn.modules.conv._ConvNd):
            dense = shared and first.groups == 1
            x = self.new[source] if dense else self.side(source, 1)
            self._layer(node, layers.convolution(each, dense), (x,), 1, dense)
        elif isinstance(first, nn.modules.batchnorm._NormBase | nn.GroupNorm):
            self._layer(node, layers.norm(each), (self.side(source, 1),), 1)
        elif isinstance(first, nn.Linear):
            x = self.new[source] if shared else self.side(source, self.rank(source) - 1)
            self._layer(node, layers.PackedLinear(each, shared), (x,), self.rank(source) - 1, shared)
        elif isinstance(first, nn.LayerNorm | nn.RMSNorm) and len(first.normalized_shape) == 1:
            last = self.rank(source) - 1
            self._layer(node, layers.PackedNorm(each), (self.side(source, last),), last)
        elif isinstance(first, nn.Embedding) and shared and first.max_norm is None:
            self._layer(node, layers.embedding(each), (self.new[source],), self.rank(node) - 1)
        elif isinstance(first, nn.MultiheadAttention) and _plain_attention(node, first, self.rank(source)):
            inputs = [
                self.side(a, 2) if i < 3 and isinstance(a, fx.Node) else self._map(a)
                for i, a in enumerate(node.args)
            ]
            self._layer(
                node, layers.PackedAttention(each), tuple(inputs), 2, extra=self._map(dict(node.kwargs))
            )
        elif isinstance(first, nn.TransformerEncoderLayer | nn.TransformerEncoder) and self.rank(source) == 3:
            self._encoder(node, each, source)
        elif isinstance(first, nn.modules.dropout._DropoutNd) and shared:
            repeated = self.side(source, self.rank(source) - 1)  # members drop other features
            self._layer(node, copy.deepcopy(first), (repeated,), self.rank(source) - 1)
        elif isinstance(first, _ELEMENTWISE_MODULES) or (
            isinstance(first, _SPATIAL_MODULES) and layout in (1, "shared")
        ):
            self._layer(node, copy.deepcopy(first), (self.new[source],), layout)
        elif isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim, layout) == (1, -1, 1):
            self._layer(node, copy.deepcopy(first), (self.new[source],), 1)
        else:
            self._each_on_its_own(node, each)

    def _layer(
        self,
        node: fx.Node,
        module: nn.Module,
        args: tuple,
        layout: Layout,
        shared: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        name = self.add(node, module, "_first" if shared else "")
        self.put(node, self.graph.call_module(name, args, extra or {}), layout)

    def _encoder(self, node: fx.Node, each: list[Any], source: fx.Node) -> None:
        if len(node.args) + len(node.kwargs) > 1:
            self._each_on_its_own(node, each)
            return
        first = each[0]
        if isinstance(first, nn.TransformerEncoder):
            parts: list[nn.Module] = [
                layers.PackedEncoderLayer([encoder.layers[i] for encoder in each])
                for i in range(len(first.layers))
            ]
            if first.norm is not None:
                parts.append(layers.PackedNorm([encoder.norm for encoder in each]))
            module: nn.Module = nn.Sequential(*parts)
        else:
            module = layers.PackedEncoderLayer(each)
        self._layer(node, module, (self.side(source, 2),), 2)

    def _each_on_its_own(self, node: fx.Node, each: list[nn.Module]) -> None:
        """A layer without a grouped form: members in front, one call each."""
        args = [self._map(a, self.front) for a in node.args]
        kwargs = {key: self._map(a, self.front) for key, a in node.kwargs.items()}
        mapped = [self._is_apart(a) for a in node.args]
        module = layers.PerMember(each, mapped, {key: self._is_apart(a) for key, a in node.kwargs.items()})
        self.put(node, self.graph.call_module(self.add(node, module), tuple(args), kwargs), "front")

    def _call_method(self, node: fx.Node) -> None:
        self._call(node, str(node.target), getattr(torch.Tensor, str(node.target)))

    def _call_function(self, node: fx.Node) -> None:
        function: Any = node.target
        self._call(node, getattr(function, "__name__", str(function)), function)

    def _call(self, node: fx.Node, name: str, function: Callable[..., Any]) -> None:
        inputs = [n for n in node.all_input_nodes if self.layout[n] != "value"]
        layouts = {self.layout[n] for n in inputs}
        source: Any = node.args[0] if node.args else None
        if name in ("size", "getattr", "dim") and inputs:
            self._ask(node, name, source)
        elif not layouts or layouts == {"shared"}:
            self.put(
                node, self.graph.node_copy(node, lambda n: self.new[n]), "shared" if layouts else "value"
            )
        elif function is operator.getitem and not hasattr(self.shapes[source.name], "shape"):  # of a tuple
            self.put(node, self.graph.node_copy(node, lambda n: self.new[n]), self.layout[source])
        elif name in _ELEMENTWISE and self._elementwise(node, inputs):
            pass
        elif name in _SPATIAL and layouts == {1}:
            self.put(node, self.graph.node_copy(node, lambda n: self.new[n]), 1)
        elif name in ("mean", "sum", "amax") and self._reduced(node, source):
            pass
        elif (
            name == "flatten"
            and layouts == {1}
            and _argument(node, 1, "start_dim") == 1
            and len(node.args) < 3
        ):
            self.put(node, self.graph.node_copy(node, lambda n: self.new[n]), 1)
        elif name in ("cat", "concat") and isinstance(_argument(node, 1, "dim", 0), int):
            self._cat(node)
        elif name == "scaled_dot_product_attention" and all(self._is_apart(n) for n in node.args[:3]):
            made = {n: self.front(n) for n in inputs}
            args, kwargs = (
                self._map(a, lambda n: made.get(n, self.new[n])) for a in (node.args, dict(node.kwargs))
            )
            self.put(node, self.graph.call_function(layers.attention, args, kwargs), "front")
        elif "setitem" in name:
            raise ConversionError(
                "the network cannot be packed into one: it writes into a tensor (x[...] = y)."
            )
        else:
            self._over_members(node, function)

    def _ask(self, node: fx.Node, name: str, source: fx.Node) -> None:
        """Questions about a tensor's shape are answered for one member."""
        what = node.args[1] if name == "getattr" else name
        layout = self.layout[source]
        if layout == "shared" or what not in ("shape", "size", "dim", "ndim"):
            if layout != "shared" and what not in ("dtype", "device"):
                self._over_members(node, getattr)
                return
            self.put(node, self.graph.node_copy(node, lambda n: self.new[n]), "value")
            return
        ask = layers.MemberShape(layout, len(self.members))
        shape = self.graph.call_function(ask, (self.new[source],))
        if what in ("dim", "ndim"):
            shape = self.graph.call_function(len, (shape,))
        elif what == "size" and len(node.args) > 1:
            shape = self.graph.call_function(operator.getitem, (shape, node.args[1]))
        self.put(node, shape, "value")

    def _elementwise(self, node: fx.Node, inputs: list[fx.Node]) -> bool:
        """Keep members side by side if every input can be brought to the same axis."""
        rank = self.rank(node)
        axes = {a for n in inputs if isinstance(a := self.layout[n], int) and self.rank(n) == rank}
        if len(axes) != 1:
            return False
        (axis,) = axes
        made: dict[fx.Node, fx.Node] = {}
        for n in inputs:
            missing = axis - (rank - self.rank(n))
            if self.layout[n] == "shared" and (missing < 0 or self.size(n, missing) == 1):
                made[n] = self.new[n]
            elif self.rank(n) == rank and self.size(n, axis) == self.size(node, axis):
                made[n] = self.side(n, axis)
            else:
                return False
        self.put(node, self.graph.node_copy(node, lambda n: made.get(n, self.new[n])), axis)
        return True

    def _reduced(self, node: fx.Node, source: fx.Node) -> bool:
        axis = self.layout[source]
        dims = _argument(node, 1, "dim")
        if not isinstance(axis, int) or dims is None or len(node.args) > 3:
            return False
        dims = [d % self.rank(source) for d in (dims if isinstance(dims, tuple | list) else (dims,))]
        if axis in dims:
            return False
        kept = bool(_argument(node, 2, "keepdim", False))
        made = self.graph.node_copy(node, lambda n: self.new[n])
        self.put(node, made, axis if kept else axis - sum(d < axis for d in dims))
        return True

    def _cat(self, node: fx.Node) -> None:
        given: Any = node.args[0] if node.args else node.kwargs["tensors"]
        parts = list(given)
        rank = self.rank(node)
        dim = _argument(node, 1, "dim", 0) % rank
        sides = [a for n in parts if isinstance(a := self.layout[n], int)]
        axis = sides[0] if sides else dim
        if axis != dim:
            made = self.graph.call_function(torch.cat, ([self.side(n, axis) for n in parts], dim))
            self.put(node, made, axis)
            return
        count = len(self.members)
        split = [self.graph.call_method("unflatten", (self.side(n, dim), dim, (count, -1))) for n in parts]
        made = self.graph.call_function(torch.cat, (split, dim + 1))
        self.put(node, self.graph.call_method("flatten", (made, dim, dim + 1)), dim)

    def _over_members(self, node: fx.Node, function: Callable[..., Any]) -> None:
        values = [*node.args, *node.kwargs.values()]
        fronts = [self._map(value, self.front) for value in values]
        in_dims = tuple(0 if self._is_apart(value) else None for value in values)
        for value in values:
            if (
                isinstance(value, tuple | list)
                and self._is_apart(value)
                and not all(map(self._is_apart, value))
            ):
                raise ConversionError(
                    f"the network cannot be packed into one: {node.target} mixes members' and other data."
                )
        over = layers.OverMembers(function, in_dims, tuple(node.kwargs), {})
        self.put(node, self.graph.call_function(over, tuple(fronts)), "front")

    def _output(self, node: fx.Node) -> None:
        def result(n: fx.Node) -> fx.Node:
            made = self.front(n)
            if self.layout[n] == "shared":
                made = self.graph.call_method("unsqueeze", (made, 0))
                made = self.graph.call_method("expand", (made, len(self.members), *[-1] * self.rank(n)))
            return made

        self.graph.output(self._map(node.args[0], result))

    def _map(self, value: Any, change: Callable[[fx.Node], fx.Node] | None = None) -> Any:
        change = change or (lambda n: self.new[n])
        return fx.node.map_arg(value, change)

    def _is_apart(self, value: Any) -> bool:
        """Whether the members' tensors are in it."""
        found: list[bool] = []
        fx.node.map_arg(value, lambda n: found.append(self.layout[n] not in ("shared", "value")))
        return any(found)


def _default(node: fx.Node) -> Any:
    return node.args[0] if node.args else inspect.Signature.empty


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _plain_attention(node: fx.Node, layer: nn.MultiheadAttention, rank: int) -> bool:
    """Whether a packed attention gives what is asked of this one: no weights, and nothing added to keys."""
    asked = {user.args[1] for user in node.users if user.target is operator.getitem}
    return rank == 3 and asked <= {0} and layer.bias_k is None and not layer.add_zero_attn
