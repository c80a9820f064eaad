"""What several families of network have in common: convolutions, stems, initialisation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, TypeAlias

from torch import nn

from covey.zoo.check import one_of, share

Stem: TypeAlias = Literal["imagenet", "cifar"]


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in order, so that tensors are called `conv1.weight` and not `0.weight`."""
    return nn.Sequential(OrderedDict(layers))


def conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the size of its input, but for the stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def first_layers(kind: Stem, channels: int, outputs: int) -> nn.Sequential:
    """The first layers of a residual network.

    `imagenet`: 7x7 at stride 2 and a max-pool at stride 2, for images of 224 pixels.
    `cifar`: 3x3 at stride 1 and no pool, for images of 32 pixels.
    """
    one_of("stem", kind, ("imagenet", "cifar"))
    norm, relu = nn.BatchNorm2d(outputs), nn.ReLU()
    if kind == "cifar":
        return named(conv=conv(channels, outputs, 3), norm=norm, relu=relu)
    return named(conv=conv(channels, outputs, 7, stride=2), norm=norm, relu=relu, pool=nn.MaxPool2d(3, 2, 1))


def dropout(p: float) -> nn.Module:
    """Dropout, or nothing at all for p = 0, so that such a network draws no random numbers."""
    return nn.Dropout(p) if share("dropout", p) else nn.Identity()


def init_convolutions_(network: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw every convolution's weight from N(0, 2 / fan), as He et al. (2015) do for ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
