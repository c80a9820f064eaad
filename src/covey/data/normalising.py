"""Means and deviations: of images, of a regression's targets, and those that a user or a pretrained network brings."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from covey.data.container import Normalisation, Split, Task
from covey.errors import DataError

_log = logging.getLogger("covey")


def standardised_targets(
    parts: dict[str, Split], task: Task
) -> tuple[dict[str, Split], Normalisation | None]:
    """Regression targets with mean 0 and deviation 1 over the training rows."""
    if task != "regression":
        return parts, None
    known = parts["train"].targets.double()
    columns = known[:, None] if known.ndim == 1 else known
    mean, std = columns.mean(0), columns.std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    found = {}
    for part, split in parts.items():
        values = split.targets.double().view(-1, len(mean))
        scaled = (values - mean) / std
        found[part] = Split(split.inputs, scaled.view_as(split.targets).float())
    return found, Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


def of_images(split: Split, shape: tuple[int, ...]) -> Normalisation | None:
    """Mean and deviation of each channel over the training images; None for what is no image."""
    if len(shape) != 3:
        return None
    if split.inputs.dtype == torch.uint8:
        # Exact, and much faster than sums of floats: count how often each of the 256 levels occurs.
        counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in split.inputs.unbind(1)])
        share = counts.double() / counts.sum(1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ level
        std = (share @ level.square() - mean.square()).clamp_min(0).sqrt()
    else:
        pixels = split.inputs.double()
        mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)
    std = torch.where(std > 1e-6, std, 1.0)
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


def fitting(given: Normalisation, images: Tensor, name: str) -> Normalisation:
    """A normalisation of the user's or a network's, with a number for each channel."""
    if images.ndim != 4:
        raise DataError(
            f"{name}: mean and deviation (--image-mean, --image-std) are of images' channels, and these data have rows "
            f"of shape {tuple(images.shape[1:])}"
        )
    channels = images.shape[1]
    if channels == 1:
        given = _grey(given, name)
    sizes = {len(given.mean), len(given.std)}
    if not sizes <= {1, channels}:
        raise DataError(
            f"{name}: the images have {channels} channels; mean and deviation (--image-mean, --image-std) have as many "
            f"numbers or one, got {len(given.mean)} and {len(given.std)}"
        )
    if min(given.mean) < 0 or max(*given.mean, *given.std) > 1:
        numbers = " ".join(f"{value:g}" for value in (*given.mean, *given.std))
        raise DataError(
            f"{name}: mean and deviation (--image-mean, --image-std) are of intensities from 0 to 1; got {numbers}. "
            "Divide those of intensities from 0 to 255 by 255"
        )
    if images.dtype != torch.uint8 and (images.min() < 0 or images.max() > 1):
        raise DataError(
            f"{name}: mean and deviation (--image-mean, --image-std) are of intensities from 0 to 1, and the images "
            f"reach from {float(images.min()):.3g} to {float(images.max()):.3g}: store them as floats from 0 to 1, or "
            "as uint8 from 0 to 255"
        )
    spread = (values * channels if len(values) == 1 else values for values in (given.mean, given.std))
    return Normalisation(*spread)


def _grey(given: Normalisation, name: str) -> Normalisation:
    """Mean and deviation of three colours for grey images, which a network sees whose weights of colours are added."""
    if len(given.mean) != 3 or len(given.std) != 3:
        return given
    mean, std = (sum(values) / 3 for values in (given.mean, given.std))
    _log.info(
        "%s has grey images: they are normalised with the mean over the colours, mean %.4g, std %.4g "
        "(--image-mean, --image-std)",
        name,
        mean,
        std,
    )
    return Normalisation((mean,), (std,))


def listed(normalisation: Normalisation | None) -> dict[str, list[float]] | None:
    """A normalisation as a run's record keeps it."""
    if normalisation is None:
        return None
    return {"mean": list(normalisation.mean), "std": list(normalisation.std)}
