"""Residual networks (He et al., 2016), their grouped form ResNeXt and the wide bottleneck form."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from covey.zoo.check import one_of, whole
from covey.zoo.layers import Stem, conv, first_layers, init_convolutions_, named

# depth: blocks in each stage; from 50 on the blocks are bottlenecks
STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class ResNet(nn.Module):
    """A residual network with projections where the shape changes.

    Args:
        classes: outputs.
        channels: of the images.
        depth: 18 and 34 (two 3x3 convolutions a block), 50, 101 and 152 (1x1, 3x3, 1x1).
        stem: `imagenet` for images of about 224 pixels, `cifar` for about 32.
        width: channels of the first stage, doubled at each of the next three.
        groups: groups of the 3x3 convolutions of bottlenecks.
        group_width: channels of one such group in the first stage, where `width` is 64.

    Takes (B, channels, H, W), returns (B, C).
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        depth: int,
        stem: Stem,
        width: int = 64,
        groups: int = 1,
        group_width: int = 64,
    ) -> None:
        super().__init__()
        one_of("depth", depth, STAGES)
        bottleneck = depth >= 50
        if not bottleneck:
            one_of("groups of a network without bottlenecks", groups, [1])
            one_of("group_width of a network without bottlenecks", group_width, [64])
        inputs = whole("width", width)
        self.stem = first_layers(stem, whole("channels", channels), inputs)
        stages = []
        for i, blocks in enumerate(STAGES[depth]):
            stage_width = width * 2**i
            in_group = whole(
                "width * group_width // 64", stage_width * whole("group_width", group_width) // 64
            )
            inner = in_group * whole("groups", groups)
            outputs = 4 * stage_width if bottleneck else stage_width
            stage = []
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                body = (
                    _bottleneck(inputs, inner, outputs, stride, groups)
                    if bottleneck
                    else _basic(inputs, outputs, stride)
                )
                stage.append(Block(body, inputs, outputs, stride))
                inputs = outputs
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, whole("classes", classes))
        init_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, H, W)."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is a 1x1 convolution with norm where the shape changes."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = named(conv=conv(inputs, outputs, 1, stride=stride), norm=nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, outputs, H', W') for maps (B, inputs, H, W)."""
        return F.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    return named(
        conv1=conv(inputs, outputs, 3, stride=stride),
        norm1=nn.BatchNorm2d(outputs),
        relu1=nn.ReLU(),
        conv2=conv(outputs, outputs, 3),
        norm2=nn.BatchNorm2d(outputs),
    )


def _bottleneck(inputs: int, inner: int, outputs: int, stride: int, groups: int) -> nn.Module:
    return named(
        conv1=conv(inputs, inner, 1),
        norm1=nn.BatchNorm2d(inner),
        relu1=nn.ReLU(),
        conv2=conv(inner, inner, 3, stride=stride, groups=groups),
        norm2=nn.BatchNorm2d(inner),
        relu2=nn.ReLU(),
        conv3=conv(inner, outputs, 1),
        norm3=nn.BatchNorm2d(outputs),
    )
