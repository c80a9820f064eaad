"""Functions for M members at once, which a packed network calls where members have an axis of their own in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import OptionError
from covey.surgery.torch_internals import leaves, map_leaves


class _OfFunction(nn.Module):
    """A function as a module, because torch.fx stores modules with a network and functions only by their name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "function": _name_in_torch(self.function) or self.function}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(self.function, str):
            self.function = getattr(F, self.function)


class OverMembers(_OfFunction):
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
        super().__init__(function)
        self.in_dims = in_dims
        self.names = names

    def forward(self, *args: Any) -> Any:
        """Positional arguments first, then those that have names."""
        count = len(args) - len(self.names)

        def one(*values: Any) -> Any:
            named = dict(zip(self.names, values[count:], strict=True))
            return self.function(*values[:count], **named)

        if not _is_torchs(self.function):
            return self._one_by_one(one, args)
        mapped = torch.func.vmap(one, in_dims=self.in_dims, randomness="different")
        return mapped(*args)

    def _one_by_one(self, one: Callable[..., Any], args: tuple) -> Any:
        """Somebody's own function may do what vmap cannot follow, such as to fill a tensor with random numbers."""
        members = next(
            len(leaves(value)[0]) for value, dim in zip(args, self.in_dims, strict=True) if dim == 0
        )
        answers = []
        for k in range(members):
            own = [
                row(value, k) if dim == 0 else value for value, dim in zip(args, self.in_dims, strict=True)
            ]
            answers.append(one(*own))
        return map_leaves(stacked, *answers)

    def does_as(self, other: nn.Module) -> bool:
        """Whether another module does the same."""
        if not isinstance(other, OverMembers):
            return False
        return (self.function, self.in_dims, self.names) == (other.function, other.in_dims, other.names)


class ForEachMember(_OfFunction):
    """A function of no member's data, called once for each: random numbers of its own, members in front.

    Args:
        function: the function.
        members: how often it is called.
    """

    def __init__(self, function: Callable[..., Any], members: int) -> None:
        super().__init__(function)
        self.members = members

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """On copies, since the function may work in place."""
        drawn = []
        for _ in range(self.members):
            own = [value.clone() if isinstance(value, Tensor) else value for value in args]
            drawn.append(self.function(*own, **kwargs))
        return torch.stack(drawn)

    def does_as(self, other: nn.Module) -> bool:
        """Whether another module does the same."""
        return isinstance(other, ForEachMember) and self.function == other.function


def row(value: Any, k: int) -> Any:
    """Member k's part of what has members in front."""
    return map_leaves(lambda leaf: leaf[k] if isinstance(leaf, Tensor) else leaf, value)


def stacked(*each: Any) -> Any:
    """Tensors with members in front; what is no tensor, such as the None of weights nobody asked for, as it is."""
    return torch.stack(each) if isinstance(each[0], Tensor) else each[0]


def _is_torchs(function: Callable[..., Any]) -> bool:
    module = getattr(function, "__module__", None) or "torch"
    return module.split(".")[0] in ("torch", "_operator", "operator", "builtins")


def _name_in_torch(function: Callable[..., Any]) -> str | None:
    """The name in torch.nn.functional of a function that pickle does not find by its own name, such as max_pool2d."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return None
    for name, value in vars(F).items():
        if value is function:
            return name
    return None


class MemberShape(nn.Module):
    """The shape that a tensor has for one member.

    Args:
        layout: where members are in it (see `packer`).
        members: how many there are.
        counted: whether only the number of axes is wanted.
    """

    def __init__(self, layout: str | int, members: int, counted: bool) -> None:
        super().__init__()
        self.layout = layout
        self.members = members
        self.counted = counted

    def forward(self, x: Tensor) -> torch.Size | int:
        """(B, M C, ...) or (M, B, C, ...) -> (B, C, ...)."""
        sizes = list(x.shape)
        if self.layout == "front":
            del sizes[0]
        else:
            sizes[int(self.layout)] //= self.members
        return len(sizes) if self.counted else torch.Size(sizes)

    def does_as(self, other: nn.Module) -> bool:
        """Whether another module does the same."""
        if not isinstance(other, MemberShape):
            return False
        return (self.layout, self.counted) == (other.layout, other.counted)


class FixedInput(nn.Module):
    """An input that is no tensor, by which the network's code may have decided what to do.

    Args:
        name: the input's name.
        value: the value that it had when the network was packed.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self.name = name
        self.value = value

    def forward(self, given: Any) -> None:
        """Refuse another value."""
        if given is not self.value and given != self.value:
            raise OptionError(
                f"the network was packed with {self.name}={self.value!r} and keeps to it; got {given!r}. Pack it again "
                "with the value that is wanted."
            )

    def does_as(self, other: nn.Module) -> bool:
        """Whether another module does the same."""
        return isinstance(other, FixedInput) and self.name == other.name


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
    members = query.shape[0]  # no len(): torch.fx follows this function when it reads a stored network
    query = query.flatten(0, 1)
    key = key.flatten(0, 1)
    value = value.flatten(0, 1)
    attended = F.scaled_dot_product_attention(query, key, value, *rest, **options)
    return attended.unflatten(0, (members, -1))
