"""Small sets that need no download: a part of Fashion-MNIST that comes with covey, and those of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from covey.data import layouts
from covey.data.container import Split
from covey.data.raw import Raw
from covey.extras import load

FASHION_FOLDER = Path(__file__).parent / "fashion"


def read_fashion(parts: Sequence[str], *, classes: tuple[str, ...]) -> Raw:
    """The first 3,000 training and 2,000 test images of Fashion-MNIST, in the publisher's own format."""
    files = {
        "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    }
    return layouts.read_mnist(FASHION_FOLDER, parts, files=files, classes=classes)


def read_digits() -> Raw:
    """1,797 handwritten digits of 8 x 8 pixels; the 17 grey levels are spread over 0 to 255."""
    load_digits = load("sklearn.datasets").load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8))[:, None]
    return Raw(
        {"train": Split(images, torch.from_numpy(bunch.target))}, "classification", tuple("0123456789")
    )


def read_bundled_table(name: str) -> Raw:
    """One of scikit-learn's tables: breast_cancer, iris, wine or diabetes."""
    datasets = load("sklearn.datasets")

    loader = {
        "breast_cancer": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "diabetes": datasets.load_diabetes,
    }[name]
    bunch = loader(as_frame=True)
    rows = torch.arange(len(bunch.data))
    targets = torch.from_numpy(bunch.target.to_numpy(copy=True))
    if name == "diabetes":
        return Raw({"train": Split(rows, targets.double())}, "regression", frame=bunch.data)
    classes = tuple(str(c) for c in bunch.target_names)
    return Raw({"train": Split(rows, targets.long())}, "classification", classes, bunch.data)
