"""Accuracy and calibration under corruption: 15 kinds at 5 severities.

The mean corruption error is the plain mean of the error over the 75 combinations, without a reference
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.data.npy import map_npy
from covey.errors import DataError, EvaluationError

from .corruptions import CORRUPTIONS, SEVERITIES, corrupt
from .metrics import BINS, Scores, ece, mean_scores, nll


def corrupted_sets(images: Tensor, *, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """("fog/3", corrupted images) for each kind and severity, one set in memory at a time."""
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            yield f"{name}/{severity}", corrupt(images, name, severity, seed=seed)


@dataclass(frozen=True)
class Corruptions:
    """Which corrupted test images are scored.

    Args:
        count: the first so many; of published files 0 is all.
        folder: of published files, such as CIFAR-10-C; None corrupts the images here.
    """

    count: int = 0
    folder: Path | None = None

    @property
    def asked(self) -> bool:
        """Whether there are any."""
        return bool(self.count or self.folder is not None)

    def sets(self, images: Tensor, labels: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The corrupted images (K, C, H, W) in [0, 1] for each kind and severity.

        Args:
            images: the test images, (N, C, H, W) in [0, 1].
            labels: their labels, (N,), which published files must have too.
        """
        if self.folder is None:
            yield from corrupted_sets(images[: self.count])
            return
        for name in CORRUPTIONS:
            for severity in SEVERITIES:
                yield f"{name}/{severity}", self._published(self.folder, name, severity, labels)

    def check(self, images: Tensor, labels: Tensor) -> None:
        """Refuse published files that are missing, or are not of the test data with these images and labels."""
        if self.folder is None:
            return
        low, high = float(images.min()), float(images.max())
        if low < 0 or high > 1:
            raise EvaluationError(
                f"published corruptions are pictures with values from 0 to 1, and the test images have {low:.3g} to "
                f"{high:.3g}: they were normalised. Give them as they are; a data set of covey normalises by itself."
            )
        for name in CORRUPTIONS:
            found = self._published(self.folder, name, 1, labels)
            if found.shape[1:] != images.shape[1:]:
                raise EvaluationError(
                    f"{self.folder} has pictures of shape {tuple(found.shape[1:])}, and the test images have "
                    f"{tuple(images.shape[1:])}."
                )

    def _published(self, folder: Path, name: str, severity: int, labels: Tensor) -> Tensor:
        count = self.count or len(labels)
        found, published = read_cifar_c(folder, name, severity)
        if not torch.equal(published[:count], labels[:count].cpu().long()):
            raise EvaluationError(
                f"{folder} holds corrupted images of another test set, or the test data are a part of it or in another "
                "order: the labels differ."
            )
        return found[:count]


def read_cifar_c(folder: str | Path, name: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images (10000, 3, 32, 32) in [0, 1] and labels of the published CIFAR-10-C or CIFAR-100-C files.

    `folder` holds `labels.npy` and one file per corruption, whose five blocks of 10,000 images are the
    severities.
    """
    folder = Path(folder)
    if severity not in SEVERITIES:
        raise EvaluationError(f"severity: expected 1 to 5, got {severity!r}")
    images_file, labels_file = folder / f"{name}.npy", folder / "labels.npy"
    for file in (images_file, labels_file):
        if not file.is_file():
            raise EvaluationError(
                f"{file} is missing: unpack CIFAR-10-C.tar or CIFAR-100-C.tar into {folder}"
            )
    # Mapped, because a file holds all severities and one of them is wanted.
    try:
        images, labels = map_npy(images_file), map_npy(labels_file)
    except DataError as problem:
        raise EvaluationError(str(problem)) from problem
    plain = images.dtype.kind in "iu" and labels.dtype.kind in "iu"
    if not plain or images.ndim != 4 or len(images) % 5 or labels.shape != images.shape[:1]:
        raise EvaluationError(
            f"{images_file}: expected 5 blocks of images and a label each, got {images.dtype} of shape {images.shape} "
            f"and {labels.dtype} of shape {labels.shape}"
        )
    size = len(images) // 5
    block = slice((severity - 1) * size, severity * size)
    channels_last = torch.from_numpy(np.array(images[block]))
    pixels = channels_last.permute(0, 3, 1, 2) / 255
    return pixels, torch.from_numpy(labels[block].astype(np.int64))


def robustness_scores(corrupted: Mapping[str, Tensor], labels: Tensor) -> dict:
    """Scores from members' logits (M, K, C) by "kind/severity" and the labels (N,), the first K of them."""
    if not corrupted:
        return {}
    kinds: dict[str, dict[str, Scores]] = {}
    of_severity: dict[str, list[Scores]] = {}
    every: list[Scores] = []
    samples = 0
    for key, logits in corrupted.items():
        name, _, severity = key.rpartition("/")
        samples = logits.shape[1]
        scores = _scores(logits, labels[:samples])
        kinds.setdefault(name, {})[severity] = scores
        of_severity.setdefault(severity, []).append(scores)
        every.append(scores)
    by_severity = {}
    for severity in sorted(of_severity):
        by_severity[severity] = mean_scores(of_severity[severity])
    overall = mean_scores(every)
    accuracy = overall["accuracy"]
    assert accuracy is not None  # unlike the calibration error, it is defined for any number of samples
    return {
        "mean_corruption_error": 1 - accuracy,
        "mean_corruption_ece": overall["ece"],
        "mean_corruption_nll": overall["nll"],
        "by_severity": by_severity,
        "kinds": kinds,
        "samples": samples,
    }


def _scores(logits: Tensor, labels: Tensor) -> Scores:
    log_probs = Prediction(logits).log_probs
    correct = log_probs.argmax(-1) == labels
    return {
        "accuracy": float(correct.double().mean()),
        "nll": nll(log_probs, labels),
        "ece": ece(log_probs, labels) if len(labels) >= BINS else None,
    }
