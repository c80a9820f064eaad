"""Prints digests of what every method makes of the laws' networks of these names, for `test_order.py`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from test_laws import CASES, ensemble_of


def digests(names: Sequence[str]) -> Iterator[str]:
    """A line for each method and network."""
    for method, name in CASES:
        if name in names:
            torch.manual_seed(0)
            yield f"{method} {name} {_digest(ensemble_of(method, name).state_dict())}"


def _digest(tensors: dict[str, Tensor]) -> str:
    """Of names and values, in their order, which is part of what is stored."""
    total = hashlib.sha256()
    for name, tensor in tensors.items():
        total.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in digests(sys.argv[1:]):
        print(line)
