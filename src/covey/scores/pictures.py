"""Operations on images (N, C, H, W) that the corruptions are made of: blurs, zooms, clouds, ice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from covey.extras import load

PUBLISHED_SIZE = 32
"""Pixels of the images that the corruptions' parameters were published for."""


def size_factor(x: Tensor) -> float:
    """How many times larger the images are than those that the parameters were published for."""
    return max(x.shape[2:]) / PUBLISHED_SIZE


def grey(x: Tensor) -> Tensor:
    """Images (N, 1 or 3, H, W) as grey ones, (N, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True)


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel with a kernel (odd, odd), edges mirrored."""
    n, channels, height, width = x.shape
    kernel_height, kernel_width = kernel.shape
    rows = _mirrored(height, kernel_height // 2)
    columns = _mirrored(width, kernel_width // 2)
    padded = x.reshape(n * channels, 1, height, width)[:, :, rows][..., columns]
    return F.conv2d(padded, kernel[None, None]).reshape(x.shape)


def _mirrored(size: int, pad: int) -> Tensor:
    """Indices that extend 0..size-1 by mirroring, as often as needed (F.pad mirrors less than one size)."""
    period = max(1, 2 * (size - 1))
    at = torch.arange(-pad, size + pad).remainder(period)
    if size == 1:
        return torch.zeros_like(at)
    return torch.minimum(at, period - at)


def gaussian_blur(x: Tensor, sigma: float, truncate: float = 4) -> Tensor:
    """Blur along both axes; the kernel ends at `truncate` standard deviations."""
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return x
    distance = torch.arange(-reach, reach + 1.0)
    line = torch.exp(-distance.square() / (2 * sigma**2))
    line = line / line.sum()
    along_columns = convolve(x, line[:, None])
    return convolve(along_columns, line[None])


def disk(radius: float, softness: float) -> Tensor:
    """The kernel of a lens out of focus: a disk of sum 1 with an edge softened by a small Gaussian."""
    reach = max(1, math.ceil(radius) + 1)
    squared = torch.arange(-reach, reach + 1.0) ** 2
    inside = (squared[:, None] + squared <= radius**2).float()
    edge = torch.exp(-torch.tensor([1.0, 0.0, 1.0]) / (2 * softness**2))
    soft = torch.outer(edge, edge) / edge.sum() ** 2
    sharp = inside / inside.sum()
    return F.conv2d(sharp[None, None], soft[None, None], padding=1)[0, 0]


def streak(x: Tensor, radius: float, sigma: float, angles: tuple[int, int], generator: Generator) -> Tensor:
    """Each image smeared to one side along its own direction with half a Gaussian; edges repeat.

    Args:
        x: images.
        radius: half the length of the streak in pixels of the published size.
        sigma: standard deviation of the Gaussian, likewise.
        angles: the range in degrees that directions are drawn from.
        generator: draws them.
    """
    n, _, height, width = x.shape
    factor = size_factor(x)
    low, high = angles
    angle = torch.deg2rad(low + (high - low) * torch.rand(n, generator=generator))
    steps = torch.arange(max(1, round(2 * radius * factor)) + 1)
    weights = torch.exp(-steps.float().square() / (2 * (sigma * factor) ** 2))
    weights = weights / weights.sum()
    image = torch.arange(n)[:, None, None]
    smeared = torch.zeros_like(x)
    for step, weight in zip(steps, weights, strict=True):
        right = torch.ceil(step * torch.cos(angle) - 0.5).long()
        down = torch.ceil(step * torch.sin(angle) - 0.5).long()
        rows = (torch.arange(height) + down[:, None]).clamp(0, height - 1)
        columns = (torch.arange(width) + right[:, None]).clamp(0, width - 1)
        moved = x[image, :, rows[:, :, None], columns[:, None, :]]
        smeared += weight * moved.permute(0, 3, 1, 2)
    return smeared


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged to their size."""
    height, width = x.shape[2:]
    part_height, part_width = math.ceil(height / factor), math.ceil(width / factor)
    part = _middle(x, part_height, part_width)
    # Rounding could make the enlarged part smaller than the image.
    large_height = max(height, round(part_height * factor))
    large_width = max(width, round(part_width * factor))
    large = F.interpolate(part, (large_height, large_width), mode="bilinear", align_corners=True)
    return _middle(large, height, width)


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    top = (x.shape[2] - height) // 2
    left = (x.shape[3] - width) // 2
    return x[..., top : top + height, left : left + width]


def sample(x: Tensor, at: Tensor) -> Tensor:
    """Values of images at pixel coordinates (N, H, W, 2) in the order (column, row), edges mirrored."""
    height, width = x.shape[2:]
    last = torch.tensor([max(1, width - 1), max(1, height - 1)])
    grid = 2 * at / last - 1  # grid_sample counts from -1 to 1
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def clouds(n: int, least: int, decay: float, generator: Generator) -> Tensor:
    """Fractal clouds (n, size, size) in [0, 1]; the size is the next power of 2 from `least` on.

    The diamond-square algorithm on a torus: each round halves the step of the grid and fills the new points with the
    mean of their four neighbours and noise, which falls by `decay` a round.
    """
    size = 1 << (least - 1).bit_length()
    field = torch.zeros(n, size, size, dtype=torch.float64)
    step, amplitude = size, 100.0

    def noisy(total_of_four: Tensor) -> Tensor:
        draw = torch.rand(total_of_four.shape, generator=generator, dtype=torch.float64)
        return total_of_four / 4 + amplitude**2 * (2 * draw - 1)

    while step >= 2:
        half = step // 2
        corner = field[:, ::step, ::step]  # views: what is written below is seen through them
        middle = field[:, half::step, half::step]
        above_and_below = corner + corner.roll(-1, 1)
        field[:, half::step, half::step] = noisy(above_and_below + above_and_below.roll(-1, 2))
        beside_rows = middle + middle.roll(1, 1) + corner + corner.roll(-1, 2)
        field[:, ::step, half::step] = noisy(beside_rows)
        beside_columns = middle + middle.roll(1, 2) + corner + corner.roll(-1, 1)
        field[:, half::step, ::step] = noisy(beside_columns)
        step = half
        amplitude /= decay
    low = field.amin((1, 2), keepdim=True)
    high = field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low).clamp_min(1e-12)).float()


def ice(x: Tensor, generator: Generator) -> Tensor:
    """Needles of ice (N, 3 or 1, H, W): ridges where rough clouds cross their middle, tinted blue."""
    n, channels, height, width = x.shape
    needles = torch.zeros(())
    for decay, share in ((1.5, 0.6), (1.15, 0.4)):
        cloud = clouds(n, 2 * max(height, width), decay, generator)
        middle = cloud.flatten(1).median(1).values.view(n, 1, 1)
        ridges = (1 - (cloud - middle).abs() * 7).clamp_min(0)
        needles = needles + share * ridges
    white = (0.25 + 0.75 * needles)[:, None, :height, :width]
    if channels == 1:
        return white
    tint = torch.tensor([0.9, 0.97, 1.05]).view(1, 3, 1, 1)
    return (white * tint).clamp_max(1)


def each_picture(x: Tensor, change: Callable[[Any], Any]) -> Tensor:
    """Apply a function of PIL images to each image."""
    pil = load("PIL.Image")

    n, channels, height, width = x.shape
    levels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    if channels == 1:
        levels = levels[..., 0]  # what PIL takes as grey
    changed = []
    for image in levels:
        changed.append(np.asarray(change(pil.fromarray(image))))
    pixels = torch.from_numpy(np.stack(changed)).reshape(n, height, width, channels)
    return pixels.permute(0, 3, 1, 2) / 255
