"""Inputs, random states and outputs, and whether two of them are the same."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from catalogue import BATCH, Network
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from covey.networks.calls import arguments

TOLERANCE = 1e-6  # of the outputs' scale, in float64
LOW_TOLERANCE = 2e-4  # where the network computes in float32
LOWEST_TOLERANCE = 2e-2  # where it computes in float16 or bfloat16, as under autocast


class WrongError(Exception):
    """Something does not hold."""


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def seeded(function: Callable, *args: Any, **kwargs: Any) -> Any:
    seed(13)
    return function(*args, **kwargs)


def random_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def equal_states(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> bool:
    same_numpy = all(np.array_equal(left, right) for left, right in zip(a[1], b[1], strict=True))
    return torch.equal(a[0], b[0]) and same_numpy and a[2] == b[2]


def copied(inputs: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


def another(inputs: Any) -> Any:
    """Another batch: the samples in another order, numbers with some noise."""
    torch.manual_seed(2)
    return tree_map(_other_leaf, inputs)


def _other_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or len(leaf) != BATCH:
        return leaf
    turned = leaf.roll(1, 0)
    return turned + 0.1 * torch.rand_like(turned) if leaf.is_floating_point() else turned


def repeated(leaf: Any, members: int) -> Any:
    return torch.stack([leaf] * members) if isinstance(leaf, Tensor) else leaf


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def same_tensor(a: Tensor, b: Tensor | None, tolerance: float = 0.0) -> bool:
    if b is None or a.shape != b.shape:
        return False
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if tolerance == 0 or not a.is_floating_point():
        return torch.equal(a, b) or bool((a.isnan() & b.isnan() | (a == b)).all())
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def same(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE, what: str = "outputs") -> None:
    if found.shape != expected.shape:
        raise WrongError(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    scale = expected.detach().abs().max().clamp_min(1e-12)
    difference = ((found - expected).abs().max() / scale).item()
    if not difference <= tolerance:
        raise WrongError(f"{what} differ by {difference:.1e} of their scale")


class _Precision(TorchDispatchMode):
    """Notices results in less than float64."""

    tolerance = TOLERANCE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
                low = LOW_TOLERANCE if leaf.dtype == torch.float32 else LOWEST_TOLERANCE
                self.tolerance = max(self.tolerance, low)
        return result


@functools.cache
def tolerance(network: Network) -> float:
    """Of outputs that other operations give, as those of a batched run."""
    net = network.make().eval()
    args, kwargs = arguments(network.example())
    with _Precision() as precision, torch.no_grad():
        net(*args, **kwargs)
    return precision.tolerance


def loop_tolerance(network: Network) -> float:
    """Of outputs that almost the same operations give; in bfloat16 those differ too."""
    return LOWEST_TOLERANCE if tolerance(network) == LOWEST_TOLERANCE else TOLERANCE
