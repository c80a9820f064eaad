"""What a parameterization is: h in w_k = h(theta, phi_k), theta shared by all members and phi_k member k's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import CollapseError


@dataclass
class Group:
    """Parameters that an optimiser treats alike: factors of the learning rate and of the weight decay."""

    parameters: list[nn.Parameter]
    kind: str  # "shared"; "member", all with a leading axis M; "own", each one member's where members differ in shape
    lr: float = 1.0
    decay: float = 1.0


class Parameterization(nn.Module):
    """h for a set of tensors: holds theta and phi, and generates what the skeleton needs by name.

    Subclasses set `names`, `role` (a word for the coverage table) and `varies` (whether members differ).
    """

    names: tuple[str, ...]
    role: str
    varies: bool = True
    gamma: float = 1.0  # factor of the gradient of theta

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors by name."""
        raise NotImplementedError

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Several members' tensors by name, each (len(members), *shape)."""
        each = [self.member(k) for k in members]
        return {name: torch.stack([tensors[name] for tensors in each]) for name in self.names}

    def groups(self) -> list[Group]:
        """Every parameter, in exactly one group."""
        raise NotImplementedError

    def numbers(self, name: str) -> int:
        """How many numbers are stored for the tensor `name`, all members together."""
        raise NotImplementedError

    def note(self, name: str) -> str:
        """What a user should know of the tensor `name`, for the coverage table."""
        return ""

    def collapsed(self) -> dict[str, Tensor]:
        """The members' average by name; a CollapseError says why where an average means nothing."""
        raise CollapseError(f"{self.role} tensors have no average that means anything.")
