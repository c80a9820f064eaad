"""Which attributes of modules are sizes: those that a forward may read besides its tensors' shapes.

A network's code may say `x.view(batch, length, self.heads, -1)`. For the narrow network `self.heads` has to change
too, so such numbers become symbols as the tensors' axes do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from covey.surgery.torch_internals import (
    batch_norm_class,
    convolution_class,
    instance_norm_class,
    names_kept_by_torch,
)

_HEADS = re.compile(r"(?<!per_)heads?(?!.*(dim|size|width|channel|feature|chan))", re.IGNORECASE)
_GROUPS = re.compile(r"groups?$", re.IGNORECASE)


@dataclass(frozen=True)
class Held:
    """One or several whole numbers that a module keeps.

    Args:
        name: the attribute's name; inside an object, a dict or a list with the way there ("config.hidden_size").
        place: what holds them, with `key` or attribute `key`.
        key: under which name or index.
        value: a whole number, or a tuple or list of them.
    """

    name: str
    place: dict | list
    key: Any
    value: Any


def attributes(module: nn.Module, met: set[int]) -> Iterator[Held]:
    """The whole numbers that a module keeps and its forward may read.

    A module of PyTorch's own reads a known few; of a user's module every one counts, also those in objects, dicts and
    lists that it holds.

    Args:
        module: one module, without those inside it.
        met: the ids of objects that were looked into before: many modules may hold the same.
    """
    own = vars(module)
    for name in _read_by_torch(module):
        yield Held(name, own, name, own[name])
    is_torchs_own = type(module).__module__.startswith("torch.nn")
    if not is_torchs_own:
        inherited = names_kept_by_torch(module)
        names = [name for name in own if not name.startswith("_") and name not in inherited]
        yield from _numbers_in(own, names, "", met)


_READ: tuple[tuple[Callable[[], type[nn.Module]], tuple[str, ...]], ...] = (
    (convolution_class, ("groups",)),
    (instance_norm_class, ("num_features",)),
    (lambda: nn.GroupNorm, ("num_groups",)),
    (lambda: nn.LayerNorm, ("normalized_shape",)),
    (lambda: nn.RMSNorm, ("normalized_shape",)),
    (lambda: nn.MultiheadAttention, ("num_heads", "embed_dim", "head_dim")),
    (lambda: nn.Transformer, ("d_model",)),
    (lambda: nn.RNNBase, ("input_size", "hidden_size", "proj_size")),
    (lambda: nn.RNNCellBase, ("input_size", "hidden_size")),
    (lambda: nn.Unflatten, ("unflattened_size",)),
)

# What the layers of PyTorch's own never read, but a user's layer that inherits from them may.
_WRITTEN: tuple[tuple[Callable[[], type[nn.Module]], tuple[str, ...]], ...] = (
    (convolution_class, ("in_channels", "out_channels")),
    (batch_norm_class, ("num_features",)),
    (lambda: nn.Linear, ("in_features", "out_features")),
    (lambda: nn.Bilinear, ("in1_features", "in2_features", "out_features")),
    (lambda: nn.GroupNorm, ("num_channels",)),
    (lambda: nn.Embedding, ("embedding_dim",)),
)


def _read_by_torch(module: nn.Module) -> list[str]:
    """The names of what the forward of a layer may read besides tensors."""
    is_torchs_own = type(module).__module__.startswith("torch.nn")
    tables = _READ if is_torchs_own else (*_READ, *_WRITTEN)
    names: dict[str, None] = {}
    for kind, its_names in tables:
        if isinstance(module, kind()):
            names.update(dict.fromkeys(its_names))
    return [name for name in names if vars(module).get(name) is not None]


_DEEPEST = 3


def _numbers_in(
    place: Any,
    keys: Iterable[Any],
    path: str,
    met: set[int],
) -> Iterator[Held]:
    for key in keys:
        value = place[key]
        name = f"{path}{key}"
        if _are_whole_numbers(value):
            yield Held(name, place, key, value)
            continue
        inside = _contents(value)
        if inside is None or id(value) in met or name.count(".") >= _DEEPEST:
            continue
        met.add(id(value))
        keys_inside = range(len(inside)) if isinstance(inside, list) else list(inside)
        named = [each for each in keys_inside if not str(each).startswith("_") and "." not in str(each)]
        yield from _numbers_in(inside, named, f"{name}.", met)


def _are_whole_numbers(value: Any) -> bool:
    """Whether it is a whole number, or a tuple or list of nothing else. (True and False are ints too, but no sizes.)"""
    numbers = as_tuple(value)
    return bool(numbers) and all(type(number) is int for number in numbers)


def _contents(value: Any) -> Any:
    """What an object, a dict or a list holds by name or index; None for what should be left alone."""
    if isinstance(value, dict | list):
        return value
    is_plain = not isinstance(value, nn.Module | Tensor | type | ModuleType | Enum) and not callable(value)
    return vars(value) if is_plain and hasattr(value, "__dict__") else None


def as_tuple(value: Any) -> tuple:
    """An attribute's numbers, whether it holds one or several."""
    if isinstance(value, tuple | list):
        return tuple(value)
    return (value,)


def counts_heads(name: str) -> bool:
    """Whether an attribute of this name counts attention heads.

    >>> [name for name in ("num_heads", "nhead", "head_dim", "size_per_head", "d_head") if counts_heads(name)]
    ['num_heads', 'nhead']
    """
    return _HEADS.search(name) is not None and not name.startswith("d_")


def counts_groups(name: str) -> bool:
    """Whether an attribute of this name counts groups of channels.

    >>> [name for name in ("groups", "num_group", "group_size") if counts_groups(name)]
    ['groups', 'num_group']
    """
    return _GROUPS.search(name) is not None
