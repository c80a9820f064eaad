"""How much a service takes on before it says no."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from covey.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a service takes on; above a limit a request is refused with an error that names it.

    Args:
        batch: most samples that run at once.
        wait_ms: milliseconds that a request waits for others to share its batch; 0 waits for none.
        rows: most samples of one request.
        queue: most samples that wait; further requests are told to come again (503).
        megabytes: most of a request's body.
        seconds: until a request is given up (504), and in which its body must have arrived (408).
        connections: most at once; further ones are told to come again (503).
    """

    batch: int = 64
    wait_ms: float = 2.0
    rows: int = 1024
    queue: int = 4096
    megabytes: float = 16.0
    seconds: float = 30.0
    connections: int = 1000

    def __post_init__(self) -> None:
        for found in fields(self):
            value = getattr(self, found.name)
            flag = "--" + found.name.replace("_", "-")
            least = 0 if found.name == "wait_ms" else 1 if isinstance(found.default, int) else 1e-3
            if not math.isfinite(value) or value < least:
                raise OptionError(f"{flag} is a number of at least {least:g}; got {value}.")
        if self.queue < self.rows:
            raise OptionError(
                f"--queue {self.queue} has no room for a request of --rows {self.rows} samples; raise it or lower rows."
            )

    @property
    def bytes(self) -> int:
        """Most bytes of a request's body."""
        return int(self.megabytes * 2**20)
