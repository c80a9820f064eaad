"""What covey knows of a network before it becomes an ensemble: its head, its stem, its state, its wiring."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.layers import Where, canonical, owner_of, select, ties
from covey.networks.trace import Trace, trace

Output = str | int | None


@dataclass
class Anatomy:
    """A private copy of a network with all that was found out about it.

    Args:
        network: the copy, with its weights.
        head: names of the parameters of the layers that give the output.
        stem: names of the parameters of the layers that see the input first.
        state: names of the buffers that training changes (running statistics and the like).
        example: an input as (args, kwargs), if one was given.
        output: which part of what the network returns is the answer.
        extra: JSON-able facts that a method wants to keep with the stored ensemble.
        shared: names of the buffers that all members share, when they are known from a stored ensemble.
        given: name -> [shape, dtype] of every tensor of the network as the user gave it.
        random: whether a forward pass in train mode draws random numbers; None if that was not tried.
    """

    network: nn.Module
    head: tuple[str, ...] = ()
    stem: tuple[str, ...] = ()
    state: frozenset[str] = frozenset()
    example: tuple[tuple, dict[str, Any]] | None = None
    output: Output = None
    extra: dict[str, Any] = field(default_factory=dict)
    shared: frozenset[str] | None = None
    given: dict[str, list] = field(default_factory=dict)
    random: bool | None = None
    trace: Trace | None = None

    def record(self) -> dict[str, Any]:
        """What a stored ensemble keeps of the network, as JSON holds it."""
        return {
            "tensors": self.given,
            "ties": ties(self.network),
            "head": list(self.head),
            "stem": list(self.stem),
            "zoo": getattr(self.network, "covey_zoo", None),
        }

    def select(self, where: Where) -> list[str]:
        """Names of the parameters that `where` means; frozen ones are left out, they stay as they are."""
        names = select(self.network, where, head=self.head, stem=self.stem)
        return [name for name in names if self.network.get_parameter(name).requires_grad]

    def shared_buffers(self, member_tensors: Iterable[str]) -> frozenset[str]:
        """Buffers that all members share: constants, and the state of layers before any member tensor."""
        if self.shared is not None:
            return self.shared
        buffers = {name for name, _ in self.network.named_buffers()}
        if self.trace is None:
            return frozenset(buffers - self.state)
        met = self.trace.touched(member_tensors)
        owners = {owner_of(name) for name in self.state & met}
        return frozenset(name for name in buffers if name not in self.state or owner_of(name) not in owners)


def examine(
    network: nn.Module,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
) -> Anatomy:
    """Copy a network and find its head, stem and state by running `example` through the copy once.

    Args:
        network: any module; it is not changed.
        example: an input: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        output: which part of the network's output is the answer (a key, an attribute or a position).
        head: the head's tensors or module, if the user would rather say than have it found.
        stem: the first layer's, likewise.
    """
    body = Anatomy(_copy(network), output=output, given=listing(network))
    if example is not None:
        body.example = arguments(example)
        body.trace, body.state = _probe(body.network, *body.example, output)
        body.head = _whole_layers(body.network, body.trace.head())
        body.stem = _whole_layers(body.network, body.trace.stem())
        body.random = body.trace.random
    else:
        body.state = _usual_state(body.network)
    if head is not None:
        body.head = tuple(select(body.network, head))
    if stem is not None:
        body.stem = tuple(select(body.network, stem))
    return body


def listing(network: nn.Module) -> dict[str, list]:
    """Every tensor of a network: name -> [shape, dtype]."""
    named = [*network.named_parameters(), *network.named_buffers()]
    return {name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in named}


def arguments(example: Any) -> tuple[tuple, dict[str, Any]]:
    """An example input as (args, kwargs)."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


def pick(result: Any, output: Output) -> Tensor:
    """The answer's tensor out of whatever a network returns.

    >>> pick({"logits": torch.zeros(2, 3), "loss": None}, None).shape
    torch.Size([2, 3])
    """
    if isinstance(result, Tensor) and output is None:
        return result
    try:
        if output is None:
            return _only(result)
        found = getattr(result, output, None) if isinstance(output, str) else None
        found = result[output] if found is None else found
    except (KeyError, IndexError, TypeError) as error:
        raise ConversionError(
            f"output={output!r} is not in what the network returns: {_describe(result)}."
        ) from error
    if not isinstance(found, Tensor):
        raise ConversionError(f"output={output!r} is a {type(found).__name__}, not a tensor.")
    return found


def _only(result: Any) -> Tensor:
    if isinstance(result, Mapping) and isinstance(result.get("logits"), Tensor):
        return result["logits"]
    parts = list(result.values()) if isinstance(result, Mapping) else result
    if isinstance(parts, tuple | list) and len(parts) == 1 and isinstance(parts[0], Tensor):
        return parts[0]
    raise ConversionError(
        f"the network returns {_describe(result)}; say which part is the answer with output=, a key or a position."
    )


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a {type(result).__name__} with the keys {', '.join(map(repr, result))}"
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)} parts ({', '.join(type(p).__name__ for p in result)})"
    return f"a {type(result).__name__}"


def _copy(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except RuntimeError as error:
        if "deepcopy" not in str(error):
            raise
        raise ConversionError(
            "the network cannot be copied, because it holds tensors that were computed from others. Old-style "
            "weight_norm and spectral_norm do this: call torch.nn.utils.remove_weight_norm(layer) (or "
            "remove_spectral_norm) first, or use torch.nn.utils.parametrizations.weight_norm, which works as "
            f"it is. torch says: {error}"
        ) from None


def _probe(
    network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Output
) -> tuple[Trace, frozenset[str]]:
    """Trace a copy in train mode, and name the buffers that this changed.

    Where train mode does not accept the example (BatchNorm and one sample), in eval mode.
    """
    for mode in (True, False):
        twin = copy.deepcopy(network).train(mode)
        before = {name: t.detach().clone() for name, t in twin.named_buffers()}
        try:
            with torch.random.fork_rng(devices=[]):
                found = trace(twin, args, kwargs, lambda result: pick(result, output))
        except ConversionError:
            raise
        except Exception as error:
            if mode:
                continue
            shapes = [tuple(t.shape) for t in [*args, *kwargs.values()] if isinstance(t, Tensor)]
            raise ConversionError(
                f"the network rejects the example, whose shapes are {shapes}. "
                f"It says: {type(error).__name__}: {error}"
            ) from error
        break
    changed = {
        name for name, t in twin.named_buffers() if name not in before or not torch.equal(t, before[name])
    }
    return found, _usual_state(network) | changed


def _usual_state(network: nn.Module) -> frozenset[str]:
    """Running statistics of torch's own norms, which train mode changes whether or not it was tried."""
    return frozenset(
        f"{path}.{leaf}".removeprefix(".")
        for path, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for leaf, _ in module.named_buffers(recurse=False)
    )


def _whole_layers(network: nn.Module, names: set[str]) -> tuple[str, ...]:
    """All parameters of the layers that own these; a parameter that hangs on the root stands alone."""
    owners = {owner_of(name) for name in names} - {""}
    known = dict.fromkeys(canonical(network).values())
    aliases = canonical(network)
    whole = {first for name, first in aliases.items() if owner_of(name) in owners}
    return tuple(name for name in known if name in whole or name in names)
