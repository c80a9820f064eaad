"""The networks of the sweep: how each is built, what it takes, and what it is.

    every()              # all that can be built here, by name
    every()["unet"]      # one of them

Every network is small and in float64, so that one method on it takes about a second.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from vision import declare_operators

Kind = Literal["convolutional", "vision transformer", "transformer", "recurrent", "mlp", "other"]
BATCH = 4
CLASSES = 5
SOURCES = (
    "plain_networks",
    "unusual_networks",
    "habit_networks",
    "keeping_networks",
    "field_networks",
    "research_networks",
    "timm_networks",
    "transformers_networks",
)


@dataclass(frozen=True)
class Network:
    """A network of the sweep.

    Args:
        name: as the table has it.
        kind: what it is, for the shares in the table.
        source: "torch", "torchvision", "timm" or "transformers": whose class it is.
        build: makes it.
        inputs: makes a batch of BATCH samples: a tensor, a tuple of positional or a dict of keyword arguments.
        output: which part of what it returns is the answer.
        unscaled: sizes of hidden axes that are no widths, such as a number of tokens that layers mix.
        narrow: shapes that tensors have at half of the hidden widths, where some of an axis is a width and some is not.
        dtype: of the network and of inputs that are no whole numbers.
    """

    name: str
    kind: Kind
    source: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    output: str | int | None = None
    unscaled: tuple[int, ...] = ()
    narrow: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtype: torch.dtype = torch.float64

    def make(self) -> nn.Module:
        """The network, the same each time."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = _without_zeros(self.build())
            # `.to(dtype)` would make real numbers of complex ones
            return net._apply(lambda tensor: tensor.to(self.dtype) if tensor.is_floating_point() else tensor)

    def example(self) -> Any:
        """A batch of inputs, the same each time."""
        torch.manual_seed(1)
        return tree_map(self._in_dtype, self.inputs())

    def _in_dtype(self, leaf: Any) -> Any:
        return leaf.to(self.dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _without_zeros(net: nn.Module) -> nn.Module:
    """A network as training leaves it: weights that start at zero, a head's or a norm's, would hide all before them."""
    generator = torch.Generator().manual_seed(2)
    for name, weight in net.named_parameters():
        is_weight = weight.is_floating_point() and (name.endswith("weight") or weight.ndim > 1)
        if is_weight and not weight.any():
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return net


def images(size: int, channels: int = 3) -> Callable[[], Tensor]:
    """Inputs of networks that take images."""
    return lambda: torch.randn(BATCH, channels, size, size)


def vectors(width: int) -> Callable[[], Tensor]:
    """Inputs of networks that take vectors."""
    return lambda: torch.randn(BATCH, width)


def sequences(length: int, width: int) -> Callable[[], Tensor]:
    """Inputs of networks that take sequences of vectors, (B, length, width)."""
    return lambda: torch.randn(BATCH, length, width)


def tokens(length: int, words: int) -> Callable[[], Tensor]:
    """Inputs of networks that take words."""
    return lambda: torch.randint(0, words, (BATCH, length))


def importable(package: str) -> bool:
    """Whether a package can be imported here."""
    declare_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(package)
        except Exception:
            return False
    return True


@functools.cache
def every() -> dict[str, Network]:
    """All networks whose packages can be imported here, by name."""
    found: dict[str, Network] = {}
    for source in SOURCES:
        for network in importlib.import_module(source).networks():
            if network.name in found:
                raise ValueError(f"two networks are called {network.name!r}")
            found[network.name] = network
    return found
