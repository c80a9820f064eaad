"""What a forward pass leaves behind in Python: cached tensors, stored activations, counters.

All members of an ensemble run in one hollow network. A network that keeps a tensor in an attribute, or in a dict or
list of its own, would hand one member's tensor to the next. So every member starts from the same Python state, and
afterwards tensors are dropped; plain values (a step counter) are kept as the last member left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_PLAIN = (int, float, bool, str, bytes, complex, type(None))
_DEPTH = 4  # of containers inside containers


@contextmanager
def nothing_left_behind(networks: Sequence[nn.Module]) -> Iterator[Callable[[], None]]:
    """Put the networks' Python state back when the block ends; yields a function that puts it back in between.

    >>> class Caches(nn.Module):
    ...     def forward(self, x):
    ...         self.calls = getattr(self, "calls", 0) + 1
    ...         self.seen = x
    ...         return x
    >>> network = Caches()
    >>> with nothing_left_behind([network]):
    ...     _ = network(torch.ones(1))
    >>> network.calls, hasattr(network, "seen")
    (1, False)
    """
    if torch.compiler.is_compiling():  # a compiled graph holds no Python state
        yield lambda: None
        return
    state = _PythonState(networks)
    try:
        yield state.restore
    finally:
        state.restore(keep_plain=True)


class _PythonState:
    """Attributes of modules, and the contents of their dicts, lists and sets, as they are now."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self.containers: list[tuple[Any, Any]] = []
        for network in networks:
            for module in network.modules():
                if not _is_torch_s_own(module):
                    self._remember(module)

    def restore(self, keep_plain: bool = False) -> None:
        """Put everything back, but for new plain values of attributes if asked."""
        for module, before in self.attributes:
            now = module.__dict__
            if len(now) != len(before) or any(now.get(key) is not value for key, value in before.items()):
                _put_back(now, before, keep_plain)
        for container, before in self.containers:
            if not _same_contents(container, before):
                _refill(container, before)

    def _remember(self, module: nn.Module) -> None:
        self.attributes.append((module, dict(module.__dict__)))
        for key, value in module.__dict__.items():
            if not _is_module_s_own(key):
                self._remember_contents(value, _DEPTH)

    def _remember_contents(self, value: Any, depth: int) -> None:
        if type(value) not in (dict, list, set) or depth == 0:
            return
        self.containers.append((value, value.copy()))
        for inner in value.values() if isinstance(value, dict) else value:
            self._remember_contents(inner, depth - 1)


def _is_torch_s_own(module: nn.Module) -> bool:
    """Whether it is one of torch's layers, whose forward passes keep nothing in Python."""
    return type(module).__module__.startswith("torch.nn.modules.")


def _is_module_s_own(key: str) -> bool:
    """Whether an attribute is one of those that every module has for torch's use."""
    return key in ("_parameters", "_buffers", "_modules") or key.endswith("_hooks")


def _put_back(now: dict[str, Any], before: dict[str, Any], keep_plain: bool) -> None:
    for key in [key for key in now if now[key] is not before.get(key, now)]:
        if keep_plain and isinstance(now[key], _PLAIN):
            continue
        if key in before:
            now[key] = before[key]
        else:
            del now[key]
    for key in before:
        now.setdefault(key, before[key])


def _same_contents(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(key in container and container[key] is value for key, value in before.items())
    if isinstance(container, list):
        return all(a is b for a, b in zip(container, before, strict=True))
    return container == before


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(before)
    else:
        container.update(before)
