"""Wide residual networks with pre-activation (Zagoruyko and Komodakis, 2016), for small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from covey.zoo.check import depth_of_blocks, whole
from covey.zoo.layers import conv, init_convolutions_
from covey.zoo.layers import dropout as dropout_layer


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of 16, 32 and 64 times `width` channels, norm and ReLU first.

    Args:
        classes: outputs.
        channels: of the images.
        depth: 6 n + 4, with n blocks of two convolutions in each stage.
        width: k in WRN-d-k.
        dropout: probability of an activation between a block's two convolutions to be zeroed in training.

    Takes (B, channels, H, W), returns (B, C). WRN-28-10 for CIFAR-10 has 36,479,194 parameters: 17,952 in
    norms, 6,410 in the head, the rest in convolutions.
    """

    def __init__(self, *, classes: int, channels: int, depth: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        blocks = depth_of_blocks(depth, per_block=6, outside=4)
        inputs = 16
        self.stem = conv(whole("channels", channels), inputs, 3)
        stages = []
        for i in range(3):
            outputs = 16 * 2**i * whole("width", width)
            stage = []
            for j in range(blocks):
                stage.append(Block(inputs, outputs, stride=2 if i > 0 and j == 0 else 1, dropout=dropout))
                inputs = outputs
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, whole("classes", classes))
        init_convolutions_(self)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, H, W)."""
        return self.head(F.relu(self.norm(self.stages(self.stem(x)))).mean((2, 3)))


class Block(nn.Module):
    """conv2(dropout(relu(norm2(conv1(a))))) + x with a = relu(norm1(x)).

    Where the shape changes, x gives way to a 1x1 convolution of a, as in the authors' code.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride=stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = dropout_layer(dropout)
        self.conv2 = conv(outputs, outputs, 3)
        changes = stride != 1 or inputs != outputs
        self.shortcut = conv(inputs, outputs, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, outputs, H', W') for maps (B, inputs, H, W)."""
        a = F.relu(self.norm1(x))
        y = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(a)))))
        return y + (x if self.shortcut is None else self.shortcut(a))
