"""What a forward pass leaves behind in Python: cached tensors, stored activations, counters.

All members of an ensemble run in one hollow network. A network that keeps a tensor in an attribute, or in a dict or
list of its own, would hand one member's tensor to the next. So every member starts from the same Python state. After
the last one, a module that was left a tensor is put back as it was; plain values of other modules (a step counter)
stay as the last member left them, as in a network of one's own. Methods under `functools.lru_cache` forget. Where a
pass registers hooks, as transformers does to collect hidden states, everything is put back: with a note that it has
done so but not its hooks, or the other way round, it would collect nothing, or twice.

What is not seen: caches in globals, and tensors that are changed in place without being parameters or buffers, which
`examine` refuses.
"""

from __future__ import annotations

import functools
import numbers
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from covey.networks.held import CONTAINERS, DEPTH, LARGE, STANDARD, is_plain_object, slots_of

_STANDARD = STANDARD - {"_buffers", "_modules"}
_ATOMS = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device})
"""What most attributes are, and nothing can be kept in."""


@contextmanager
def nothing_left_behind(
    networks: Sequence[nn.Module], keep_plain: bool = True
) -> Iterator[Callable[[], None]]:
    """Put the networks' Python state back when the block ends; yields a function that puts it back in between.

    Args:
        networks: whose modules.
        keep_plain: whether at the end plain values of modules that were left no tensor stay as they are; never where
            the block raises.

    >>> class Caches(nn.Module):
    ...     def forward(self, x):
    ...         self.seen = x
    ...         return x
    >>> network = Caches()
    >>> with nothing_left_behind([network]):
    ...     _ = network(torch.ones(1))
    >>> hasattr(network, "seen")
    False
    """
    if torch.compiler.is_compiling():  # a compiled graph holds no Python state
        yield lambda: None
        return
    holders = []
    kinds: dict[type, None] = {}
    for network in networks:
        for module in network.modules():
            holders.append(_Holder(module))
            kinds[type(module)] = None
    memories = [memory for kind in kinds for memory in _memories(kind)]

    def restore(keep_plain: bool) -> None:
        # all are asked: any() would stop at the first
        hooked = [holder.drop_new_hooks() for holder in holders]
        keep_plain = keep_plain and not any(hooked)
        for holder in holders:
            holder.restore(keep_plain)
        for memory in memories:
            memory.cache_clear()

    try:
        yield lambda: restore(False)
    except BaseException:
        # a call that failed was none: it may be made again in another way, and must not be counted twice
        restore(False)
        raise
    restore(keep_plain)


@functools.cache
def _memories(kind: type) -> tuple[Any, ...]:
    """The methods of a class that remember what they returned."""
    found = []
    for parent in kind.__mro__:
        for value in parent.__dict__.values():
            if isinstance(value, functools._lru_cache_wrapper):
                found.append(value)
    return tuple(found)


class _Holder:
    """A module, its attributes, and the contents of its containers, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self.attributes = module.__dict__
        self.size = len(self.attributes)
        self.hooks = [(hooks, tuple(hooks)) for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.before: dict[str, Any] = {}
        self.contents: list[_Contents | _Slots] = []
        for key, value in self.attributes.items():
            if key not in _STANDARD:
                self.before[key] = value
                self._look_into(value, DEPTH)

    def drop_new_hooks(self) -> bool:
        """Take away the hooks that were registered since; returns whether there were some."""
        dropped = False
        for hooks, before in self.hooks:
            if len(hooks) > len(before):
                for key in [key for key in hooks if key not in before]:
                    del hooks[key]
                dropped = True
        return dropped

    def restore(self, keep_plain: bool) -> None:
        """Put everything back; or, where no tensor was left in the module, nothing, if plain values are to be kept."""
        added = len(self.attributes) != self.size
        changed = added or any(self.attributes.get(key) is not value for key, value in self.before.items())
        moved = [contents for contents in self.contents if contents.changed()]
        if not changed and not moved:
            return
        if keep_plain and not self._left_tensors(moved):
            return
        for contents in moved:
            contents.restore()
        if changed:
            self._restore_attributes()

    def _look_into(self, value: Any, depth: int) -> None:
        if type(value) in _ATOMS or depth == 0 or isinstance(value, nn.Module | Tensor | str):
            return
        if isinstance(value, CONTAINERS):
            self.contents.append(_Contents(value))
            if len(value) <= LARGE:
                for inner in list(value.values()) if isinstance(value, dict) else list(value):
                    self._look_into(inner, depth - 1)
        elif isinstance(value, tuple):
            for inner in value:
                self._look_into(inner, depth - 1)
        elif is_plain_object(value):
            if hasattr(value, "__dict__"):
                self.contents.append(_Contents(value.__dict__))
            if hasattr(type(value), "__slots__"):
                self.contents.append(_Slots(value))

    def _left_tensors(self, moved: Sequence[_Contents | _Slots]) -> bool:
        new = [
            v for key, v in self.attributes.items() if key not in _STANDARD and v is not self.before.get(key)
        ]
        return not all(map(_is_plain, new)) or any(not contents.is_plain() for contents in moved)

    def _restore_attributes(self) -> None:
        for key in [key for key in self.attributes if key not in _STANDARD and key not in self.before]:
            del self.attributes[key]
        self.attributes.update(self.before)


class _Contents:
    """What is in a dict, list, set or deque."""

    def __init__(self, container: Any) -> None:
        self.container, self.size = container, len(container)
        self.before = container.copy() if self.size <= LARGE else None

    def changed(self) -> bool:
        """Whether it holds other objects now."""
        now, before = self.container, self.before
        if len(now) != self.size:
            return True
        if before is None:
            return False
        if isinstance(now, dict):
            return any(key not in now or now[key] is not value for key, value in before.items())
        if isinstance(now, set):
            return now != before
        return any(a is not b for a, b in zip(now, before, strict=True))

    def is_plain(self) -> bool:
        """Whether everything in it is plain."""
        return all(
            map(_is_plain, self.container.values() if isinstance(self.container, dict) else self.container)
        )

    def restore(self) -> None:
        """Put back what was in it."""
        if self.before is None:
            while len(self.container) > self.size:  # dicts and lists keep what is new at their end
                self.container.popitem() if isinstance(self.container, dict) else self.container.pop()
            return
        self.container.clear()
        if isinstance(self.container, list | deque):
            self.container.extend(self.before)
        else:
            self.container.update(self.before)


class _Slots:
    """What an object holds in `__slots__`."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.before = owner, dict(slots_of(owner))

    def changed(self) -> bool:
        """Whether it holds other objects now."""
        now = dict(slots_of(self.owner))
        return now.keys() != self.before.keys() or any(now[key] is not self.before[key] for key in now)

    def is_plain(self) -> bool:
        """Whether everything in it is plain."""
        return all(_is_plain(value) for _, value in slots_of(self.owner))

    def restore(self) -> None:
        """Put back what was in it."""
        for key, _ in slots_of(self.owner):
            if key not in self.before:
                delattr(self.owner, key)
        for key, value in self.before.items():
            object.__setattr__(self.owner, key, value)


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a word or the like, and so holds no tensor."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(
        value, numbers.Number | str | bytes | bool | torch.dtype | torch.device
    )
