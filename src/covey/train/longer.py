"""More epochs for a run that has a checkpoint: whether it can go on, and what that means for its learning rate."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from covey.errors import StoreError
from covey.tables import counted
from covey.train.schedules import Schedule
from covey.train.state import Job

_log = logging.getLogger("covey")


def with_more_epochs(path: Path, about: dict[str, Any], job: Job) -> dict[str, Any]:
    """The settings of a checkpoint, with the job's epochs in them where those are more and the run can go on to them.

    Args:
        path: of the checkpoint.
        about: its record.
        job: which is to go on from it.
    """
    stored = about["settings"]
    before, now = stored["recipe"].get("epochs"), job.recipe.epochs
    if not isinstance(before, int) or now <= before:
        return stored
    _check_length_is_free(path, about, job, before)
    done = about["consumed"] / job.stream.per_epoch
    _log.info("%s: %d epochs instead of %d. %s", path, now, before, _told(job, done, before))
    return {**stored, "recipe": {**stored["recipe"], "epochs": now}}


def _check_length_is_free(path: Path, about: dict[str, Any], job: Job, before: int) -> None:
    """Refuse runs in which what happened so far would have been another thing in a longer run."""
    why = None
    phase = job.phases[0]
    if len(job.phases) > 1:
        why = "it goes through phases, whose ends follow from the number of epochs"
    elif job.recipe.average is not None:
        why = "it averages weights from a moment on that follows from the number of epochs"
    elif phase.rate is not None or phase.after_epoch is not None:
        why = "its way of training collects members at moments that follow from the number of epochs"
    elif job.recipe.patience is not None and about["notes"].get("waited", 0) >= job.recipe.patience:
        waited = counted(job.recipe.patience, "epoch")
        why = f"it ended after {waited} without a better validation score, not at its last epoch"
    if why is not None:
        raise StoreError(
            f"{path} is of a run of {counted(before, 'epoch')}, which cannot go on to {job.recipe.epochs}: {why}. "
            "Train anew with that many epochs, in another folder."
        )


def _told(job: Job, done: float, before: int) -> str:
    """What becomes of the learning rate, in words."""
    recipe = job.recipe
    if job.schedule is not None:
        return "Your own schedule is made anew for the longer run, and taken from where this one stands."
    if not _depends_on_length(recipe.schedule):
        return "The learning rate is what it would have been in a longer run from the start."
    was, becomes = (recipe.schedule.at(done, lr=recipe.lr, epochs=n) for n in (before, recipe.epochs))
    return (
        f"The {recipe.schedule.kind} schedule now ends at epoch {recipe.epochs}: the learning rate goes from {was:.3g} "
        f"to {becomes:.3g} and falls from there, so the result is not that of {recipe.epochs} epochs from the start."
    )


def _depends_on_length(schedule: Schedule) -> bool:
    """Whether the rate at an epoch changes with the number of epochs."""
    return schedule.kind == "cosine" or (schedule.kind == "linear" and schedule.end is None)
