"""How each kind of layer is written for M members at once: one small function per kind, looked up in a table.

A rule gets the call, writes the packed layer and returns True; or it returns False, because this layer
in this place has no grouped form. Then, and for kinds without a rule, each member's own layer is called on its own.
To pack another kind of layer, write a rule and add it to `_rules`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Node

from covey.surgery import packed_layers as layers
from covey.surgery.packer import FRONT, SHARED, VALUE, Layout, Packer
from covey.surgery.torch_internals import (
    batch_norm_class,
    convolution_class,
    dropout_class,
    pooling_classes,
)

# Each entry of the output comes from one entry of the input, so members may lie anywhere.
_ELEMENTWISE = (
    nn.CELU,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)


@dataclass(frozen=True)
class LayerCall:
    """A layer that the traced network calls.

    Args:
        packer: the packed network so far.
        node: the call.
        each: the members' layers.
        source: the node of its first tensor.
    """

    packer: Packer
    node: Node
    each: list[Any]
    source: Node

    @property
    def first(self) -> Any:
        """The first member's layer, for what is alike in all."""
        return self.each[0]

    @property
    def layout(self) -> Layout:
        """Where members are in the first tensor."""
        return self.packer.layout[self.source]

    @property
    def is_shared(self) -> bool:
        """Whether all members read the same input, so that their layers become one dense layer."""
        return self.layout == SHARED

    @property
    def rank(self) -> int:
        """How many axes the first tensor has for one member."""
        return self.packer.rank(self.source)

    @property
    def last_axis(self) -> int:
        """The axis on which linear layers have their features."""
        return self.rank - 1

    @property
    def as_it_is(self) -> Node:
        """The first tensor, in the layout that it has."""
        return self.packer.new[self.source]

    def side(self, axis: int) -> Node:
        """The first tensor with members side by side on `axis`."""
        return self.packer.side(self.source, axis)

    def becomes(self, layer: nn.Module, layout: Layout, *args: Any, **options: Any) -> bool:
        """Write the packed layer's call (see `Packer.add_layer`); always True, which is what a rule returns then."""
        self.packer.add_layer(self.node, layer, layout, *args, **options)
        return True


Rule = Callable[[LayerCall], bool]


def pack_layer(packer: Packer, node: Node) -> None:
    """Write the call of a layer for all members."""
    path = str(node.target)
    each = [member.get_submodule(path) for member in packer.members]
    source = _first_tensor(node)
    if source is not None and packer.layout[source] != VALUE:
        call = LayerCall(packer, node, each, source)
        rule = _rule_for(call.first)
        if rule is not None and rule(call):
            return
    _pack_one_by_one(packer, node, each)


def _first_tensor(node: Node) -> Node | None:
    for value in node.args:
        if isinstance(value, Node):
            return value
    return None


def _rule_for(layer: nn.Module) -> Rule | None:
    """The rule for a layer of torch's; one that does something else with its weights first has none."""
    if not type(layer).__module__.startswith("torch.nn.modules."):
        return None
    for kinds, rule in _rules():
        if isinstance(layer, kinds):
            return rule
    return None


# --- layers with weights -----------------------------------------------------------------------------------------

# A layer that is called on the input and on members' tensors has two forms, so they need two names.
_DENSE = "_first"


def _convolution(call: LayerCall) -> bool:
    """A grouped convolution; where the input is shared, one dense convolution with M times the outputs."""
    if call.is_shared and call.first.groups == 1:
        layer = layers.convolution(call.each, shared=True)
        return call.becomes(layer, 1, call.as_it_is, suffix=_DENSE)
    x = call.side(1)
    layer = layers.convolution(call.each, shared=False)
    return call.becomes(layer, 1, x)


def _linear(call: LayerCall) -> bool:
    if call.is_shared:
        layer = layers.PackedLinear(call.each, shared=True)
        return call.becomes(layer, call.last_axis, call.as_it_is, suffix=_DENSE)
    x = call.side(call.last_axis)
    layer = layers.PackedLinear(call.each, shared=False)
    return call.becomes(layer, call.last_axis, x)


def _channel_norm(call: LayerCall) -> bool:
    """Batch, instance and group norms treat channels apart, so M times the channels is all it takes."""
    x = call.side(1)
    layer = layers.norm(call.each)
    return call.becomes(layer, 1, x)


def _layer_norm(call: LayerCall) -> bool:
    if len(call.first.normalized_shape) != 1:
        return False
    x = call.side(call.last_axis)
    layer = layers.PackedNorm(call.each)
    return call.becomes(layer, call.last_axis, x)


def _embedding(call: LayerCall) -> bool:
    if not call.is_shared or call.first.max_norm is not None:
        return False
    layer = layers.embedding(call.each)
    features = call.rank  # the axis that an embedding adds behind those of its input
    return call.becomes(layer, features, call.as_it_is)


