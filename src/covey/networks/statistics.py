"""Running statistics estimated anew, for weights that were not trained with the ones there are.

Running statistics belong to the weights they were collected with. After weights were averaged, they are estimated
again in one pass over training inputs, each batch of b samples after n others with momentum b / (n + b).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from covey.networks.calls import arguments
from covey.networks.modes import modes_kept

Norm = nn.modules.batchnorm._NormBase


@torch.no_grad()
def refresh_statistics(
    module: nn.Module, inputs: Iterable[Any], *, roots: Sequence[nn.Module] | None = None
) -> None:
    """Estimate running statistics anew in one cumulative pass.

    Args:
        module: what is called. Without running statistics nothing happens, and `inputs` is not read.
        inputs: batches, each a tensor (B, ...), a tuple of positional or a dict of keyword arguments.
        roots: where its layers are; an ensemble's are in its skeletons. The module itself by default.

    Only layers with running statistics are in train mode meanwhile; dropout is off, as it is in use. With no batch
    at all the statistics stay as they are.
    """
    roots = [module] if roots is None else roots
    layers = _layers(roots)
    if not layers:
        return
    seen = 0
    with _only_training(module, roots, layers), _momenta_kept(layers):
        for batch in inputs:
            args, kwargs = arguments(batch)
            size = _batch_size(args, kwargs)
            for layer in layers:
                layer.momentum = size / (seen + size)
            module(*args, **kwargs)
            seen += size


def _layers(roots: Sequence[nn.Module]) -> list[Norm]:
    """Layers that keep running statistics, each once."""
    found: dict[int, Norm] = {}
    for root in roots:
        for layer in root.modules():
            if isinstance(layer, Norm) and layer.track_running_stats:
                found[id(layer)] = layer
    return list(found.values())


def _batch_size(args: tuple, kwargs: dict[str, Any]) -> int:
    for value in [*args, *kwargs.values()]:
        if isinstance(value, Tensor):
            return len(value)
    raise TypeError("a batch of inputs has no tensor in it")


@contextmanager
def _only_training(module: nn.Module, roots: Sequence[nn.Module], layers: list[Norm]) -> Iterator[None]:
    """These layers in train mode, everything else in eval mode, and back."""
    with modes_kept(module, *roots):
        module.eval()
        module.training = True  # so that an ensemble writes its members' statistics back
        for layer in layers:
            layer.training = True
        yield


@contextmanager
def _momenta_kept(layers: list[Norm]) -> Iterator[None]:
    momenta = [layer.momentum for layer in layers]
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
