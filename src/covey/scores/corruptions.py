"""The 15 common corruptions at 5 severities, on batches of images in tensors.

Hendrycks and Dietterich (2019), with the parameters published for 32 x 32 images (CIFAR-10-C). Lengths in
pixels grow with the image: at 28 pixels they are 28/32 of the published ones, at 64 twice. Two things
differ from the published files: frost lays a drawn pattern of ice over the image instead of a photograph,
and random numbers are others.

Images are (N, 1 or 3, H, W) with values 0 to 1.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from covey.errors import EvaluationError, suggest
from covey.extras import load

from .pictures import (
    clouds,
    convolve,
    disk,
    each_picture,
    gaussian_blur,
    grey,
    ice,
    sample,
    size_factor,
    streak,
    zoom,
)

SEVERITIES = (1, 2, 3, 4, 5)
SLACK = 1e-4
"""By how much values may lie outside 0 to 1, as after a resize."""


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images (N, 1 or 3, H, W) in [0, 1], corrupted, same shape, rounded to 256 levels as in a file."""
    if name not in CORRUPTIONS:
        raise EvaluationError(f"no corruption {name!r}{suggest(name, CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise EvaluationError(f"severity: expected 1 to 5, got {severity!r}")
    _check_images(images)
    number = list(CORRUPTIONS).index(name)
    generator = torch.Generator().manual_seed(1000 * seed + 10 * number + severity)
    apply = CORRUPTIONS[name]
    corrupted = apply(images.float().clamp(0, 1), severity - 1, generator)
    levels = (corrupted.clamp(0, 1) * 255).floor()
    return levels.div(255).to(images.dtype)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
        raise EvaluationError(
            "corruptions: expected images (N, 1 or 3, H, W) of a float type, "
            f"got {tuple(images.shape)} of {images.dtype}"
        )
    if not len(images):
        return
    low, high = float(images.min()), float(images.max())
    if low < -SLACK or high > 1 + SLACK:
        raise EvaluationError(
            f"corruptions: expected values 0 to 1, got {low:.3g} to {high:.3g}; corrupt first, normalise "
            "afterwards"
        )


# Each corruption takes images, the severity from 0 to 4 and a generator of random numbers.


def _gaussian_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[level]
    return x + deviation * torch.randn(x.shape, generator=generator)


def _shot_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    photons = (500, 250, 100, 75, 50)[level]
    return torch.poisson(x * photons, generator=generator) / photons


def _impulse_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    draw = torch.rand(x.shape, generator=generator)
    salted = torch.where(draw < amount, 1.0, x)
    return torch.where(draw < amount / 2, 0.0, salted)


def _defocus_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    radius, softness = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    return convolve(x, disk(radius * size_factor(x), softness))


def _glass_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    factor = size_factor(x)
    sigma *= factor
    reach = max(1, round(factor))
    x = (gaussian_blur(x, sigma) * 255).floor() / 255
    n, _, height, width = x.shape
    image = torch.arange(n)
    for _ in range(rounds):
        # Rows and columns are walked backwards, and every pixel takes the value of a neighbour above or
        # left of it. The published code means to swap both but assigns through views, which has this effect.
        shifts = torch.randint(-reach, reach, (height, width, 2, n), generator=generator)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = shifts[row, column]
                x[:, :, row, column] = x[image, :, row + down, column + right]
    return gaussian_blur(x, sigma)


def _motion_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    return streak(x, radius, sigma, (-45, 45), generator)


def _zoom_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    steps = (6, 11, 16, 21, 26)[level]
    zoomed = torch.zeros_like(x)
    for step in range(steps):
        zoomed += zoom(x, 1 + 0.01 * step)
    return (x + zoomed) / (steps + 1)


def _snow(x: Tensor, level: int, generator: Generator) -> Tensor:
    mean, deviation, size, least, radius, sigma, keep = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[level]
    n, _, height, width = x.shape
    flakes = mean + deviation * torch.randn((n, 1, height, width), generator=generator)
    flakes = zoom(flakes, size)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    flakes = streak(flakes, radius, sigma, (-135, -45), generator)
    pale = torch.maximum(x, grey(x) * 1.5 + 0.5)
    scene = keep * x + (1 - keep) * pale
    return scene + flakes + flakes.flip(2, 3)


def _frost(x: Tensor, level: int, generator: Generator) -> Tensor:
    keep, amount = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    return keep * x + amount * ice(x, generator)


def _fog(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    n, _, height, width = x.shape
    haze = clouds(n, max(height, width), decay, generator)
    haze = haze[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * haze) * brightest / (brightest + amount)


def _brightness(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[level]
    # More V in HSV at the same hue and saturation scales the three colours alike; black becomes grey.
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp_max(1)
    scaled = x * brighter / value.clamp_min(1e-8)
    return torch.where(value > 0, scaled, brighter)


def _contrast(x: Tensor, level: int, generator: Generator) -> Tensor:
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[level]
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _elastic(x: Tensor, level: int, generator: Generator) -> Tensor:
    shift, sigma, affine = (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[level]
    n, _, height, width = x.shape
    size = min(height, width)
    third = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * (size // 3)
    corners = third + torch.tensor([width // 2, height // 2])
    moved = corners + affine * size * _uniform((n, 3, 2), generator)
    # The affine map that takes the moved corners back: solve for it from three pairs of points.
    homogeneous = torch.cat((moved, torch.ones(n, 3, 1)), -1)
    back = torch.linalg.solve(homogeneous, corners.expand(n, 3, 2))
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack((column, row, torch.ones_like(row)), -1).float()
    x = sample(x, torch.einsum("hwi,nij->nhwj", grid, back))
    if shift == 0:
        return x
    noise = _uniform((n, 2, height, width), generator)
    flow = gaussian_blur(noise, sigma * size, truncate=3) * shift * size
    return sample(x, grid[..., :2] + flow.permute(0, 2, 3, 1))


def _pixelate(x: Tensor, level: int, generator: Generator) -> Tensor:
    pil = load("PIL.Image")

    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    height, width = x.shape[2:]
    small = max(1, int(width * share)), max(1, int(height * share))

    def shrink(image: Any) -> Any:
        shrunk = image.resize(small, pil.Resampling.BOX)
        return shrunk.resize((width, height), pil.Resampling.BOX)

    return each_picture(x, shrink)


def _jpeg(x: Tensor, level: int, generator: Generator) -> Tensor:
    pil = load("PIL.Image")

    quality = (80, 65, 58, 50, 40)[level]

    def compress(image: Any) -> Any:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return pil.open(file)

    return each_picture(x, compress)


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Random numbers from -1 to 1."""
    return 2 * torch.rand(shape, generator=generator) - 1


CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg,
}
