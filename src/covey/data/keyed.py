"""Random numbers that are a pure function of their keys.

A number depends on (seed, epoch, sample, stream) and on nothing else: not on the order of calls, the size of
a batch or the number of processes. The function is splitmix64 (Steele, Lea, Flood 2014) applied key after
key, in int64 tensors whose products wrap as unsigned ones do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from covey.extras import load


def _signed(value: int) -> int:
    """The int64 that has the same bits as this unsigned 64-bit number."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own is arithmetic and would copy the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def bits(samples: Tensor, keys: Sequence[int | Tensor], count: int = 1) -> Tensor:
    """64 random bits for each sample, as int64.

    Args:
        samples: sample numbers, int64 of any shape (...).
        keys: whatever else the numbers depend on (seed, epoch, a number for the purpose), each an int, or a
            tensor that broadcasts with `samples`.
        count: how many numbers for each sample.

    Returns:
        (..., count) int64.
    """
    state = torch.zeros_like(samples, dtype=torch.int64)
    for key in (*keys, samples):
        state = _mix(state ^ (key if isinstance(key, Tensor) else _signed(key % (1 << 64))))
    return _mix(state[..., None] + torch.arange(count, device=samples.device) * _GOLDEN)


def uniform(samples: Tensor, keys: Sequence[int | Tensor], count: int = 1) -> Tensor:
    """Uniform numbers in [0, 1), (..., count) float64; arguments as for `bits`."""
    return _shift(bits(samples, keys, count), 11).double() * 2.0**-53


def normal(samples: Tensor, keys: Sequence[int | Tensor], count: int = 1) -> Tensor:
    """Standard normal numbers by Box and Muller, (..., count) float64; arguments as for `bits`."""
    u = uniform(samples, keys, 2 * count)
    radius = torch.sqrt(-2 * torch.log1p(-u[..., :count]))
    return radius * torch.cos(2 * math.pi * u[..., count:])


def beta(samples: Tensor, keys: Sequence[int | Tensor], alpha: float, count: int = 1) -> Tensor:
    """Numbers from Beta(alpha, alpha) by the inverse of its distribution function, (..., count) float64."""
    u = uniform(samples, keys, count)
    if alpha == 1:
        return u
    betaincinv = load("scipy.special").betaincinv

    return torch.from_numpy(betaincinv(alpha, alpha, u.cpu().numpy())).to(u.device)


def permutation(n: int, keys: Sequence[int | Tensor]) -> Tensor:
    """The numbers 0 to n-1 in a random order that depends on the keys only, (n,) int64."""
    return torch.argsort(bits(torch.arange(n), keys)[:, 0], stable=True)
