"""What a parameterization is: h in w_k = h(theta, phi_k), theta shared by all members and phi_k member k's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from covey.errors import CollapseError


@dataclass
class Group:
    """Parameters that an optimiser treats alike, with factors of the learning rate and of the weight decay."""

    parameters: list[nn.Parameter]
    owner: Literal["shared", "member", "own"]
    """All members; or each member, with a leading axis M; or one member, where members differ in shape."""
    lr: float = 1.0
    decay: float = 1.0
    by_row: bool = False
    """Whether each row of a member's parameter stands for itself, as the embedding of one layer among many does."""


class Parameterization(nn.Module):
    """h for a set of tensors: holds theta and phi, and generates what the skeleton needs by name.

    Subclasses set `names`, `role` (a word for the coverage table) and `varies` (whether members differ).
    """

    names: tuple[str, ...]
    role: str
    varies: bool = True
    gamma: float = 1.0  # factor of the gradient of theta
    acts: bool = False  # whether `acting` gives weights that act on activations without being made
    draws: bool = False  # whether weights that act draw random numbers in training, as dropout does
    recomputes: bool = (
        False  # whether acting is there to save memory: in a loop only, and even where it takes longer
    )

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors by name."""
        raise NotImplementedError

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Several members' tensors by name, each `(len(members), *shape)`."""
        each = [self.member(k) for k in members]
        return {name: torch.stack([tensors[name] for tensors in each]) for name in self.names}

    def own(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Where weights act: what the members own, each (len(members), ...), under names that `acting` knows."""
        raise NotImplementedError

    def acting(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Where weights act: one member's tensors by name, from its rows of `own`; equal to `member` in every use."""
        raise NotImplementedError

    def groups(self) -> list[Group]:
        """Every parameter, in exactly one group."""
        raise NotImplementedError

    def parameter_count(self, name: str) -> int:
        """How many parameters are stored for the tensor `name`, all members together."""
        raise NotImplementedError

    def note(self, name: str) -> str:
        """What a user should know of the tensor `name`, for the coverage table."""
        return ""

    def collapsed(self) -> dict[str, Tensor]:
        """The members' average by name; a CollapseError says why where an average means nothing."""
        raise CollapseError(f"{self.role} tensors have no average that means anything.")


def places(members: int, networks: int) -> tuple[tuple[int, int], ...]:
    """Where each member is: the number of its network, and its row among that network's members.

    Members are rows of one network, or where networks differ each is the only row of its own.

    >>> places(3, 1), places(3, 3)
    (((0, 0), (0, 1), (0, 2)), ((0, 0), (1, 0), (2, 0)))
    """
    if networks == 1:
        return tuple((0, k) for k in range(members))
    return tuple((k, 0) for k in range(members))
