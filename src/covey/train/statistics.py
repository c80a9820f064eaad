"""Running statistics and gradients of a step that is computed in pieces and by several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.ensemble import Ensemble
from covey.train.alone import Alone
from covey.train.batches import Microbatch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def running(ensemble: Ensemble) -> dict[str, Tensor]:
    """The members' buffers by name; those of parameterizations (masks and the like) do not change."""
    return {name: tensor for name, tensor in ensemble.named_buffers() if name.startswith("state.")}


class Statistics:
    """The ensemble's buffers in a step of several pieces.

    Every piece starts from the buffers as they were. Afterwards floats are the mean over pieces, weighted by their
    samples (and by their members, where members share a buffer), and whole numbers are the largest.

    Args:
        ensemble: whose buffers.
        members: how many members the step trains, one counted as often as it sees samples of its own.
    """

    def __init__(self, ensemble: Ensemble, members: int) -> None:
        self.ensemble, self.members = ensemble, members
        self.buffers = running(ensemble)
        self.before = {name: tensor.clone() for name, tensor in self.buffers.items()}
        self.floats = [n for n, t in self.buffers.items() if t.is_floating_point()]
        self.whole = [n for n in self.buffers if n not in self.floats]
        self.change = {name: torch.zeros_like(self.buffers[name]) for name in self.floats}
        self.largest = {name: self.before[name].clone() for name in self.whole}

    def restart(self) -> None:
        """Set the buffers back for the next piece."""
        self._write(self.before)

    @torch.no_grad()
    def add(self, piece: Microbatch) -> None:
        """Count what a piece did to the buffers."""
        together = self.ensemble.stackable
        for name in self.floats:
            # a buffer that members share is the mean over them; rows of members that did not run have no change
            shared = together and ".shared." in f".{name}"
            weight = piece.weight * (len(piece.members) / self.members if shared else 1.0)
            self.change[name].add_(self.buffers[name] - self.before[name], alpha=weight)
        for name in self.whole:
            self.largest[name] = torch.maximum(self.largest[name], self.buffers[name])

    def finish(self) -> None:
        """Write the buffers of the whole step."""
        self._write({n: self.before[n] + self.change[n] for n in self.floats} | self.largest)

    @torch.no_grad()
    def _write(self, values: dict[str, Tensor]) -> None:
        for name, tensor in values.items():
            self.buffers[name].copy_(tensor)


def exchange(fabric: Fabric | Alone, ensemble: Ensemble, losses: Tensor, statistics: Statistics) -> None:
    """Add up gradients, losses and statistics over all processes, in one message for each kind of number."""
    if fabric.world_size == 1:
        return
    trained = [p for p in ensemble.parameters() if p.requires_grad]
    for parameter in trained:
        if parameter.grad is None:  # this process had no samples for it
            parameter.grad = torch.zeros_like(parameter)
    tensors = [p.grad for p in trained if p.grad is not None] + [losses, *statistics.change.values()]
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        _reduce_(fabric, [t for t in tensors if t.dtype == dtype], "sum")
    if statistics.largest:
        _reduce_(fabric, list(statistics.largest.values()), "max")


@torch.no_grad()
def _reduce_(fabric: Fabric | Alone, tensors: list[Tensor], operation: str) -> None:
    flat = fabric.all_reduce(torch.cat([t.reshape(-1) for t in tensors]), reduce_op=operation)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):  # type: ignore[union-attr]
        tensor.copy_(part.view_as(tensor))
