"""In which order an epoch sees its samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from covey.data import keyed
from covey.errors import OptionError

_ORDER = 1  # keeps the shuffle's numbers apart from those of the augmentation, which has the same other keys


def epoch_order(n: int, *, seed: int, epoch: int) -> Tensor:
    """The order of n samples in an epoch, (n,) int64: a pure function of (n, seed, epoch)."""
    return keyed.permutation(n, (seed, epoch, _ORDER))


def batches(
    n: int, size: int, *, seed: int, epoch: int, start: int = 0, shuffle: bool = True
) -> Iterator[Tensor]:
    """Sample numbers of the batches of one epoch, each (size,) int64; the last one may be shorter.

    Args:
        n: number of samples.
        size: samples in a batch.
        seed: with `epoch` it fixes the order.
        epoch: epochs done before this one.
        start: batches of this epoch that were already used, so that a run resumes in its middle.
        shuffle: False for the order on disk, as evaluation wants it.

    >>> [b.tolist() for b in batches(5, 2, seed=0, epoch=0, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    """
    if size < 1 or n < 1:
        raise OptionError(
            f"batches need at least one sample and a size of at least 1; got n={n}, size={size}"
        )
    order = epoch_order(n, seed=seed, epoch=epoch) if shuffle else torch.arange(n)
    yield from order.split(size)[start:]
