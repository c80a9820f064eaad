"""The small ConvNet of von Oswald et al. (2021): LeNet-5 with ReLU and BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from covey.zoo.check import whole
from covey.zoo.layers import named


class ConvNet(nn.Module):
    """LeNet-5 (LeCun et al., 1998) with ReLU, and a BatchNorm after each of them.

    Two 5x5 convolutions of 6 and 16 channels, each with a 2x2 max-pool, then 120 and 84 units. LeNet-5 is
    made for 32x32: where a map is smaller than LeNet-5's own at that place (32, then 14), the convolution
    pads by 2, so that 28x28 images lead to the same 5x5 maps and 8x8 images work too.

    Args:
        classes: outputs.
        channels: of the images.
        image_size: height and width of the images, at least 4.
        width: multiplies the channels and units of every layer but the head's.

    Takes (B, channels, image_size, image_size), returns (B, C). 62,458 parameters for CIFAR-10.
    """

    def __init__(self, *, classes: int, channels: int, image_size: int, width: int = 1) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {}
        width = whole("width", width)
        inputs, size = whole("channels", channels), whole("image_size", image_size, at_least=4)
        for i, (outputs, full_size) in enumerate(((6 * width, 32), (16 * width, 14)), 1):
            padding = 2 if size < full_size else 0
            layers |= {
                f"conv{i}": nn.Conv2d(inputs, outputs, 5, padding=padding),
                f"relu{i}": nn.ReLU(),
                f"norm{i}": nn.BatchNorm2d(outputs),
                f"pool{i}": nn.MaxPool2d(2),
            }
            inputs, size = outputs, (size - 4 + 2 * padding) // 2
        self.features = named(**layers)
        self.body = named(
            linear1=nn.Linear(inputs * size * size, 120 * width),
            relu1=nn.ReLU(),
            norm1=nn.BatchNorm1d(120 * width),
            linear2=nn.Linear(120 * width, 84 * width),
            relu2=nn.ReLU(),
            norm2=nn.BatchNorm1d(84 * width),
        )
        self.head = nn.Linear(84 * width, whole("classes", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, image_size, image_size)."""
        return self.head(self.body(self.features(x).flatten(1)))
