"""A small set for dense prediction that a seeded function draws: shapes on a textured background, a class per pixel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.data.container import IGNORED, Split
from covey.data.raw import Raw

CLASSES = ("background", "disc", "square", "triangle")
SIZE = 32
COUNTS = {"train": 400, "validation": 80, "test": 120}
SEED = 2026
_SHAPES = 3
"""How many shapes an image has at most."""


def read_shapes() -> Raw:
    """600 images of 32 x 32 pixels with one to three shapes each, drawn from one seed."""
    generator = torch.Generator().manual_seed(SEED)
    parts = {}
    for part, count in COUNTS.items():
        drawn = [draw_shapes(generator) for _ in range(count)]
        images = torch.stack([image for image, _ in drawn])
        masks = torch.stack([mask for _, mask in drawn])
        parts[part] = Split(images, masks)
    notes = (
        f"drawn by covey; the pixels at a shape's border have the label {IGNORED}, which does not count",
    )
    return Raw(parts, "segmentation", CLASSES, notes=notes)


def draw_shapes(generator: torch.Generator, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """An image (3, size, size) uint8 and its classes (size, size) uint8; pixels at a shape's border are ignored.

    Shapes are filled with a texture of their own, of any colour, so that neither colour nor brightness tells the class.
    """
    image = _texture(generator, size)
    mask = torch.zeros(size, size, dtype=torch.uint8)
    count = int(torch.randint(1, _SHAPES + 1, (), generator=generator))
    for _ in range(count):
        label = int(torch.randint(1, len(CLASSES), (), generator=generator))
        distance = _distance(label, generator, size)
        image = torch.where(distance < 0, _texture(generator, size), image)
        mask[distance < 0] = label
        mask[distance.abs() < 0.5] = IGNORED
    noise = 0.06 * torch.randn(3, size, size, generator=generator)
    return ((image + noise).clamp(0, 1) * 255).round().to(torch.uint8), mask


def _texture(generator: torch.Generator, size: int) -> Tensor:
    """Stripes of any colour, direction and width, (3, size, size) from 0 to 1."""
    colours = torch.rand(2, 3, 1, 1, generator=generator)
    angle, period, phase = torch.rand(3, generator=generator).tolist()
    rows, columns = _grid(size)
    along = rows * math.sin(math.pi * angle) + columns * math.cos(math.pi * angle)
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * (along / (3 + 9 * period) + phase))
    return colours[0] * wave + colours[1] * (1 - wave)


def _distance(label: int, generator: torch.Generator, size: int) -> Tensor:
    """How far each pixel is from the border of a shape at a random place, in pixels; negative inside."""
    u = torch.rand(4, generator=generator).tolist()
    radius = size * (0.12 + 0.12 * u[0])
    rows, columns = _grid(size)
    rows = rows - size * (0.2 + 0.6 * u[1])
    columns = columns - size * (0.2 + 0.6 * u[2])
    turn = 2 * math.pi * u[3]
    x = columns * math.cos(turn) + rows * math.sin(turn)
    y = rows * math.cos(turn) - columns * math.sin(turn)
    return _BORDERS[label](x, y, radius)


def _disc(x: Tensor, y: Tensor, radius: float) -> Tensor:
    return torch.hypot(x, y) - radius


def _square(x: Tensor, y: Tensor, radius: float) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.9 * radius


def _triangle(x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Equilateral: the largest of the distances from its three sides."""
    slope = math.sqrt(3) / 2
    sides = torch.stack((y, slope * x - 0.5 * y, -slope * x - 0.5 * y))
    return sides.amax(0) - 0.65 * radius


_BORDERS = {1: _disc, 2: _square, 3: _triangle}


def _grid(size: int) -> tuple[Tensor, Tensor]:
    """Row and column of each pixel."""
    places = torch.arange(size, dtype=torch.float32)
    return places[:, None].expand(size, size), places.expand(size, size)
