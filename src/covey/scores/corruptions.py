"""The 15 common corruptions at 5 severities, on batches of images in tensors.

Hendrycks and Dietterich (2019), with the parameters published for 32 x 32 images (CIFAR-10-C). Lengths in
pixels grow with the image: at 28 pixels they are 28/32 of the published ones, at 64 twice. Two things
differ from the published files: frost lays a drawn pattern of ice over the image instead of a photograph,
and random numbers are others.

Images are (N, 1 or 3, H, W) with values 0 to 1.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from covey.errors import EvaluationError, suggest

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images (N, 1 or 3, H, W) in [0, 1], corrupted, same shape, rounded to 256 levels as in a file."""
    if name not in CORRUPTIONS:
        raise EvaluationError(f"no corruption {name!r}{suggest(name, CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise EvaluationError(f"severity: expected 1 to 5, got {severity!r}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
        raise EvaluationError(
            "corruptions: expected images (N, 1 or 3, H, W) of a float type, "
            f"got {tuple(images.shape)} of {images.dtype}"
        )
    if len(images) and (images.min() < -1e-4 or images.max() > 1 + 1e-4):
        low, high = float(images.min()), float(images.max())
        raise EvaluationError(
            f"corruptions: expected values 0 to 1, got {low:.3g} to {high:.3g}; corrupt first, normalise "
            "afterwards"
        )
    generator = torch.Generator().manual_seed(1000 * seed + 10 * list(CORRUPTIONS).index(name) + severity)
    result = CORRUPTIONS[name](images.float().clamp(0, 1), severity - 1, generator)
    return (result.clamp(0, 1) * 255).floor().div(255).to(images.dtype)


def _gaussian_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    return x + (0.04, 0.06, 0.08, 0.09, 0.10)[level] * torch.randn(x.shape, generator=generator)


def _shot_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    photons = (500, 250, 100, 75, 50)[level]
    return torch.poisson(x * photons, generator=generator) / photons


def _impulse_noise(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    draw = torch.rand(x.shape, generator=generator)
    return torch.where(draw < amount / 2, 0.0, torch.where(draw < amount, 1.0, x))


def _defocus_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    radius, soft = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    radius *= _scale(x)
    reach = max(1, math.ceil(radius) + 1)
    at = torch.arange(-reach, reach + 1.0)
    disk = ((at[:, None] ** 2 + at**2) <= radius**2).float()
    edge = torch.exp(-torch.tensor([1.0, 0.0, 1.0]) / (2 * soft**2))
    smooth = torch.outer(edge, edge) / edge.sum() ** 2
    kernel = F.conv2d((disk / disk.sum())[None, None], smooth[None, None], padding=1)
    return _convolve(x, kernel[0, 0])


def _glass_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    sigma, reach = sigma * _scale(x), max(1, round(_scale(x)))
    x = (_gaussian_blur(x, sigma) * 255).floor() / 255
    n, _, height, width = x.shape
    sample = torch.arange(n)
    for _ in range(rounds):
        # Rows and columns are walked backwards, and every pixel takes the value of a neighbour above or
        # left of it. The published code means to swap both but assigns through views, which has this effect.
        shifts = torch.randint(-reach, reach, (height, width, 2, n), generator=generator)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = shifts[row, column]
                x[:, :, row, column] = x[sample, :, row + down, column + right]
    return _gaussian_blur(x, sigma)


def _motion_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    return _streak(x, radius, sigma, (-45, 45), generator)


def _zoom_blur(x: Tensor, level: int, generator: Generator) -> Tensor:
    steps = (6, 11, 16, 21, 26)[level]
    zoomed = sum(_zoom(x, 1 + 0.01 * i) for i in range(steps))
    return (x + zoomed) / (steps + 1)


def _snow(x: Tensor, level: int, generator: Generator) -> Tensor:
    mean, std, zoom, least, radius, sigma, keep = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[level]
    n, _, height, width = x.shape
    flakes = mean + std * torch.randn((n, 1, height, width), generator=generator)
    flakes = _zoom(flakes, zoom)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    flakes = _streak(flakes, radius, sigma, (-135, -45), generator)
    pale = torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return keep * x + (1 - keep) * pale + flakes + flakes.flip(2, 3)


def _frost(x: Tensor, level: int, generator: Generator) -> Tensor:
    keep, ice = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    return keep * x + ice * _ice(x, generator)


def _fog(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    n, _, height, width = x.shape
    size = 1 << (max(height, width) - 1).bit_length()
    haze = _plasma(n, size, decay, generator)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * haze) * brightest / (brightest + amount)


def _brightness(x: Tensor, level: int, generator: Generator) -> Tensor:
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[level]
    # More V in HSV at the same hue and saturation scales the three colours alike; black becomes grey.
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp_max(1)
    return torch.where(value > 0, x * brighter / value.clamp_min(1e-8), brighter)


def _contrast(x: Tensor, level: int, generator: Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean


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
    moved = corners + affine * size * (2 * torch.rand((n, 3, 2), generator=generator) - 1)
    # The affine map that takes the moved corners back: solve for it from three pairs of points.
    ones = torch.ones(n, 3, 1)
    back = torch.linalg.solve(torch.cat((moved, ones), -1), corners.expand(n, 3, 2))
    y, z = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack((z, y, torch.ones_like(y)), -1).float()
    x = _sample(x, torch.einsum("hwi,nij->nhwj", grid, back))
    if shift == 0:
        return x
    noise = 2 * torch.rand((n, 2, height, width), generator=generator) - 1
    flow = _gaussian_blur(noise, sigma * size, truncate=3) * shift * size
    return _sample(x, grid[..., :2] + flow.permute(0, 2, 3, 1))


def _pixelate(x: Tensor, level: int, generator: Generator) -> Tensor:
    from PIL import Image

    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    height, width = x.shape[2:]
    small = (max(1, int(width * share)), max(1, int(height * share)))

    def shrink(image: Image.Image) -> Image.Image:
        return image.resize(small, Image.Resampling.BOX).resize((width, height), Image.Resampling.BOX)

    return _each(x, shrink)


def _jpeg(x: Tensor, level: int, generator: Generator) -> Tensor:
    from PIL import Image

    def compress(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=(80, 65, 58, 50, 40)[level])
        return Image.open(file)

    return _each(x, compress)


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


def _scale(x: Tensor) -> float:
    """How many times larger the images are than those that the parameters were published for."""
    return max(x.shape[2:]) / 32


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True)


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel with a kernel (odd, odd), edges mirrored."""
    n, channels, height, width = x.shape
    high, wide = kernel.shape[0] // 2, kernel.shape[1] // 2
    rows, columns = _mirror(height, high), _mirror(width, wide)
    padded = x.reshape(n * channels, 1, height, width)[:, :, rows][..., columns]
    return F.conv2d(padded, kernel[None, None]).reshape(x.shape)


def _mirror(size: int, pad: int) -> Tensor:
    """Indices that extend 0..size-1 by mirroring, as often as needed (F.pad mirrors less than one size)."""
    period = max(1, 2 * (size - 1))
    at = torch.arange(-pad, size + pad).remainder(period)
    return torch.minimum(at, period - at) if size > 1 else torch.zeros_like(at)


def _gaussian_blur(x: Tensor, sigma: float, truncate: float = 4) -> Tensor:
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return x
    line = torch.exp(-torch.arange(-reach, reach + 1.0).square() / (2 * sigma**2))
    line = line / line.sum()
    return _convolve(_convolve(x, line[:, None]), line[None])


def _streak(x: Tensor, radius: float, sigma: float, angles: tuple[int, int], generator: Generator) -> Tensor:
    """Each image smeared to one side along its own direction with half a Gaussian; edges repeat."""
    n, _, height, width = x.shape
    scale = _scale(x)
    low, high = angles
    angle = torch.deg2rad(low + (high - low) * torch.rand(n, generator=generator))
    steps = torch.arange(max(1, round(2 * radius * scale)) + 1)
    weights = torch.exp(-steps.float().square() / (2 * (sigma * scale) ** 2))
    result = torch.zeros_like(x)
    sample = torch.arange(n)[:, None, None]
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        right = torch.ceil(step * torch.cos(angle) - 0.5).long()
        down = torch.ceil(step * torch.sin(angle) - 0.5).long()
        rows = (torch.arange(height) + down[:, None]).clamp(0, height - 1)
        columns = (torch.arange(width) + right[:, None]).clamp(0, width - 1)
        moved = x[sample, :, rows[:, :, None], columns[:, None, :]]
        result += weight * moved.permute(0, 3, 1, 2)
    return result


def _zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged to their size."""
    height, width = x.shape[2:]
    high, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - high) // 2, (width - wide) // 2
    middle = x[..., top : top + high, left : left + wide]
    size = (max(height, round(high * factor)), max(width, round(wide * factor)))
    large = F.interpolate(middle, size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[..., top : top + height, left : left + width]


def _sample(x: Tensor, at: Tensor) -> Tensor:
    """Values of images at pixel coordinates (N, H, W, 2) in the order (column, row), edges mirrored."""
    height, width = x.shape[2:]
    scale = torch.tensor([max(1, width - 1), max(1, height - 1)])
    return F.grid_sample(
        x, 2 * at / scale - 1, mode="bilinear", padding_mode="reflection", align_corners=True
    )


def _plasma(n: int, size: int, decay: float, generator: Generator) -> Tensor:
    """Fractal clouds (n, size, size) in [0, 1], diamond-square algorithm on a torus; size is a power of 2."""
    field = torch.zeros(n, size, size, dtype=torch.float64)
    step, amplitude = size, 100.0

    def noisy(total: Tensor) -> Tensor:
        draw = 2 * torch.rand(total.shape, generator=generator, dtype=torch.float64) - 1
        return total / 4 + amplitude**2 * draw

    while step >= 2:
        half = step // 2
        corner = field[:, ::step, ::step]
        square = corner + corner.roll(-1, 1)
        field[:, half::step, half::step] = noisy(square + square.roll(-1, 2))
        middle, corner = field[:, half::step, half::step], field[:, ::step, ::step]
        field[:, ::step, half::step] = noisy(middle + middle.roll(1, 1) + corner + corner.roll(-1, 2))
        field[:, half::step, ::step] = noisy(middle + middle.roll(1, 2) + corner + corner.roll(-1, 1))
        step, amplitude = half, amplitude / decay
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low).clamp_min(1e-12)).float()


