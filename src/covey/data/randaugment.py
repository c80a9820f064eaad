"""RandAugment on a batch of uint8 images, operation by operation instead of image by image.

Cubuk, Zoph, Shlens, Le (2020), with the fifteen operations and the magnitudes that the setting "m9 n2 mstd1"
names in the literature: each of n drawn operations is done with probability 1/2, at a magnitude drawn around
m and kept in 0 to 10. Values are those of Pillow's operations, to within one grey level where they
interpolate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.data import keyed
from covey.errors import OptionError

_FILL = 128.0  # for what an affine operation moves in from outside


def rand_augment(
    images: Tensor,
    samples: Tensor,
    keys: tuple[int | Tensor, ...],
    operations: int,
    magnitude: float,
    spread: float,
) -> Tensor:
    """Images (B, C, H, W) uint8 after `operations` random operations each, drawn by (samples, keys)."""
    if images.dtype != torch.uint8:
        raise OptionError(
            f"RandAugment works on uint8 images; got {images.dtype}. Use operations=0 for others"
        )
    for turn in range(operations):
        pick, done, sign = keyed.uniform(samples, (*keys, turn), 3).unbind(-1)
        which = (pick * len(OPERATIONS)).long().masked_fill_(done >= 0.5, -1)
        level = magnitude + spread * keyed.normal(samples, (*keys, turn, 1))[:, 0]
        level = level.clamp(0, 10).float() / 10
        signs = torch.where(sign < 0.5, -1.0, 1.0)
        out = images.clone()
        for number, operation in enumerate(OPERATIONS.values()):
            chosen = (which == number).nonzero()[:, 0]
            if len(chosen):
                out[chosen] = operation(images[chosen], level[chosen], signs[chosen])
        images = out
    return images


def _auto_contrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    low = x.amin((2, 3), keepdim=True).double()
    high = x.amax((2, 3), keepdim=True).double()
    scale = 255 / (high - low).clamp_min(1)
    stretched = (x * scale - low * scale).floor()
    return torch.where(high > low, stretched.clamp(0, 255).byte(), x)


def _equalize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    planes = x.flatten(0, 1).flatten(1).long()  # (B C, H W)
    counts = torch.zeros(len(planes), 256, dtype=torch.int64)
    counts.scatter_add_(1, planes, torch.ones_like(planes))
    # The last grey level that occurs does not count, so that it ends at 255.
    top = counts.gather(1, planes.amax(1, keepdim=True))
    step = (planes.shape[1] - top) // 255
    table = (counts.cumsum(1) - counts + step // 2) // step.clamp_min(1)
    equal = table.clamp(0, 255).gather(1, planes).byte().view(x.shape)
    return torch.where(step.view(*x.shape[:2], 1, 1) > 0, equal, x)


def _invert(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return 255 - x


def _posterize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    dropped = 8 - (level * 4).int().view(-1, 1, 1, 1)
    return ((x.int() >> dropped) << dropped).byte()


def _solarize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return torch.where(x < (level * 256).int().view(-1, 1, 1, 1), x, 255 - x)


def _solarize_add(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    brighter = (x.int() + (level * 110).int().view(-1, 1, 1, 1)).clamp_max(255).byte()
    return torch.where(x < 128, brighter, x)


def _blend(x: Tensor, base: Tensor, level: Tensor) -> Tensor:
    """From `base` (factor 0) over x (factor 1) and beyond; the levels 0 to 1 are factors of 0.1 to 1.9."""
    factor = (level * 1.8 + 0.1).view(-1, 1, 1, 1)
    return (base + factor * (x - base)).clamp(0, 255).byte()


def _grey(x: Tensor) -> Tensor:
    """Luma of ITU-R 601 in the integers that Pillow uses, (B, 1, H, W)."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).byte()[:, None]


def _colour(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _blend(x, _grey(x).float().expand_as(x), level)


def _contrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    mean = (_grey(x).double().mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return _blend(x, mean.float(), level)


def _brightness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _blend(x, torch.zeros(()), level)


def _sharpness(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    base = x.float()
    planes = base.flatten(0, 1)[:, None]
    smooth = (F.conv2d(planes, kernel[None, None]) + 0.5).floor().clamp(0, 255)
    base[:, :, 1:-1, 1:-1] = smooth.view(*x.shape[:2], *smooth.shape[2:])  # the border stays as it is
    return _blend(x, base, level)


def _affine(x: Tensor, matrix: Tensor) -> Tensor:
    """Images whose pixel at (column, row, 1) is taken from matrix (B, 2, 3) times it, bilinear."""
    height, width = x.shape[-2:]
    row, column = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    place = torch.stack([column, row, torch.ones_like(row)], -1)  # (H, W, 3), at the centres of pixels
    source = torch.einsum("hwk,bck->bhwc", place, matrix)
    size = torch.tensor([width, height])
    moved = F.grid_sample(
        x.float(), source * 2 / size - 1, mode="bilinear", padding_mode="border", align_corners=False
    )
    inside = ((source >= 0) & (source < size)).all(-1)[:, None]
    return torch.where(inside, moved, _FILL).clamp(0, 255).byte()


def _moved(x: Tensor, row: int, column: int, value: Tensor) -> Tensor:
    """The affine map that differs from the identity in one entry of its matrix, `value` (B,)."""
    matrix = torch.eye(2, 3).repeat(len(x), 1, 1)
    matrix[:, row, column] = value
    return _affine(x, matrix)


def _rotate(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    angle = level * sign * math.pi / 6
    cos, sin = torch.cos(angle), torch.sin(angle)
    middle_y, middle_x = x.shape[-2] / 2, x.shape[-1] / 2
    # Counter-clockwise about the middle; rows point down.
    first = torch.stack([cos, -sin, middle_x - cos * middle_x + sin * middle_y], -1)
    second = torch.stack([sin, cos, middle_y - sin * middle_x - cos * middle_y], -1)
    return _affine(x, torch.stack([first, second], 1))


def _shear_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _moved(x, 0, 1, level * sign * 0.3)


def _shear_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _moved(x, 1, 0, level * sign * 0.3)


def _translate_x(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _moved(x, 0, 2, level * sign * 0.45 * x.shape[-1])


def _translate_y(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return _moved(x, 1, 2, level * sign * 0.45 * x.shape[-2])


# images (B, C, H, W) uint8, level (B,) in 0 to 1, sign (B,) of -1 or 1 -> images
OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "colour": _colour,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
