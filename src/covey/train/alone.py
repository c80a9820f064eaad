"""One process on the CPU, without mixed precision, by the few names of Lightning Fabric that training uses.

Fabric does all of this too, but takes seconds to import, which is most of the time of a small run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Alone:
    """What `Fabric(accelerator="cpu", devices=1)` is to the training loop."""

    world_size = 1
    global_rank = 0
    device = torch.device("cpu")

    @property
    def strategy(self) -> Alone:
        """Fabric keeps `optimizer_step` and `precision` there."""
        return self

    precision = strategy

    def autocast(self) -> AbstractContextManager[None]:
        """Nothing is cast."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Go back."""
        loss.backward()

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool
    ) -> None:
        """Bound the norm of all gradients together."""
        nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def optimizer_step(self, optimizer: Optimizer) -> None:
        """Step."""
        optimizer.step()

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def all_reduce(self, value: Any, reduce_op: str) -> Any:
        """The value itself."""
        return value

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember of the precision."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to remember of the precision."""
