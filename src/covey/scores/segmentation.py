"""Scores and pictures of dense prediction: a class for each pixel, and how sure it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.data.container import IGNORED

from .classes import confusion
from .examples import MAP, are_images, png
from .metrics import Scores

MAPS = 4
"""How many images of most, and of least, uncertainty are drawn."""

LOOKED_AT = 64
"""The images, the first ones, that those are chosen from."""

PANEL = 120
"""The most pixels of a panel's side; larger images are thinned out."""

PALETTE = (
    (125, 131, 140), (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
    (240, 228, 66),
)  # fmt: skip
"""Colours of classes, in turn: Okabe and Ito's, after a grey for the background."""

HEAT = (255, 48, 0)
"""The colour that uncertainty is drawn in."""


def intersection_over_union(counts: Tensor) -> list[float | None]:
    """IoU of each class from a confusion matrix: pixels that are right, over those of the class or answered with it.

    None for a class that neither occurs nor is answered.
    """
    right = counts.diagonal()
    either = counts.sum(0) + counts.sum(1) - right
    found: list[float | None] = []
    for both, any_ in zip(right.tolist(), either.tolist(), strict=True):
        found.append(both / any_ if any_ else None)
    return found


def mean_iou(predicted: Tensor, labels: Tensor, classes: int) -> float:
    """Mean IoU over the classes that occur or are answered.

    >>> mean_iou(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]), 3)
    0.5833333333333333
    """
    known = [iou for iou in intersection_over_union(confusion(predicted, labels, classes)) if iou is not None]
    return sum(known) / len(known)


def add_iou(scores: dict[str, Any], prediction: Prediction, labels: Tensor) -> None:
    """Put mean IoU among the scores of the ensemble and its members, and each class's among those of classes."""
    classes = prediction.logits.shape[-1]
    each: list[Scores] = scores["members"]
    for own, logits in zip(each, prediction.logits, strict=True):
        own["miou"] = mean_iou(logits.argmax(-1), labels, classes)
    scores["ensemble"]["miou"] = mean_iou(prediction.label, labels, classes)
    scores["member_mean"]["miou"] = sum(own["miou"] or 0.0 for own in each) / len(each)
    scores["per_class"]["iou"] = intersection_over_union(confusion(prediction.label, labels, classes))


def uncertainty_maps(logits: Tensor, labels: Tensor, images: Tensor) -> list[dict[str, Any]]:
    """Images with their classes, the answer and its entropy drawn side by side, as plain JSON.

    Those of most and of least mean entropy. The last panel is the image in grey, reddened where the answer is unsure:
    fully at the entropy of equal probabilities.

    Args:
        logits: members' logits, (M, N, H, W, C).
        labels: classes of the pixels, (N, H, W).
        images: (N, 1 or 3, H, W), uint8 or floats of any range.
    """
    if not are_images(images):
        return []
    prediction = Prediction(logits)
    entropy = prediction.entropy
    order = entropy.flatten(1).mean(1).argsort(descending=True, stable=True).tolist()
    count = min(MAPS, len(order) // 2 or 1)
    chosen = list(dict.fromkeys([*order[:count], *order[-count:]]))
    found = []
    for index in chosen:
        share = entropy[index] / math.log(logits.shape[-1])
        counts = labels[index] != IGNORED
        right = (prediction.label[index] == labels[index])[counts]
        panels = (
            _unit(images[index]),
            _coloured(labels[index]),
            _coloured(prediction.label[index]),
            _heated(_unit(images[index]), share),
        )
        found.append(
            {
                "kind": MAP,
                "index": index,
                "accuracy": float(right.double().mean()) if len(right) else None,
                "entropy": float(entropy[index].mean()),
                "picture": _side_by_side(panels),
            }
        )
    return found


def _unit(image: Tensor) -> np.ndarray:
    """An image (1 or 3, H, W) of any range as (H, W, 3) from 0 to 1."""
    values = image.float()
    if image.dtype == torch.uint8:
        values = values / 255
    elif values.min() < 0 or values.max() > 1:
        values = (values - values.min()) / (values.max() - values.min())
    return values.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()


def _coloured(classes: Tensor) -> np.ndarray:
    """Classes (H, W) as colours (H, W, 3) from 0 to 1; pixels that do not count are black."""
    palette = np.array(PALETTE) / 255
    found = palette[classes.long().cpu().numpy() % len(PALETTE)]
    found[(classes == IGNORED).cpu().numpy()] = 0
    return found


def _heated(image: np.ndarray, share: Tensor) -> np.ndarray:
    """The image in grey, with the colour of heat over it by a share (H, W)."""
    grey = image.mean(-1, keepdims=True).repeat(3, -1)
    weight = share.clamp(0, 1).cpu().numpy()[..., None]
    return (1 - weight) * grey + weight * np.array(HEAT) / 255


def _side_by_side(panels: tuple[np.ndarray, ...]) -> str:
    """Panels (H, W, 3) beside each other, a white line between, as a PNG."""
    height, width, _ = panels[0].shape
    every = max(1, math.ceil(max(height, width) / PANEL))
    thin = [panel[::every, ::every] for panel in panels]
    gap = np.ones((thin[0].shape[0], 1, 3))
    pieces = [thin[0]]
    for panel in thin[1:]:
        pieces += [gap, panel]
    whole = np.concatenate(pieces, 1)
    return png((whole * 255).round().clip(0, 255).astype(np.uint8))
