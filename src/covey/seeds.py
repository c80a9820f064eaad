"""Random numbers that depend on nothing but their keys, so that a resumed run draws the same ones."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*keys: int | str) -> int:
    """A seed that is a function of the keys."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def generator_of(*keys: int | str) -> torch.Generator:
    """A generator of random numbers that depends on the keys only."""
    return torch.Generator().manual_seed(seed_of(*keys))
