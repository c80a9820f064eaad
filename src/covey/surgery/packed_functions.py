"""Functions for M members at once, which a packed network calls where members have an axis of their own in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class OverMembers:
    """A function that was written for one member, applied to all: members in front, by `torch.func.vmap`.

    Args:
        function: the function for one member.
        in_dims: for each argument 0 if it has members in front, None if all members share it.
        names: the names of those arguments that are given by keyword; they come last.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        in_dims: tuple,
        names: tuple[str, ...],
    ) -> None:
        self.function = function
        self.in_dims = in_dims
        self.names = names
        # torch.fx writes calls into code by these two
        self.__name__ = f"over_members_{getattr(function, '__name__', 'function')}"
        self.__module__ = __name__

    def __call__(self, *args: Any) -> Any:
        """Positional arguments first, then those that have names."""
        count = len(args) - len(self.names)

        def one(*values: Any) -> Any:
            named = dict(zip(self.names, values[count:], strict=True))
            return self.function(*values[:count], **named)

        mapped = torch.func.vmap(one, in_dims=self.in_dims, randomness="different")
        return mapped(*args)


class MemberShape:
    """The shape that a tensor has for one member.

    Args:
        layout: where members are in it (see `packer`).
        members: how many there are.
    """

    def __init__(self, layout: str | int, members: int) -> None:
        self.layout = layout
        self.members = members
        self.__name__ = "member_shape"
        self.__module__ = __name__

    def __call__(self, x: Tensor) -> torch.Size:
        """(B, M C, ...) or (M, B, C, ...) -> (B, C, ...)."""
        if self.layout == "front":
            return x.shape[1:]
        sizes = list(x.shape)
        sizes[int(self.layout)] //= self.members
        return torch.Size(sizes)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Attention of all members, (M, B, heads, L, C): they count as further samples, so that fused kernels serve."""
    mask = rest[0] if rest else options.get("attn_mask")
    if mask is not None:
        return F.scaled_dot_product_attention(query, key, value, *rest, **options)
    members = len(query)
    query = query.flatten(0, 1)
    key = key.flatten(0, 1)
    value = value.flatten(0, 1)
    attended = F.scaled_dot_product_attention(query, key, value, *rest, **options)
    return attended.unflatten(0, (members, -1))
