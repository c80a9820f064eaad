"""Random numbers that depend on nothing but their keys, and the global random state left as it was."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

_WITHOUT_STATE = {"cpu", "meta"}
"""Devices that have no random state besides the CPU's."""


def seed_of(*keys: int | str) -> int:
    """A seed that is a function of the keys."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def generator_of(*keys: int | str) -> torch.Generator:
    """A generator of random numbers that depends on the keys only."""
    return torch.Generator().manual_seed(seed_of(*keys))


@contextmanager
def random_state_kept(*where: nn.Module | torch.device, seed: int | None = None) -> Iterator[None]:
    """Leave the global random state as it was: the CPU's, that of the accelerators in use, NumPy's and Python's.

    People's networks, data sets and transforms draw from all of them.

    An accelerator that is not in use is not even woken, since a process that woke one can no longer be forked.

    Args:
        *where: what the block works with: modules, or devices.
        seed: what the block begins with; by default the state that there is.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in _accelerators(where):
            every = range(torch.get_device_module(kind).device_count())
            stack.enter_context(torch.random.fork_rng(devices=every, device_type=kind))
        stack.enter_context(_others_kept())
        if seed is not None:
            np.random.seed(seed % (1 << 32))
            random.seed(seed)
            reseed(seed, *where)
        yield


@contextmanager
def _others_kept() -> Iterator[None]:
    """NumPy's and Python's global random numbers, put back."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def reseed(seed: int, *where: nn.Module | torch.device) -> None:
    """Begin the global random numbers anew: the CPU's, and those of the accelerators in use."""
    if _accelerators(where):
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every accelerator


def random_states(devices: Collection[torch.device]) -> list[torch.Tensor]:
    """The global random state of the CPU, and of the accelerators among the devices."""
    states = [torch.get_rng_state()]
    for device in devices:
        if device.type not in _WITHOUT_STATE:
            states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _accelerators(where: tuple[nn.Module | torch.device, ...]) -> list[str]:
    """The kinds of accelerators that modules and devices are on."""
    found = set()
    for place in where:
        if isinstance(place, torch.device):
            found.add(place.type)
        else:
            found |= {tensor.device.type for tensor in [*place.parameters(), *place.buffers()]}
    return sorted(found - _WITHOUT_STATE)
