"""Prints digests of what methods make of a few networks, for `test_seeds.py`: no digest may follow a set's order."""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import Tensor

from test_laws import CASES, ensemble_of


def digest(tensors: dict[str, Tensor]) -> str:
    """Of names and values."""
    total = hashlib.sha256()
    for name, tensor in tensors.items():  # in their order, which is part of what is stored
        total.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method, name in CASES:
        if name in sys.argv[1:]:
            print(method, name, digest(ensemble_of(method, name).state_dict()))
