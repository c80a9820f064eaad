"""What a network holds in Python beside parameters, buffers and modules: lists, objects, functions, old activations.

torch does not see these: it neither trains nor moves nor replaces tensors in them.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

CONTAINERS = (dict, list, set, deque)
DEPTH = 4  # of containers inside containers
LARGE = 256  # entries; larger containers are not looked into
STANDARD = frozenset(nn.Module().__dict__)  # attributes that every module has for torch's own use
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# weak references of recurrent layers to their weights, which copies make anew
_RENEWED = {"_flat_weight_refs"}
_LEADING_OUT = (types.FunctionType, weakref.ref)  # what copies share with the original


@dataclass(frozen=True)
class Held:
    """A tensor or module that a network's attributes lead to.

    Args:
        path: how to get there, as one would write it.
        value: the tensor or module.
        holder: the module, object or container that holds it; None where a function does.
        key: the name, key or index under which it does.
    """

    path: str
    value: Tensor | nn.Module
    holder: Any = None
    key: Any = None


def held(network: nn.Module) -> list[Held]:
    """Tensors and modules that the network's attributes and hooks lead to, each once, beside the registered ones.

    Registered ones are among them where a function or a weak reference leads there.

    >>> network = nn.Sequential(nn.Linear(2, 2))
    >>> network.hidden = [nn.Linear(2, 2)]
    >>> [found.path for found in held(network)]
    ['hidden[0]']
    """
    walk = _Walk(network)
    for path, module in network.named_modules():
        prefix = f"{path}." if path else ""
        for key, value in [*module.__dict__.items(), *slots_of(module)]:
            if key not in STANDARD and key not in _RENEWED:
                walk.into(_Place(f"{prefix}{key}", module, key), value, DEPTH)
        for key in _HOOKS:
            for hook in module.__dict__.get(key, {}).values():
                walk.into(_Place(f"{prefix}{key}"), hook, DEPTH)
    return walk.found


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """Attributes that a class keeps in `__slots__`, as far as they are set."""
    found = []
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.append((name, getattr(value, name)))
    return found


def is_plain_object(value: Any) -> bool:
    """Whether a value is an object of some class that holds attributes, and no function or class itself."""
    if callable(value) or isinstance(value, type | types.ModuleType):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


@dataclass(frozen=True)
class _Place:
    """Where a value was found; see `Held`."""

    path: str
    holder: Any = None
    key: Any = None


class _Walk:
    """Follows attributes, containers, plain objects and functions; stops at tensors and modules."""

    def __init__(self, network: nn.Module) -> None:
        self.registered = {id(module) for module in network.modules()}
        self.registered |= {id(tensor) for tensor in [*network.parameters(), *network.buffers()]}
        self.found: list[Held] = []
        self.seen: set[int] = set()

    def into(self, place: _Place, value: Any, depth: int, closure: bool = False) -> None:
        """Look at a value and, `depth` steps further, at what is in it."""
        if isinstance(value, Tensor | nn.Module):
            self._note(place, value, closure)
            return
        if depth == 0 or id(value) in self.seen:
            return
        self.seen.add(id(value))
        inside = list(_inside(place.path, value))
        leads_out = closure or isinstance(value, _LEADING_OUT)
        for inner_place, inner in inside:
            self.into(inner_place, inner, depth - 1, leads_out)

    def _note(self, place: _Place, value: Tensor | nn.Module, closure: bool) -> None:
        known = id(value) in self.registered and not closure
        if not known and id(value) not in self.seen:
            self.seen.add(id(value))
            self.found.append(Held(place.path, value, place.holder, place.key))


def _inside(path: str, value: Any) -> Iterator[tuple[_Place, Any]]:
    """What a value holds, each with the place of it."""
    if isinstance(value, (*CONTAINERS, tuple)):
        if len(value) <= LARGE:
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in entries:
                yield _Place(f"{path}[{key!r}]", value, key), inner
    elif isinstance(value, functools.partial):
        for inner in (value.func, *value.args, *value.keywords.values()):
            yield _Place(path), inner
    elif isinstance(value, weakref.ref):
        yield _Place(path), value()
    elif isinstance(value, types.MethodType):
        yield _Place(path), value.__self__
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            if cell != types.CellType():  # a cell may be empty
                yield _Place(path), cell.cell_contents
        for default in value.__defaults__ or ():
            yield _Place(path), default
    elif is_plain_object(value):
        for key, inner in [*getattr(value, "__dict__", {}).items(), *slots_of(value)]:
            yield _Place(f"{path}.{key}", value, key), inner
