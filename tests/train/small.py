"""Small data and networks that training tests share."""

from __future__ import annotations

import torch
from torch import nn

from covey.data import Data, Split


def blobs(samples: int = 90, features: int = 6, classes: int = 3, held: int = 30) -> Data:
    """Gaussian blobs, one a class: a problem that a linear network solves."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(classes, features, generator=generator)

    def draw(count: int) -> Split:
        targets = torch.randint(classes, (count,), generator=generator)
        return Split(centres[targets] + torch.randn(count, features, generator=generator), targets)

    return Data(
        train=draw(samples),
        validation=draw(held),
        test=draw(held),
        task="classification",
        classes=tuple("abcdefgh"[:classes]),
        shape=(features,),
        record={"source": "blobs", "indices_sha256": {"train": str(samples)}},
    )


def line(samples: int = 64) -> Data:
    """y = 2 x with noise."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Split:
        x = torch.randn(count, 1, generator=generator)
        return Split(x, (2 * x + 0.1 * torch.randn(count, 1, generator=generator))[:, 0])

    return Data(draw(samples), draw(16), draw(16), task="regression", classes=(), shape=(1,))


def images(samples: int = 40) -> Data:
    """Images (1, 8, 8) of noise whose mean tells the class."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Split:
        targets = torch.arange(count) % 2
        return Split(torch.randn(count, 1, 8, 8, generator=generator) + targets[:, None, None, None], targets)

    return Data(draw(samples), draw(16), draw(16), task="classification", classes=("a", "b"), shape=(1, 8, 8))


def mlp(inputs: int = 6, outputs: int = 3, *, norm: bool = False, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(inputs, 8)]
    layers += [nn.BatchNorm1d(8)] if norm else []
    layers += [nn.ReLU()]
    layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(8, outputs))


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 2),
    )  # fmt: skip
