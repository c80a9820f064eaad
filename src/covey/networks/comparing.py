"""Whether two tensors are equal but for rounding, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # of the outputs' scale
LOW_PRECISION = 0.02
NOTHING = 1e-6  # numbers below are taken for zeros: a mean of 1e-17 is rounding itself


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """As buffers are merged: floats to their mean, others to the first."""
    return torch.stack(list(tensors)).mean(0) if tensors[0].is_floating_point() else tensors[0]


def _plain(tensor: Tensor) -> Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.detach().double()


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference; where both are NaN, or infinite alike, there is none."""
    left, right = _plain(a), _plain(b)
    differ = (left != right) & ~(left.isnan() & right.isnan())
    if not differ.any():
        return 0.0
    gaps = (left - right).abs()[differ]
    return gaps.nan_to_num(nan=torch.inf).max().item()


def _scale(tensor: Tensor) -> float:
    finite = _plain(tensor)
    finite = finite[finite.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def same(a: Tensor, b: Tensor, precision: torch.dtype | None = None) -> bool:
    """Whether two tensors are equal but for rounding; `precision` is what they were computed in, if not their own."""
    if a.shape != b.shape:
        return False
    if a.dtype == b.dtype and torch.equal(a, b):  # as nearly all are
        return True
    tolerance = TOLERANCE.get(b.dtype, LOW_PRECISION) if b.is_floating_point() else 0.0
    if b.is_floating_point() and precision is not None and precision not in TOLERANCE:
        tolerance = LOW_PRECISION
    if b.is_complex():
        tolerance = TOLERANCE[torch.float32]
    return distance(a, b) <= tolerance * max(_scale(b), NOTHING)


def difference(found: Tensor, expected: Tensor) -> str:
    """How far two tensors are apart, in words."""
    if found.shape != expected.shape:
        return f"it has the shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    return f"they differ by {distance(found, expected):.3g}, where the largest is {_scale(expected):.3g}"
