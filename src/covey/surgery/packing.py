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
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from covey.errors import ConversionError
from covey.networks.anatomy import Output, pick
from covey.networks.layers import owner_of, ties
from covey.surgery.packer import Packer
from covey.surgery.source import failure


def pack(
    members: Sequence[nn.Module], args: tuple, kwargs: dict[str, Any], output: Output = None
) -> nn.Module:
    """One network that answers as all members do.

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
    positional = _positional(members[0], args, kwargs)
    root = nn.Module()
    ways = {}
    for mode in (False, True):
        example = copy.deepcopy(members[0]).train(mode)
        traced = _trace(example)
        shaped = copy.deepcopy(traced).eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            ShapeProp(shaped).propagate(*positional)
        shapes = {node.name: node.meta.get("tensor_meta") for node in shaped.graph.nodes}
        ways[mode] = Packer(list(members), traced, shapes, root).run()
    body = ways[False] if ways[False].code == ways[True].code else _TwoWays(ways[False], ways[True])
    return body if output is None else _Picked(body, output)


class _TwoWays(nn.Module):
    """A network whose code asks whether it is training: one graph for each answer, over the same layers."""

    def __init__(self, when_evaluating: nn.Module, when_training: nn.Module) -> None:
        super().__init__()
        self.when_evaluating, self.when_training = when_evaluating, when_training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self.when_training if self.training else self.when_evaluating)(*args, **kwargs)


class _Picked(nn.Module):
    """The packed network, and the part of its answer that is wanted."""

    def __init__(self, body: nn.Module, output: Output) -> None:
        super().__init__()
        self.body, self.output = body, output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return pick(self.body(*args, **kwargs), self.output)


def _check_ties(network: nn.Module) -> None:
    for name, first in ties(network).items():
        if network.get_submodule(owner_of(name)) is not network.get_submodule(owner_of(first)):
            raise ConversionError(
                f"{name!r} and {first!r} are one tensor; in a packed network their layers need other shapes, so the "
                "tie would break. Use the ensemble as it is (run='loop' or 'batched')."
            )


def _trace(network: nn.Module) -> fx.GraphModule:
    """Trace with torch.fx, which cannot follow `len(x)`: while it traces, that is the first size."""
    scopes = {
        id(scope): scope for m in network.modules() if (scope := _scope(m)) is not None and "len" not in scope
    }
    try:
        for scope in scopes.values():
            scope["len"] = _len
        return fx.symbolic_trace(network)
    except Exception as problem:
        place = failure(problem, {id(m): name for name, m in network.named_modules()})
        raise ConversionError(
            f"the network cannot be packed into one, because torch.fx cannot trace it"
            f"{f' ({place})' if place else ''}: {problem}. Use the ensemble as it is (run='loop' or 'batched')."
        ) from problem
    finally:
        for scope in scopes.values():
            scope.pop("len", None)


def _scope(module: nn.Module) -> dict[str, Any] | None:
    forward = getattr(type(module).forward, "__globals__", None)
    return None if forward is None or str(forward.get("__name__", "")).startswith("torch.") else forward


def _len(x: Any) -> Any:
    return x.size(0) if isinstance(x, fx.Proxy) else builtins.len(x)


def _positional(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    bound = inspect.signature(network.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return (*bound.args, *bound.kwargs.values())
