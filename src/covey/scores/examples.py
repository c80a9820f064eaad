"""The test samples that an ensemble is most and least certain of, with a picture where inputs are images."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.extras import load

from .collect import pixels

EXAMPLES = 8
"""How many of the most certain samples are shown, and of the least certain ones."""

LARGEST = 256
"""Images wider or higher than this many pixels are not shown: the page would grow by megabytes."""


def examples(prediction: Prediction, labels: Tensor, inputs: Tensor | None) -> tuple[dict[str, Any], ...]:
    """The most and the least certain samples by entropy, as plain JSON; none where inputs are no images.

    Args:
        prediction: of the test set, (M, N, C).
        labels: its labels, (N,).
        inputs: its inputs (N, ...), if they are at hand.
    """
    if inputs is None or len(inputs) != len(labels) or not _are_images(inputs):
        return ()
    order = prediction.entropy.argsort(stable=True)
    count = min(EXAMPLES, len(order) // 2)
    most, least = order[:count], order.flip(0)[:count]
    chosen = torch.cat((most, least)).tolist()
    kinds = ["most certain"] * count + ["least certain"] * count
    found = []
    for kind, index, picture in zip(kinds, chosen, _pictures(inputs[chosen]), strict=True):
        found.append(
            {
                "kind": kind,
                "index": index,
                "label": int(labels[index]),
                "predicted": int(prediction.label[index]),
                "confidence": float(prediction.max_prob[index]),
                "entropy": float(prediction.entropy[index]),
                "picture": picture,
            }
        )
    return tuple(found)


def _are_images(inputs: Tensor) -> bool:
    """Whether inputs are (N, 1 or 3, H, W) of a size that can be shown."""
    return inputs.ndim == 4 and inputs.shape[1] in (1, 3) and max(inputs.shape[2:]) <= LARGEST


def _pictures(images: Tensor) -> list[str]:
    """Images (N, 1 or 3, H, W) as PNG data URIs."""
    if not len(images):
        return []
    shown = pixels(images).float()
    low, high = shown.min(), shown.max()
    if low < 0 or high > 1:
        # Normalised inputs: the true range is not known here, so stretch what there is.
        shown = (shown - low) / (high - low)
    levels = (shown * 255).round().to(torch.uint8)
    channels_last = levels.permute(0, 2, 3, 1).cpu().numpy()
    return [_png(image) for image in channels_last]


def _png(image: np.ndarray) -> str:
    """An image (H, W, 1 or 3) of uint8 as a PNG data URI."""
    pil = load("PIL.Image")

    if image.shape[-1] == 1:
        image = image[..., 0]
    file = io.BytesIO()
    pil.fromarray(image).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
