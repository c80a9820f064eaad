"""Newly initialised networks of a given architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from covey import zoo
from covey.errors import ConversionError
from covey.networks.copies import duplicate
from covey.networks.layers import canonical, origin_of

Factory = Callable[[], nn.Module]
"""A function that makes a newly initialised network."""


def fresh(network: nn.Module, factory: Factory | None = None) -> nn.Module:
    """A newly initialised network of the same architecture. Uses the global random state.

    From the factory if there is one; a network of `covey.zoo` as the zoo makes it; else each layer through its own
    `reset_parameters`, and tensors that no layer resets from a normal distribution with their own mean and standard
    deviation, constants kept. A network without memory (on the meta device) is only copied.
    """
    like = next(network.parameters())
    if like.device.type == "meta":
        return duplicate(network)
    if factory is not None:
        made = factory().to(like)
        difference = _difference(network, made)
        if difference:
            raise ConversionError(f"the factory gives another architecture than the network: {difference}.")
        return made
    from_zoo = _from_zoo(network)
    if from_zoo is not None:
        return from_zoo.to(like)
    made = duplicate(network)
    reset = _resetting(made)
    were = dict(made.named_parameters(remove_duplicate=False))
    for path, restart in reset.items():
        _restarted(made, path, restart)
    misfits = _take_values(made, were)
    for name, tensor in made.named_parameters():
        if _path_of(name) not in reset or name in misfits:
            _redraw(tensor)
    return made


def how_fresh(network: nn.Module, factory: Factory | None = None) -> dict[str, str]:
    """How `fresh` draws each parameter, in words for the coverage table."""
    if factory is not None:
        return dict.fromkeys(canonical(network).values(), "fresh from the factory")
    if _from_zoo(network) is not None:
        return dict.fromkeys(canonical(network).values(), "fresh as the zoo makes it")
    reset = _resetting(network)
    notes = {}
    for name, tensor in network.named_parameters():
        if _path_of(name) in reset:
            notes[name] = "fresh by its layer's reset"
        elif _spread(tensor):
            notes[name] = "fresh from its own mean and spread"
        else:
            notes[name] = "constant, kept"
    return notes


def _resetting(network: nn.Module) -> dict[str, Callable[[], Any]]:
    """How modules initialise their own parameters anew, by path, where they can."""
    found = {}
    for path, module in network.named_modules():
        reset = _reset_of(module)
        if callable(reset):
            found[path] = reset
    return found


def _restarted(network: nn.Module, path: str, restart: Callable[[], Any]) -> None:
    """Let a module initialise itself anew; one without parameters need not be able to."""
    module = network.get_submodule(path)
    before = [(buffer, buffer.clone()) for buffer in module.buffers(recurse=False)]
    try:
        restart()
    except Exception as error:
        if any(True for _ in module.parameters()):
            raise ConversionError(
                f"'{path}' cannot be initialised anew: {type(module).__name__}'s reset raises "
                f"{type(error).__name__}: {error}. Mend it, or let members start from the network's own weights "
                "(init='copy') where the method can."
            ) from error
        # constants, such as frequencies of positions, from a number that is no longer theirs: those that run stay
        for buffer, value in before:
            buffer.copy_(value)


@torch.no_grad()
def _take_values(network: nn.Module, were: Mapping[str, nn.Parameter]) -> set[str]:
    """Put back parameters that resets replaced by new ones, which have lost type and ties, with the new ones' values.

    Returns the names of those whose new ones have another shape, as those of a layer that was made narrow may.
    """
    misfits = set()
    for name, own in were.items():
        owner, leaf = network.get_submodule(_path_of(name)), name.rpartition(".")[2]
        new = getattr(owner, leaf, None)
        if not isinstance(new, nn.Parameter) or new is own:
            continue
        if new.shape == own.shape:
            own.copy_(new)
        else:
            misfits.add(name)
        setattr(owner, leaf, own)
    return misfits


def _reset_of(module: nn.Module) -> Callable[[], Any] | None:
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def _path_of(name: str) -> str:
    """The path of the module that directly holds a parameter."""
    return name.rpartition(".")[0]


def _real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers: of a complex tensor, both parts."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def _spread(tensor: Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):  # an order, or a mask: nothing that is drawn
        return 0.0
    return _real(tensor).double().std(correction=0).item() if tensor.numel() > 1 else 0.0


@torch.no_grad()
def _redraw(tensor: Tensor) -> None:
    spread = _spread(tensor)
    if spread:
        numbers = _real(tensor)
        numbers.normal_(numbers.double().mean().item(), spread)


def _from_zoo(network: nn.Module) -> nn.Module | None:
    """A new network of the zoo, if this is one and still has the shape that the zoo gives it."""
    made_as = origin_of(network)
    if made_as is None:
        return None
    made = zoo.create(made_as["name"], **made_as["arguments"])
    return None if _difference(network, made) else made


def _difference(network: nn.Module, made: nn.Module) -> str:
    """The first parameter that two networks do not have in common, or nothing."""
    ours = {name: tuple(t.shape) for name, t in network.named_parameters()}
    theirs = {name: tuple(t.shape) for name, t in made.named_parameters()}
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return f"{name!r} is {theirs.get(name, 'missing')} there and {ours.get(name, 'missing')} in the network"
    return ""
