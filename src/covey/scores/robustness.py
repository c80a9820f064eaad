"""Accuracy and calibration under corruption: 15 kinds at 5 severities.

The mean corruption error is the plain mean of the error over the 75 combinations, without a reference
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covey.combine import Prediction
from covey.errors import EvaluationError

from .corruptions import CORRUPTIONS, SEVERITIES, corrupt
from .metrics import BINS, ece, nll


def corrupted_sets(images: Tensor, *, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """("fog/3", corrupted images) for each kind and severity, one set in memory at a time."""
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            yield f"{name}/{severity}", corrupt(images, name, severity, seed=seed)


def read_cifar_c(folder: str | Path, name: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images (10000, 3, 32, 32) in [0, 1] and labels of the published CIFAR-10-C or CIFAR-100-C files.

    `folder` holds `labels.npy` and one file a corruption, whose five blocks of 10,000 images are the
    severities.
    """
    folder = Path(folder)
    if severity not in SEVERITIES:
        raise EvaluationError(f"severity: expected 1 to 5, got {severity!r}")
    for file in (folder / f"{name}.npy", folder / "labels.npy"):
        if not file.is_file():
            raise EvaluationError(
                f"{file} is missing: unpack CIFAR-10-C.tar or CIFAR-100-C.tar into {folder}"
            )
    images = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    if images.ndim != 4 or len(images) % 5 or len(labels) != len(images):
        raise EvaluationError(
            f"{folder / name}.npy: expected 5 blocks of images and a label each, got {images.shape} and "
            f"{labels.shape}"
        )
    size = len(images) // 5
    block = slice((severity - 1) * size, severity * size)
    pixels = torch.from_numpy(np.array(images[block])).permute(0, 3, 1, 2) / 255
    return pixels, torch.from_numpy(labels[block].astype(np.int64))


def robustness_scores(corrupted: Mapping[str, Tensor], labels: Tensor) -> dict:
    """Scores from members' logits (M, K, C) by "kind/severity" and the labels (N,), the first K of them."""
    if not corrupted:
        return {}
    kinds: dict[str, dict[str, dict[str, float | None]]] = {}
    for key, logits in corrupted.items():
        name, _, severity = key.rpartition("/")
        log_probs = Prediction(logits).log_probs
        own = labels[: len(log_probs)]
        kinds.setdefault(name, {})[severity] = {
            "accuracy": float((log_probs.argmax(-1) == own).double().mean()),
            "nll": nll(log_probs, own),
            "ece": ece(log_probs, own) if len(own) >= BINS else None,
        }
    every = [scores for by_severity in kinds.values() for scores in by_severity.values()]
    levels = sorted({severity for by_severity in kinds.values() for severity in by_severity})
    by_severity = {
        level: {
            score: _mean([kind[level][score] for kind in kinds.values() if level in kind])
            for score in ("accuracy", "nll", "ece")
        }
        for level in levels
    }
    return {
        "mean_corruption_error": 1 - sum(s["accuracy"] or 0.0 for s in every) / len(every),
        "mean_corruption_ece": _mean([s["ece"] for s in every]),
        "by_severity": by_severity,
        "kinds": kinds,
        "samples": len(next(iter(corrupted.values()))[0]),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
