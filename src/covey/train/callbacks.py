"""Callbacks: what a program of one's own is told while `fit` trains, and loggers made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.extras import load
from covey.train.recipe import Recipe
from covey.train.state import Job, State


@dataclass(frozen=True)
class View:
    """Where a run stands; to look at, not to change.

    Args:
        ensemble: what is being trained, or at the end what the run returns.
        recipe: how it is trained.
        epoch: epochs that are done.
        step: optimiser steps that are done.
        lr: learning rate of the first parameter group in the last step.
        losses: members' mean losses in the last step, (M,); NaN for members that had no samples.
        row: the last epoch's record, as in `History.rows`; empty before the first has ended.
        folder: of the run, or None.
        ended: why training ended, in words; empty before, and where it failed.
    """

    ensemble: Ensemble
    recipe: Recipe
    epoch: int
    step: int
    lr: float
    losses: Tensor | None
    row: Mapping[str, Any]
    folder: Path | None
    ended: str = ""


class Callback:
    """Override what you want to be told of. With several processes, only the first one's are called."""

    def on_step(self, view: View) -> None:
        """After every optimiser step."""

    def on_epoch(self, view: View) -> None:
        """After every epoch, when its record is complete."""

    def on_end(self, view: View) -> None:
        """When training has ended, or failed; then `view.ended` is empty."""


class Callbacks:
    """The callbacks of a run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.each: Sequence[Callback] = ()
        if job.leads:
            if job.machine.tensorboard and job.folder is None:
                raise OptionError("tensorboard=True needs a folder to write to.")
            own = [TensorBoard()] if job.machine.tensorboard else []
            self.each = [*own, *job.callbacks]
        self.losses: Tensor | None = None

    def step(self, state: State, losses: Tensor) -> None:
        """A step was taken."""
        self.losses = losses
        if self.each:
            view = self._view(state)
            for callback in self.each:
                callback.on_step(view)

    def epoch(self, state: State) -> None:
        """An epoch is over."""
        for callback in self.each:
            callback.on_epoch(self._view(state))

    @contextmanager
    def until_end(self, state: State) -> Iterator[list[str]]:
        """Whatever happens in the block, the callbacks are told of its end; why it ended is put into the list."""
        why: list[str] = []
        try:
            yield why
        finally:
            for callback in self.each:
                callback.on_end(self._view(state, *why))

    def _view(self, state: State, ended: str = "") -> View:
        return View(
            ensemble=state.ensemble,
            recipe=self.job.recipe,
            epoch=state.consumed // self.job.stream.per_epoch,
            step=state.steps,
            lr=float(state.optimizer.param_groups[0]["lr"]),
            losses=self.losses,
            row=MappingProxyType(dict(state.rows[-1]) if state.rows else {}),
            folder=self.job.folder,
            ended=ended,
        )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse what has not the three methods of a callback."""
    if not isinstance(callbacks, Sequence):
        raise OptionError(f"callbacks is a list of them; got {type(callbacks).__name__}.")
    for callback in callbacks:
        missing = [
            name for name in ("on_step", "on_epoch", "on_end") if not callable(getattr(callback, name, None))
        ]
        if missing or isinstance(callback, type):
            raise OptionError(
                f"a callback is an object with on_step, on_epoch and on_end, such as a covey.train.Callback; got "
                f"{callback!r}."
            )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's record that loggers draw."""
    return {name: value for name, value in row.items() if isinstance(value, float)}


class TensorBoard(Callback):
    """Writes each epoch's numbers as TensorBoard files (needs the package tensorboard).

    Args:
        folder: where to; by default `tensorboard` in the run's folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self.writer: Any = None
        self.tensorboard = load("torch.utils.tensorboard")

    def on_epoch(self, view: View) -> None:
        """Write the epoch's numbers."""
        if self.writer is None:
            folder = self.folder or (view.folder and view.folder / "tensorboard")
            if folder is None:
                raise OptionError("TensorBoard files need a folder to be written to.")
            self.writer = self.tensorboard.SummaryWriter(str(folder))
        for name, value in numbers(view.row).items():
            self.writer.add_scalar(name, value, view.row["epoch"])

    def on_end(self, view: View) -> None:
        """Close the files."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class WandB(Callback):
    """Logs each epoch's numbers to Weights & Biases (needs the package wandb).

    Args:
        **options: of `wandb.init`, such as project and name; a run that is open already is used and left open.
    """

    def __init__(self, **options: Any) -> None:
        self.wandb, self.options, self.own = load("wandb"), options, False

    def on_epoch(self, view: View) -> None:
        """Log the epoch's numbers."""
        if self.wandb.run is None:
            self.wandb.init(**self.options)
            self.own = True
        self.wandb.log(numbers(view.row), step=view.row["epoch"])

    def on_end(self, view: View) -> None:
        """Finish the run, if it was begun here."""
        if self.own:
            self.wandb.finish(exit_code=0 if view.ended else 1)
            self.own = False


class MLflow(Callback):
    """Logs each epoch's numbers to MLflow (needs the package mlflow).

    Args:
        **options: of `mlflow.start_run`, such as run_name; a run that is open already is used and left open.
    """

    def __init__(self, **options: Any) -> None:
        self.mlflow, self.options, self.own = load("mlflow"), options, False

    def on_epoch(self, view: View) -> None:
        """Log the epoch's numbers."""
        if self.mlflow.active_run() is None:
            self.mlflow.start_run(**self.options)
            self.own = True
        self.mlflow.log_metrics(numbers(view.row), step=view.row["epoch"])

    def on_end(self, view: View) -> None:
        """End the run, if it was begun here."""
        if self.own:
            self.mlflow.end_run("FINISHED" if view.ended else "FAILED")
            self.own = False
