"""What a network keeps in Python from one call for the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from covey.networks.held import Held


def plain_values(network: nn.Module) -> dict[str, Any]:
    """Numbers, words and switches that the modules keep as attributes, such as a count of calls, by path."""
    found = {}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str):
                found[f"{path}.{name}".removeprefix(".")] = value
    return found


def changed_number(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The path of a number that a call changed, if there is one; a count is the same for all members."""
    for path, value in after.items():
        if isinstance(value, float) and before.get(path) != value:
            return path
    return ""


def left_behind(before: Mapping[str, Held], after: Mapping[str, Held]) -> str:
    """The path of a tensor that calls left in the network, if one is there."""
    for path, found in after.items():
        if path not in before or before[path].value is not found.value:
            return path
    return ""
