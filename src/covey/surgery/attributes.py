"""Which attributes of modules are sizes: those that a forward may read besides its tensors' shapes.

A network's code may say `x.view(batch, length, self.heads, -1)`. For the narrow network `self.heads` has to change
too, so such numbers become symbols as the tensors' axes do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from covey.surgery.torch_internals import convolution_class, names_kept_by_torch

_HEADS = re.compile(r"(?<!per_)heads?(?!.*(dim|size|width|channel|feature|chan))", re.IGNORECASE)
_GROUPS = re.compile(r"groups?$", re.IGNORECASE)


def attribute_names(module: nn.Module) -> Iterator[str]:
    """The attributes of a module whose whole numbers (or tuples of them) its forward may read.

    Args:
        module: one module, without those inside it.
    """
    yield from _read_by_torch(module)
    is_torchs_own = type(module).__module__.startswith("torch.nn")
    if not is_torchs_own:
        yield from _whole_numbers(module)


def _read_by_torch(module: nn.Module) -> Iterator[str]:
    """What the forward of PyTorch's own layers reads besides tensors."""
    read: dict[type[nn.Module], tuple[str, ...]] = {
        convolution_class(): ("groups",),
        nn.GroupNorm: ("num_groups",),
        nn.LayerNorm: ("normalized_shape",),
        nn.RMSNorm: ("normalized_shape",),
        nn.MultiheadAttention: ("num_heads", "embed_dim", "head_dim"),
        nn.RNNBase: ("input_size", "hidden_size", "proj_size"),
        nn.RNNCellBase: ("input_size", "hidden_size"),
        nn.Unflatten: ("unflattened_size",),
    }
    for kind, names in read.items():
        if isinstance(module, kind):
            for name in names:
                if name in vars(module):
                    yield name


def _whole_numbers(module: nn.Module) -> Iterator[str]:
    """Attributes of a user's module that hold whole numbers and do not come from a layer of PyTorch's."""
    inherited = names_kept_by_torch(module)
    for name, value in vars(module).items():
        if name.startswith("_") or name in inherited:
            continue
        numbers = as_tuple(value)
        # `type(...) is int`: True and False are ints too, but no sizes.
        if numbers and all(type(number) is int for number in numbers):
            yield name


def as_tuple(value: Any) -> tuple:
    """An attribute's numbers, whether it holds one or several."""
    if isinstance(value, tuple | list):
        return tuple(value)
    return (value,)


def counts_heads(name: str) -> bool:
    """Whether an attribute of this name counts attention heads.

    >>> [name for name in ("num_heads", "nhead", "head_dim", "size_per_head") if counts_heads(name)]
    ['num_heads', 'nhead']
    """
    return _HEADS.search(name) is not None


def counts_groups(name: str) -> bool:
    """Whether an attribute of this name counts groups of channels.

    >>> [name for name in ("groups", "num_group", "group_size") if counts_groups(name)]
    ['groups', 'num_group']
    """
    return _GROUPS.search(name) is not None
