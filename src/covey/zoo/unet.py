"""A small U-Net: one class for each pixel (Ronneberger, Fischer and Brox, 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covey.errors import OptionError
from covey.zoo.check import whole
from covey.zoo.layers import conv, init_convolutions_, named


class UNet(nn.Module):
    """A contracting and an expanding path with links between maps of equal size, for dense prediction.

    Each level is two 3x3 convolutions with BatchNorm and ReLU. Going down, a 2x2 max-pool halves the map and the next
    level has twice the channels; going up, nearest pixels double the map, a convolution halves the channels, and the
    map of the same size from the way down is put beside it. Unlike the original, convolutions pad, so that the
    answer is as large as the image.

    Args:
        classes: outputs for each pixel.
        channels: of the images.
        width: channels of the first level.
        levels: how often the map is halved. Height and width of the images must be multiples of 2 ** levels.

    Takes (B, channels, H, W), returns (B, C, H, W). 536,660 parameters for 4 classes of colour images.
    """

    def __init__(self, *, classes: int, channels: int, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        width, self.levels = whole("width", width), whole("levels", levels)
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList()
        inputs = whole("channels", channels)
        for outputs in widths:
            self.down.append(_level(inputs, outputs))
            inputs = outputs
        self.pool = nn.MaxPool2d(2)
        self.larger = nn.Upsample(scale_factor=2, mode="nearest")
        self.up = nn.ModuleList()
        self.join = nn.ModuleList()
        for outputs in reversed(widths[:-1]):
            self.up.append(_unit(2 * outputs, outputs))
            self.join.append(_level(2 * outputs, outputs))
        self.head = nn.Conv2d(width, whole("classes", classes), 1)
        init_convolutions_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C, H, W) for images (B, channels, H, W)."""
        least = 2**self.levels
        if x.shape[-2] % least or x.shape[-1] % least:
            raise OptionError(
                f"height and width of the images must be multiples of {least}, got {x.shape[-2]} x {x.shape[-1]}"
            )
        seen: list[Tensor] = []
        for number, level in enumerate(self.down):
            x = level(self.pool(x) if number else x)
            seen.append(x)
        seen.pop()  # the smallest map is where the way up begins
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((seen.pop(), up(self.larger(x))), 1))
        return self.head(x)


def _unit(inputs: int, outputs: int) -> nn.Sequential:
    return named(conv=conv(inputs, outputs, 3), norm=nn.BatchNorm2d(outputs), relu=nn.ReLU())


def _level(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_unit(inputs, outputs), _unit(outputs, outputs))
