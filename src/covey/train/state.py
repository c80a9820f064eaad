"""What a run is made of: the job, which stands, the state, which changes, and the phases it goes through.

A run is a row of phases. The ordinary one has a single phase. Training that changes its object on the way (a network
first, then an ensemble of it) has one phase for each, and each says how its object is made of the last one's:

    Phase(build=single, end=120), Phase(build=start_late, end=200, plan="independent")

A way of training (`covey.Training`) says its phases, which `fit` asks for. When a phase begins,
`build` makes its ensemble, the optimiser is made anew, and the state of tensors that both objects share is carried
over (see `optimizer.carry`). Whatever hooks keep between steps belongs in `State.kept` (tensors by name) and
`State.notes` (plain numbers and words): both are checkpointed, nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from covey.data import Data
from covey.ensemble import Ensemble
from covey.losses import LossName, OwnLoss
from covey.train.alone import Alone
from covey.train.batches import Stream
from covey.train.recipe import Machine, Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one object, one batch plan and one kind of step.

    Args:
        build: makes the phase's ensemble out of the user's network or ensemble (first phase) or the last phase's
            ensemble. It must depend on its arguments only: a resumed run calls it again, and then fills in the
            stored tensors.
        end: the epoch at which the phase ends; the last phase ends with the recipe's epochs.
        plan: a key of `batches.PLANS`; the recipe's if None.
        step: a key of `steps.STEPS`.
        chunk: how many members run at once, where the recipe's `member_chunk` does not say; None for all.
        rate: the learning rate at an epoch (with its fraction), instead of the recipe's schedule.
        after_epoch: called at the end of each epoch of the phase, after validation; may change weights, and write
            to `state.kept` and `state.notes`.
        answer: which ensemble is validated instead of the one that is trained, such as an average.
        finish: makes the ensemble that the run returns, at its end.
        in_place: whether `build` changes the last phase's ensemble, going by its trained weights. A resumed run does
            not call it, but builds from the layout that was stored.
    """

    build: Callable[[Any, Job], Ensemble]
    end: float
    plan: str | None = None
    step: str = "plain"
    chunk: int | None = None
    rate: Callable[[float], float] | None = None
    after_epoch: Callable[[Job, State], None] | None = None
    answer: Callable[[Job, State], Ensemble] | None = None
    finish: Callable[[Job, State], Ensemble] | None = None
    in_place: bool = False


@dataclass(frozen=True)
class Job:
    """What does not change in a run."""

    data: Data
    recipe: Recipe
    machine: Machine
    fabric: Fabric | Alone
    stream: Stream
    phases: tuple[Phase, ...]
    loss: LossName | OwnLoss
    task: str = "classification"  # of the ensemble that is trained
    optimizer: Callable[[list[dict[str, Any]]], Optimizer] | None = None  # the user's own
    schedule: Callable[[Optimizer, int], Any] | None = None  # the user's own
    callbacks: Sequence[Any] = ()
    way: str = ""  # the method or way of training, in words, which a resumed run must have in common
    folder: Path | None = None

    @property
    def shards(self) -> int:
        """Into how many parts a batch is cut: at least one a process."""
        return max(self.machine.shards, self.fabric.world_size)

    @property
    def my_shards(self) -> range:
        """Those that this process computes."""
        each = self.shards // self.fabric.world_size
        return range(self.fabric.global_rank * each, (self.fabric.global_rank + 1) * each)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.fabric.global_rank == 0

    def chunk(self, phase: int) -> int | None:
        """How many members run at once."""
        return self.recipe.member_chunk or self.phases[phase].chunk

    def rate(self, phase: int, epoch: float) -> float:
        """The learning rate at an epoch, which has a fraction."""
        own = self.phases[phase].rate
        if own is not None:
            return own(epoch)
        return self.recipe.schedule.at(epoch, lr=self.recipe.lr, epochs=self.recipe.epochs)

    def ends(self, phase: int) -> int:
        """The minibatch at which a phase ends."""
        last = phase == len(self.phases) - 1
        return round((self.recipe.epochs if last else self.phases[phase].end) * self.stream.per_epoch)


@dataclass
class State:
    """What changes in a run, and so all that a checkpoint holds.

    Args:
        ensemble: what is being trained.
        optimizer: over its parameters.
        phase: number of the present phase.
        consumed: minibatches since the start, the clock of schedules.
        steps: optimiser steps since the start.
        rows: the history so far, one record an epoch.
        kept: further tensors by name: averages, snapshots, the best weights.
        notes: further numbers and words, as JSON holds them.
        scheduler: the user's own schedule of the learning rate, if there is one; made anew when a run is resumed.
    """

    ensemble: Ensemble
    optimizer: Optimizer
    phase: int = 0
    consumed: int = 0
    steps: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    scheduler: Any = None

    def keep(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Keep copies of some tensors under a name, in place of those kept before."""
        self.forget(name)
        self.kept |= {f"{name}:{key}": tensor.detach().clone() for key, tensor in tensors.items()}

    def recall(self, name: str) -> dict[str, Tensor]:
        """The tensors kept under a name; empty if there are none."""
        return {key.partition(":")[2]: t for key, t in self.kept.items() if key.startswith(f"{name}:")}

    def forget(self, name: str) -> None:
        """Drop the tensors kept under a name."""
        for key in [key for key in self.kept if key.startswith(f"{name}:")]:
            del self.kept[key]
