"""Train and eval mode for a while, put back module by module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*roots: nn.Module) -> Iterator[None]:
    """Whatever happens to the modes of these networks inside, afterwards every module is in the mode it was in.

    `network.train(network.training)` is not enough: it also puts layers into train mode that somebody froze in eval
    mode on purpose, such as the norms of a pretrained body.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with modes_kept(network):
    ...     _ = network.eval()
    >>> [module.training for module in network]
    [True, False]
    """
    modes = [(module, module.training) for root in roots for module in root.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """Eval mode for a while; afterwards every module is in the mode it was in."""
    with modes_kept(*roots):
        for root in roots:
            root.eval()
        yield
