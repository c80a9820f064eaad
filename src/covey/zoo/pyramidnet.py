"""PyramidNet (Han et al., 2017), whose channels grow at every block, with ShakeDrop (Yamada et al., 2019).

    x_{l+1} = x_l + (b + a - b a) F(x_l)       forward in training, b ~ Bernoulli(p_l), a ~ U(-1, 1)
                    (b + c - b c)              the factor in backward instead, c ~ U(0, 1)
                    p_l                        the factor in evaluation
    p_l = 1 - (l / L) (1 - p_L),  l = 1 ... L

The numbers are drawn once for a batch and block, "batch level" in the ShakeDrop paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import OptionError
from covey.zoo.check import depth_of_blocks, one_of, whole
from covey.zoo.layers import conv, init_convolutions_, named


class PyramidNet(nn.Module):
    """Channels grow linearly from 16 to 16 + alpha over all blocks (times 4 with bottlenecks).

    Args:
        classes: outputs.
        channels: of the images.
        depth: 6 n + 2, or 9 n + 2 with bottlenecks, with n blocks in each of three stages.
        alpha: channels that the blocks add in all.
        bottleneck: blocks of 1x1, 3x3 and 1x1 convolutions instead of two 3x3.
        keep: ShakeDrop's p_L, the probability that the last block is left alone; 1 is no ShakeDrop.

    Takes (B, channels, H, W), returns (B, C).
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        depth: int = 110,
        alpha: int = 270,
        bottleneck: bool = False,
        keep: float = 0.5,
    ) -> None:
        super().__init__()
        one_of("bottleneck", bottleneck, (False, True))
        if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
            raise OptionError(f"keep must be a number above 0 and up to 1, got {keep!r}")
        blocks = depth_of_blocks(depth, per_block=9 if bottleneck else 6, outside=2)
        total = 3 * blocks
        inputs = 16
        self.stem = named(conv=conv(whole("channels", channels), inputs, 3), norm=nn.BatchNorm2d(inputs))
        stages: list[list[nn.Module]] = [[], [], []]
        for i in range(total):
            width = round(16 + whole("alpha", alpha) * (i + 1) / total)
            stride = 2 if i in (blocks, 2 * blocks) else 1
            body = _bottleneck(inputs, width, stride) if bottleneck else _basic(inputs, width, stride)
            outputs = 4 * width if bottleneck else width
            shake = ShakeDrop(1 - (i + 1) / total * (1 - keep)) if keep < 1 else nn.Identity()
            stages[i // blocks].append(Block(body, shake, stride))
            inputs = outputs
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in stages))
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, whole("classes", classes))
        init_convolutions_(self)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, H, W)."""
        return self.head(F.relu(self.norm(self.stages(self.stem(x)))).mean((2, 3)))


class Block(nn.Module):
    """shake(body(x)) + x, with x pooled to the body's size and zeros for the channels it lacks."""

    def __init__(self, body: nn.Module, shake: nn.Module, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shake = shake
        self.pool = nn.Identity() if stride == 1 else nn.AvgPool2d(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, outputs, H', W') for maps (B, inputs, H, W)."""
        y = self.shake(self.body(x))
        return y + F.pad(self.pool(x), (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))


class ShakeDrop(nn.Module):
    """x times a random factor in training, another one in backward; x times `keep` in evaluation."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the shape of x."""
        if not self.training:
            return x * self.keep
        gate, a, c = torch.rand(3, dtype=x.dtype, device=x.device)
        kept = (gate < self.keep).to(x.dtype)
        forward = kept + (1 - kept) * (2 * a - 1)
        backward = kept + (1 - kept) * c
        return x * backward + (x * (forward - backward)).detach()


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    return named(
        norm1=nn.BatchNorm2d(inputs),
        conv1=conv(inputs, outputs, 3, stride=stride),
        norm2=nn.BatchNorm2d(outputs),
        relu2=nn.ReLU(),
        conv2=conv(outputs, outputs, 3),
        norm3=nn.BatchNorm2d(outputs),
    )


def _bottleneck(inputs: int, inner: int, stride: int) -> nn.Module:
    return named(
        norm1=nn.BatchNorm2d(inputs),
        conv1=conv(inputs, inner, 1),
        norm2=nn.BatchNorm2d(inner),
        relu2=nn.ReLU(),
        conv2=conv(inner, inner, 3, stride=stride),
        norm3=nn.BatchNorm2d(inner),
        relu3=nn.ReLU(),
        conv3=conv(inner, 4 * inner, 1),
        norm4=nn.BatchNorm2d(4 * inner),
    )