# --- attention ---------------------------------------------------------------------------------------------------


def _attention(call: LayerCall) -> bool:
    if call.rank != 3 or not _is_plain_attention(call):
        return False
    inputs = []
    for place, value in enumerate(call.node.args):
        if place < 3 and isinstance(value, Node):  # query, key and value; masks are shared
            inputs.append(call.packer.side(value, 2))
        else:
            inputs.append(call.packer.translate(value))
    options = call.packer.translate(dict(call.node.kwargs))
    layer = layers.PackedAttention(call.each)
    return call.becomes(layer, 2, *inputs, kwargs=options)


def _is_plain_attention(call: LayerCall) -> bool:
    """Whether a packed attention gives what is asked of this one: no weights, nothing added to keys, shared masks."""
    if call.first.bias_k is not None or call.first.add_zero_attn:
        return False
    by_position, by_name = call.node.args, call.node.kwargs
    if len(by_position) < 3 or any(map(call.packer.has_members, [*by_position[3:], *by_name.values()])):
        return False
    return all(user.target is operator.getitem and user.args[1] == 0 for user in call.node.users)


def _encoder_layer(call: LayerCall) -> bool:
    if not _is_plain_encoder(call):
        return False
    x = call.side(2)
    layer = layers.PackedEncoderLayer(call.each)
    return call.becomes(layer, 2, x)


def _encoder(call: LayerCall) -> bool:
    if not _is_plain_encoder(call):
        return False
    x = call.side(2)
    parts: list[nn.Module] = []
    stacks = [encoder.layers for encoder in call.each]
    for layers_at_one_depth in zip(*stacks, strict=True):
        parts.append(layers.PackedEncoderLayer(layers_at_one_depth))
    if call.first.norm is not None:
        norms = [encoder.norm for encoder in call.each]
        parts.append(layers.PackedNorm(norms))
    return call.becomes(nn.Sequential(*parts), 2, x)


def _is_plain_encoder(call: LayerCall) -> bool:
    """Whether it is called on (B, L, C) alone, without masks."""
    inputs = [*call.node.args, *call.node.kwargs]
    return call.rank == 3 and len(inputs) == 1


# --- layers without weights --------------------------------------------------------------------------------------


def _dropout(call: LayerCall) -> bool:
    if call.is_shared:
        repeated = call.side(call.last_axis)  # members drop other features
        layer = copy.deepcopy(call.first)
        return call.becomes(layer, call.last_axis, repeated)
    return isinstance(call.first, _ELEMENTWISE) and _anywhere(call)


def _anywhere(call: LayerCall) -> bool:
    """The same layer does for all members, wherever they lie."""
    layer = copy.deepcopy(call.first)
    return call.becomes(layer, call.layout, call.as_it_is)


def _over_space(call: LayerCall) -> bool:
    """The same layer does for all members if they lie on the channel axis."""
    return call.layout in (1, SHARED) and _anywhere(call)


def _flatten(call: LayerCall) -> bool:
    """Flattening (B, M C, ...) keeps members side by side."""
    if call.first.start_dim != 1 or call.first.end_dim != -1:
        return False
    return call.layout == 1 and _anywhere(call)


# --- layers without a grouped form -------------------------------------------------------------------------------


def _pack_one_by_one(packer: Packer, node: Node, each: list[nn.Module]) -> None:
    """Members in front, and one call of each member's own layer."""
    args = []
    is_own = []
    for value in node.args:
        args.append(packer.translate(value, packer.front))
        is_own.append(packer.has_members(value))
    kwargs = {}
    is_own_named = {}
    for name, value in node.kwargs.items():
        kwargs[name] = packer.translate(value, packer.front)
        is_own_named[name] = packer.has_members(value)
    module = layers.PerMember(each, is_own, is_own_named)
    packer.add_layer(node, module, FRONT, *args, kwargs=kwargs)


def _rules() -> list[tuple[Any, Rule]]:
    """Kinds of layer and the rule for them; the first that fits is taken."""
    return [
        (convolution_class(), _convolution),
        (batch_norm_class(), _channel_norm),
        (nn.GroupNorm, _channel_norm),
        (nn.Linear, _linear),
        (nn.LayerNorm, _layer_norm),
        (nn.RMSNorm, _layer_norm),
        (nn.Embedding, _embedding),
        (nn.MultiheadAttention, _attention),
        (nn.TransformerEncoderLayer, _encoder_layer),
        (nn.TransformerEncoder, _encoder),
        (dropout_class(), _dropout),
        (_ELEMENTWISE, _anywhere),
        (pooling_classes(), _over_space),
        (nn.Upsample, _over_space),
        (nn.ZeroPad2d, _over_space),
        (nn.ReflectionPad2d, _over_space),
        (nn.Flatten, _flatten),
    ]
