"""Samples to look at: the most and the least certain, confident mistakes, and foreign inputs taken for known ones.

Each has a picture where inputs are images, and its first numbers where they are rows of a table.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.extras import load

EXAMPLES = 8
"""How many samples of each kind are shown."""

LARGEST = 256
"""Images wider or higher than this many pixels are not shown: the page would grow by megabytes."""

MOST_COLUMNS = 6
"""How many numbers of a table's row are shown."""

MOST_SETS = 4
"""Of how many out-of-distribution sets samples are shown."""

MAP = "uncertainty map"
"""The kind of what dense prediction draws beside each other: image, classes, answer, uncertainty."""

CERTAIN, UNCERTAIN, WRONG, OUTSIDE = (
    "most certain",
    "least certain",
    "confidently wrong",
    "out of distribution",
)
KINDS = (MAP, CERTAIN, UNCERTAIN, WRONG, OUTSIDE)
"""The kinds of examples, in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The inputs that examples are taken from.

    Args:
        test: of the test set, (N, ...).
        ood: of the out-of-distribution sets.
        columns: the names of a table's columns.
    """

    test: Tensor | None = None
    ood: Mapping[str, Tensor] = field(default_factory=dict)
    columns: Sequence[str] = ()


def examples(
    prediction: Prediction, labels: Tensor, outside: Mapping[str, Prediction], shown: Shown
) -> tuple[dict[str, Any], ...]:
    """Samples of every kind as plain JSON; none where inputs are neither images nor rows.

    Args:
        prediction: of the test set, (M, N, C).
        labels: its labels, (N,).
        outside: predictions of the out-of-distribution sets.
        shown: the inputs, as far as they are at hand.
    """
    found: list[dict[str, Any]] = []
    if shown.test is not None and len(shown.test) == len(labels):
        for kind, choose in _CHOICES.items():
            chosen = choose(prediction, labels)
            found += _described(kind, chosen, prediction, shown.test, shown.columns, labels)
    for name, predicted in list(outside.items())[:MOST_SETS]:
        inputs = shown.ood.get(name)
        if inputs is not None and len(inputs) == predicted.logits.shape[1]:
            surest = predicted.entropy.argsort(stable=True)[:EXAMPLES]
            for example in _described(OUTSIDE, surest, predicted, inputs, shown.columns):
                found.append({**example, "set": name})
    return tuple(found)


def _most_certain(prediction: Prediction, labels: Tensor) -> Tensor:
    order = prediction.entropy.argsort(stable=True)
    return order[: min(EXAMPLES, len(order) // 2)]


def _least_certain(prediction: Prediction, labels: Tensor) -> Tensor:
    order = prediction.entropy.argsort(stable=True)
    return order.flip(0)[: min(EXAMPLES, len(order) // 2)]


def _confidently_wrong(prediction: Prediction, labels: Tensor) -> Tensor:
    wrong = (prediction.label != labels).nonzero().flatten()
    order = prediction.max_prob[wrong].argsort(descending=True, stable=True)
    return wrong[order[:EXAMPLES]]


_CHOICES: dict[str, Callable[[Prediction, Tensor], Tensor]] = {
    CERTAIN: _most_certain,
    UNCERTAIN: _least_certain,
    WRONG: _confidently_wrong,
}


def _described(
    kind: str,
    chosen: Tensor,
    prediction: Prediction,
    inputs: Tensor,
    columns: Sequence[str],
    labels: Tensor | None = None,
) -> list[dict[str, Any]]:
    rows = chosen.tolist()
    found = []
    for index, seen in zip(rows, _looks(inputs[chosen], columns), strict=False):
        found.append(
            {
                "kind": kind,
                "index": index,
                "label": None if labels is None else int(labels[index]),
                "predicted": int(prediction.label[index]),
                "confidence": float(prediction.max_prob[index]),
                "entropy": float(prediction.entropy[index]),
                **seen,
            }
        )
    return found


def _looks(inputs: Tensor, columns: Sequence[str]) -> list[dict[str, Any]]:
    """What a reader sees of each input: a picture, or a row's first numbers; nothing of other inputs."""
    if are_images(inputs):
        return [{"picture": picture} for picture in pictures(inputs)]
    if inputs.ndim == 2 and inputs.is_floating_point():
        names = (
            list(columns) if len(columns) == inputs.shape[1] else [f"x{k}" for k in range(inputs.shape[1])]
        )
        found = []
        for row in inputs[:, :MOST_COLUMNS].tolist():
            numbers = [value if math.isfinite(value) else None for value in row]
            found.append({"values": dict(zip(names, numbers, strict=False))})
        return found
    return []


def are_images(inputs: Tensor) -> bool:
    """Whether inputs are (N, 1 or 3, H, W) of a size that can be shown."""
    return inputs.ndim == 4 and inputs.shape[1] in (1, 3) and max(inputs.shape[2:]) <= LARGEST


def pixels(images: Tensor) -> Tensor:
    """Images as float in [0, 1] if they were uint8, else as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def pictures(images: Tensor) -> list[str]:
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
    return [png(image) for image in channels_last]


def png(image: np.ndarray) -> str:
    """An image (H, W, 1 or 3) of uint8 as a PNG data URI."""
    pil = load("PIL.Image")

    if image.shape[-1] == 1:
        image = image[..., 0]
    file = io.BytesIO()
    pil.fromarray(image).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
