"""Copies of networks: whole, without memory, and filled with other tensors.

Every module has some thirty attributes, ten of them dicts for hooks that are empty in most, and `copy.deepcopy` takes
each apart as if something were in it. A network of a thousand modules takes longer to copy than to run, so modules that
are copied as most are, attribute by attribute, are copied here; `copy.deepcopy` gets what is in them.
"""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CONTAINERS = {dict, OrderedDict, set, list}
_ATOMS = {type(None), bool, int, float, str}  # most attributes; a copy of them is the same object
_WAYS_OF_COPYING = ("__reduce_ex__", "__reduce__", "__getstate__")
Network = TypeVar("Network", bound=nn.Module)


def duplicate(network: Network, twins: Mapping[int, Any] | None = None) -> Network:
    """What `copy.deepcopy` makes of a network, in less time.

    Args:
        network: any module.
        twins: what stands in the copy for objects of the network, by their id; as deepcopy's memo.
    """
    memo: dict[int, Any] = dict(twins or {})
    usual = list(_usual_modules(network, memo))
    # all are in the memo before the first is filled, so whatever leads to a module leads to its copy
    for module in usual:
        memo[id(module)] = type(module).__new__(type(module))
    for module in usual:
        state = {}
        for key, value in vars(module).items():
            kind = type(value)
            if kind in _ATOMS:
                state[key] = value
            elif kind in _CONTAINERS and not value:
                # most are: ten dicts for hooks in every module
                made = memo.get(id(value))
                state[key] = memo[id(value)] = kind() if made is None else made
            else:
                state[key] = _copied_value(value, memo)
        memo[id(module)].__setstate__(state)
    return copy.deepcopy(network, memo)


def _usual_modules(network: nn.Module, memo: Mapping[int, Any]) -> Iterator[nn.Module]:
    """The modules, each once, that deepcopy would copy attribute by attribute; what others hold is their affair."""
    left, met = [network], set(memo)
    while left:
        module = left.pop()
        if id(module) in met or not _is_usual(type(module)):
            continue
        met.add(id(module))
        yield module
        left += [child for child in module._modules.values() if child is not None]


def _is_usual(kind: type) -> bool:
    if any(hasattr(kind, name) for name in ("__deepcopy__", "__getnewargs_ex__", "__getnewargs__")):
        return False
    if kind in copyreg.dispatch_table or copyreg._slotnames(kind):  # type: ignore[attr-defined]
        return False
    if not _fills_itself_alone(kind):
        return False
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _WAYS_OF_COPYING)


def _fills_itself_alone(kind: type) -> bool:
    """Whether `__setstate__` is torch's own: those (convolutions have one) look at nothing but the state given.

    A stranger's may look at submodules, which deepcopy fills before and this file may fill after.
    """
    return kind.__setstate__.__module__.startswith("torch.nn.modules.")  # type: ignore[attr-defined]


def _copied_value(value: Any, memo: dict[int, Any]) -> Any:
    """What deepcopy makes of an attribute."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind in _CONTAINERS and not value:
        memo[id(value)] = kind()
        return memo[id(value)]
    if kind is tuple and _ATOMS.issuperset(map(type, value)):
        return value
    if kind is dict:
        made: dict[Any, Any] = {}
        memo[id(value)] = made
        for key, inner in value.items():
            made[_copied_value(key, memo)] = _copied_value(inner, memo)
        return made
    return copy.deepcopy(value, memo)


def copied(network: nn.Module) -> nn.Module:
    """A copy of the network; tensors in it that were computed from others are copied without their history."""
    with _Detaching():
        return duplicate(network)


def hollow(network: nn.Module) -> nn.Module:
    """A copy of the network whose parameters and buffers have shapes but no memory; ties are kept."""
    twins: dict[int, object] = {}
    for tensor in [*network.parameters(), *network.buffers()]:
        twin = torch.empty_like(tensor, device="meta", requires_grad=False)
        is_parameter = isinstance(tensor, nn.Parameter)
        twins[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return duplicate(network, twins)


def filled(skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A plain network: a copy of the skeleton that holds copies of the given tensors; ties are kept."""
    twins: dict[int, object] = {}
    for name, twin in [*skeleton.named_parameters(), *skeleton.named_buffers()]:
        value = tensors[name].detach().clone()
        is_parameter = isinstance(twin, nn.Parameter)
        twins[id(twin)] = nn.Parameter(value, twin.requires_grad) if is_parameter else value
    return duplicate(skeleton, twins)


class _Detaching(TorchFunctionMode):
    """Lets tensors be copied that were computed from others: an activation kept, a weight that a hook computes."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args = (args[0].detach(), *args[1:])
        return func(*args, **(kwargs or {}))
