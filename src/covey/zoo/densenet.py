"""Densely connected networks (Huang et al., 2017): each layer sees all earlier ones of its block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.zoo.check import one_of, whole
from covey.zoo.layers import Stem, conv, first_layers, init_convolutions_, named

# depth: growth and layers in each block
STAGES = {
    121: (32, (6, 12, 24, 16)),
    161: (48, (6, 12, 36, 24)),
    169: (32, (6, 12, 32, 32)),
    201: (32, (6, 12, 48, 32)),
}


class DenseNet(nn.Module):
    """DenseNet-BC: bottlenecks of four times the growth, transitions that halve channels and size.

    Args:
        classes: outputs.
        channels: of the images.
        depth: 121, 161, 169 or 201.
        stem: `imagenet` for images of about 224 pixels; `cifar`, one 3x3 convolution, for about 32.
        growth: channels that each layer adds; None is the published number for this depth.

    Takes (B, channels, H, W), returns (B, C).
    """

    def __init__(
        self, *, classes: int, channels: int, depth: int, stem: Stem, growth: int | None = None
    ) -> None:
        super().__init__()
        one_of("depth", depth, STAGES)
        one_of("stem", stem, ("imagenet", "cifar"))
        whole("channels", channels)
        published, stages = STAGES[depth]
        growth = whole("growth", published if growth is None else growth)
        width = 2 * growth
        # the first norm of the first block serves the small stem, too
        self.stem = conv(channels, width, 3) if stem == "cifar" else first_layers(stem, channels, width)
        blocks: list[nn.Module] = []
        for i, layers in enumerate(stages):
            if i > 0:
                blocks.append(_transition(width, width // 2))
                width //= 2
            blocks.append(nn.Sequential(*(Layer(width + j * growth, growth) for j in range(layers))))
            width += layers * growth
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, whole("classes", classes))
        init_convolutions_(self, "fan_in")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, H, W)."""
        return self.head(F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class Layer(nn.Module):
    """x and `growth` new channels: norm, ReLU, 1x1 convolution, norm, ReLU, 3x3 convolution."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = named(
            norm1=nn.BatchNorm2d(inputs),
            relu1=nn.ReLU(),
            conv1=conv(inputs, 4 * growth, 1),
            norm2=nn.BatchNorm2d(4 * growth),
            relu2=nn.ReLU(),
            conv2=conv(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs + growth, H, W) for maps (B, inputs, H, W)."""
        return torch.cat((x, self.body(x)), 1)


def _transition(inputs: int, outputs: int) -> nn.Module:
    return named(
        norm=nn.BatchNorm2d(inputs), relu=nn.ReLU(), conv=conv(inputs, outputs, 1), pool=nn.AvgPool2d(2)
    )