def _ice(x: Tensor, generator: Generator) -> Tensor:
    """Needles of ice (N, 3 or 1, H, W): ridges where rough clouds cross their middle, tinted blue."""
    n, channels, height, width = x.shape
    size = 1 << (2 * max(height, width) - 1).bit_length()
    ridges = torch.zeros(n, size, size)
    for decay, share in ((1.5, 0.6), (1.15, 0.4)):
        cloud = _plasma(n, size, decay, generator)
        middle = cloud.flatten(1).median(1).values.view(n, 1, 1)
        ridges += share * (1 - (cloud - middle).abs() * 7).clamp_min(0)
    ice = (0.25 + 0.75 * ridges)[:, None, :height, :width]
    if channels == 1:
        return ice
    return (ice * torch.tensor([0.9, 0.97, 1.05]).view(1, 3, 1, 1)).clamp_max(1)


def _each(x: Tensor, change: Callable) -> Tensor:
    """Apply a function of PIL images to each image."""
    from PIL import Image

    pixels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    if x.shape[1] == 1:
        pixels = pixels[..., 0]
    changed = np.stack([np.asarray(change(Image.fromarray(image))) for image in pixels])
    return torch.from_numpy(changed.reshape(len(x), *x.shape[2:], x.shape[1])).permute(0, 3, 1, 2) / 255
