"""What a method is: options that know how to build an ensemble out of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.errors import OptionError
from covey.networks.anatomy import Anatomy, Output

if TYPE_CHECKING:
    from covey.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class Method:
    """Options of a way to build an ensemble out of a network. Each method is a frozen dataclass in its own file."""

    members: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.members, int) or self.members < 1:
            raise OptionError(f"members is the number of networks, at least 1; got {self.members!r}.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """An ensemble out of one network, or of several that differ. Draws from the global random state."""
        raise NotImplementedError


@dataclass
class About:
    """What an ensemble remembers of how it was made and how its output is read."""

    output: Output = None
    task: str = "classification"
    class_dim: int | None = None
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
