"""MobileNetV2 (Sandler et al., 2018): inverted residual blocks with depthwise convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from covey.errors import OptionError
from covey.zoo.check import one_of, whole
from covey.zoo.layers import Stem, conv, init_convolutions_, named
from covey.zoo.layers import dropout as dropout_layer

# (expansion, channels, blocks, stride of the first block) of each stage
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """Seven stages of inverted residual blocks between a 3x3 stem and a 1x1 convolution of 1,280 channels.

    Args:
        classes: outputs.
        channels: of the images.
        stem: `cifar` sets the first two of the five strides to 1, for images of about 32 pixels.
        width: factor on all channels; the results are rounded to multiples of 8, as the authors do.
        dropout: probability of a feature to be zeroed before the head in training.

    Takes (B, channels, H, W), returns (B, C).
    """

    def __init__(
        self, *, classes: int, channels: int, stem: Stem, width: float = 1.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        one_of("stem", stem, ("imagenet", "cifar"))
        if isinstance(width, bool) or not isinstance(width, int | float) or width <= 0:
            raise OptionError(f"width must be a number above 0, got {width!r}")
        small = stem == "cifar"
        inputs = _multiple_of_8(32 * width)
        self.stem = _unit(whole("channels", channels), inputs, 3, stride=1 if small else 2)
        stages = []
        for i, (expansion, base, blocks, stride) in enumerate(STAGES):
            outputs = _multiple_of_8(base * width)
            stage = []
            for j in range(blocks):
                step = 1 if j > 0 or (small and i == 1) else stride
                stage.append(Block(inputs, outputs, expansion=expansion, stride=step))
                inputs = outputs
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        features = _multiple_of_8(1280 * max(1.0, width))
        self.last = _unit(inputs, features, 1)
        self.dropout = dropout_layer(dropout)
        self.head = nn.Linear(features, whole("classes", classes))
        init_convolutions_(self)
        nn.init.normal_(self.head.weight, 0, 0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, H, W)."""
        return self.head(self.dropout(self.last(self.stages(self.stem(x))).mean((2, 3))))


class Block(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without ReLU; add x where shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = nn.Identity() if expansion == 1 else _unit(inputs, inner, 1)
        self.depthwise = _unit(inner, inner, 3, stride=stride, groups=inner)
        self.project = named(conv=conv(inner, outputs, 1), norm=nn.BatchNorm2d(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, outputs, H', W') for maps (B, inputs, H, W)."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def _unit(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Module:
    convolution = conv(inputs, outputs, kernel, stride=stride, groups=groups)
    return named(conv=convolution, norm=nn.BatchNorm2d(outputs), relu=nn.ReLU6())


def _multiple_of_8(channels: float) -> int:
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8  # never lose more than a tenth
