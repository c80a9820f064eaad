"""Random operations become fixed draws: a deployed member of MC-dropout is the same network for every input.

A draw has no axis of samples: every sample meets the same mask, as in Masksembles, so that answers do not depend on the
batch. Members have draws of their own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from covey.deploy.constants import Constants
from covey.deploy.simplify import argument
from covey.errors import ConversionError

_aten = torch.ops.aten
_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
_SILENT = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default)


class Draws:
    """One member's draws.

    Args:
        graph: that they become constants of.
        constants: the graph's tensors.
        seed: of the draws.
    """

    def __init__(self, graph: Graph, constants: Constants, seed: int) -> None:
        self.graph, self.constants = graph, constants
        self.generator = torch.Generator().manual_seed(seed)

    def replaced(self, node: Node, known: dict[Node, Node]) -> Node | None:
        """What stands for an operation that draws random numbers; None for any other operation."""
        make = _RANDOM.get(node.target)
        if make is not None:
            return make(self, node, known)
        _refuse_hidden(node)
        return None

    def constant(self, node: Node, draw: Callable[[Sequence[int]], Tensor]) -> Node:
        """A tensor drawn once in the shape of one sample."""
        value = _value(node)
        batch, *rest = value.shape
        if any(isinstance(size, torch.SymInt) for size in rest):
            raise _cannot(node, "its sizes depend on the batch in more than the first axis")
        first = 1 if isinstance(batch, torch.SymInt) else batch
        return self.constants.node(self.graph, "draw", draw((first, *rest)).to(value.dtype))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(tuple(shape), generator=self.generator)

    def kept(self, shape: Sequence[int], probability: float) -> Tensor:
        """1 with this probability, else 0."""
        return (self.uniform(shape) < probability).float()


def _value(node: Node) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value


def _dropout(draws: Draws, node: Node, known: dict[Node, Node]) -> Node | None:
    args: tuple[Any, ...] = node.args
    x, p, *rest = args
    if rest and rest[0] is False:
        return None
    keep = 1 - float(p)
    scale = 1 / keep if keep > 0 else 0.0
    mask = draws.constant(node, lambda shape: draws.kept(shape, keep) * scale)
    masked = draws.graph.call_function(_aten.mul.Tensor, (known[x], mask))
    # the operation gives its mask too, which nobody but a backward pass reads
    return draws.graph.call_function(_pair, (masked, mask))


def _pair(first: Any, second: Any) -> tuple[Any, Any]:
    return first, second


def _bernoulli(draws: Draws, node: Node, known: dict[Node, Node]) -> Node:
    probability = float(argument(node, 1))
    return draws.constant(node, lambda shape: draws.kept(shape, probability))


def _rand(draws: Draws, node: Node, known: dict[Node, Node]) -> Node:
    return draws.constant(node, draws.uniform)


def _randn(draws: Draws, node: Node, known: dict[Node, Node]) -> Node:
    return draws.constant(node, lambda shape: torch.randn(tuple(shape), generator=draws.generator))


def _attention(draws: Draws, node: Node, known: dict[Node, Node]) -> Node | None:
    """Attention whose weights are dropped, by plain products."""
    arguments: dict[int, Any] = dict(enumerate(node.args))
    p, causal = arguments.get(4, 0.0), arguments.get(5, False)
    if not p:
        return None
    if causal or node.kwargs.get("enable_gqa"):
        raise _cannot(
            node, "causal or grouped attention with dropout has no fixed draw; set its dropout to 0"
        )
    graph = draws.graph
    query, key, values = (known[arguments[i]] for i in range(3))
    shapes = [arguments[i].meta["val"].shape for i in range(2)]
    scale = node.kwargs.get("scale") or 1 / math.sqrt(shapes[0][-1])
    turned = graph.call_function(_aten.transpose.int, (key, -2, -1))
    scores = graph.call_function(_aten.matmul.default, (query, turned))
    scores = graph.call_function(_aten.mul.Tensor, (scores, scale))
    if arguments.get(3) is not None:
        scores = graph.call_function(_aten.add.Tensor, (scores, known[arguments[3]]))
    weights = graph.call_function(_aten.softmax.int, (scores, -1))
    keep = 1 - float(p)
    sizes = (1, *shapes[0][1:-1], shapes[1][-2])
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise _cannot(node, "its sizes depend on the batch in more than the first axis")
    mask = draws.constants.node(graph, "draw", (draws.kept(sizes, keep) / keep).to(_value(node).dtype))
    return graph.call_function(
        _aten.matmul.default, (graph.call_function(_aten.mul.Tensor, (weights, mask)), values)
    )


_RANDOM: dict[Any, Callable[[Draws, Node, dict[Node, Node]], Node | None]] = {
    _aten.native_dropout.default: _dropout,
    _aten.bernoulli.p: _bernoulli,
    _aten.rand.default: _rand,
    _aten.rand_like.default: _rand,
    _aten.randn.default: _randn,
    _aten.randn_like.default: _randn,
    _aten.scaled_dot_product_attention.default: _attention,
}


def _refuse_hidden(node: Node) -> None:
    """Random numbers inside an operation that has no fixed draw."""
    if node.op != "call_function" or not hasattr(node.target, "tags"):
        return
    if node.target in _RECURRENT:
        dropout, train = node.args[-4:-2]
        if dropout and train:
            raise _cannot(
                node, "dropout between a recurrent layer's own layers has no fixed draw; set it to 0"
            )
    elif torch.Tag.nondeterministic_seeded in node.target.tags and node.target not in _SILENT:
        raise _cannot(node, "it has no fixed draw")


def _cannot(node: Node, why: str) -> ConversionError:
    places = [line.strip() for line in (node.stack_trace or "").splitlines() if "File" in line]
    place = f" ({places[-1]})" if places else ""
    return ConversionError(
        f"members that are random are deployed as fixed draws, and {node.target}{place} cannot be: {why}."
    )


def unpaired(graph: Graph) -> None:
    """Lead whoever takes the first of a pair to the first itself."""
    for node in list(graph.nodes):
        if node.target is operator.getitem and getattr(node.args[0], "target", None) is _pair:
            pair, position = node.args
            node.replace_all_uses_with(pair.args[position])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target is _pair:
            graph.erase_node(node)
