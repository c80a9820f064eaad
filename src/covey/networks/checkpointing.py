"""Activation checkpointing inside a hollow network.

`torch.utils.checkpoint` runs a part of the forward pass again during the backward pass. By then a hollow network has no
tensors any more, and the part would run on nothing. So while a member runs, whatever is checkpointed takes the member's
tensors along, and puts them in again when it is run a second time.

This leans on two names inside `torch.utils.checkpoint` that `checkpoint` looks up when it is called. If a later torch
has other ones, checkpointing in an ensemble fails as it did before: with torch's error about the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor, nn
from torch.func import functional_call

_GENERATOR = "_checkpoint_without_reentrant_generator"
_REENTRANT = "CheckpointFunction"
_running: ContextVar[Mapping[str, Tensor] | None] = ContextVar("running", default=None)


@contextmanager
def tensors_carried(network: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While the block runs, checkpointed parts of the network remember these tensors for the backward pass."""
    known = hasattr(checkpoints, _GENERATOR) and hasattr(checkpoints, _REENTRANT)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not known:
        yield
        return
    generator, reentrant = getattr(checkpoints, _GENERATOR), getattr(checkpoints, _REENTRANT)

    def carrying(function: Callable, *options: Any, **more: Any) -> Any:
        return generator(_carried(function, network, tensors), *options, **more)

    class Carrying:
        """The reentrant form accumulates gradients by itself, which shared tensors do not survive: take the other."""

        @staticmethod
        def apply(function: Callable, preserve: bool, *args: Any) -> Any:
            return checkpoints.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    token = _running.set(tensors)
    setattr(checkpoints, _GENERATOR, carrying)
    setattr(checkpoints, _REENTRANT, Carrying)
    try:
        yield
    finally:
        setattr(checkpoints, _GENERATOR, generator)
        setattr(checkpoints, _REENTRANT, reentrant)
        _running.reset(token)


def _carried(function: Callable, network: nn.Module, tensors: Mapping[str, Tensor]) -> Callable:
    inside = {f"network.{name}": tensor for name, tensor in tensors.items()}

    def again(*args: Any, **kwargs: Any) -> Any:
        if _running.get() is tensors:  # the first time, the tensors are in place
            return function(*args, **kwargs)
        return functional_call(_Around(network), inside, (function, args, kwargs), tie_weights=False)

    return again


class _Around(nn.Module):
    """Runs a function while the network has its tensors."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)
