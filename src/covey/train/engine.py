"""fit(): train an ensemble, or a network, from start to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covey.data import Data
from covey.ensemble import Ensemble
from covey.layout import Layout
from covey.locks import locked
from covey.method import Method, Training
from covey.seeds import random_state_kept
from covey.store import save as save_ensemble
from covey.train import checkpoint, history
from covey.train.history import History
from covey.train.optimizer import carry, set_lr
from covey.train.prepare import check_state, launched, make_job, settle
from covey.train.recipe import Machine, Recipe
from covey.train.state import Job, State
from covey.train.steps import STEPS
from covey.train.tensorboard import Board
from covey.train.watch import (
    chosen_score,
    filled_with,
    headline,
    note_best,
    progress_bar,
    update_average,
    validate,
    warn_if_collapsed,
)

_log = logging.getLogger("covey")


def fit(
    network: nn.Module | Sequence[nn.Module],
    data: Data,
    recipe: Recipe | None = None,
    *,
    method: Method | Training | None = None,
    folder: str | Path | None = None,
    machine: Machine | None = None,
    resume: bool = False,
) -> History:
    """Train an ensemble, or a plain network, which is made into an ensemble first.

    Args:
        network: an ensemble, which is trained in place, or a plain network, which stays as it is; or several
            networks, for a method whose members may differ.
        data: what to train on, such as `covey.data.load` gives.
        recipe: how to train.
        method: what makes a plain network an ensemble; without it the network is an ensemble of one.
        folder: where to write settings, history, checkpoints and the trained ensemble; None writes nothing.
        machine: where to train: devices, precision, shards.
        resume: go on from the newest whole checkpoint in `folder`, if there is one.

    Returns:
        The history of the run, with the trained ensemble.
    """
    recipe, machine = recipe or Recipe(), machine or Machine()
    with ExitStack() as stack:
        fabric = stack.enter_context(launched(machine))
        if folder is not None and fabric.global_rank == 0:
            stack.enter_context(locked(folder))
        job = make_job(fabric, network, data, recipe, machine, method, folder, resume=resume)
        with random_state_kept(fabric.device):
            state, resumed = _restore(job, network) if resume else (None, None)
            if state is None:
                state = _begin(job, network)
            with checkpoint.going_on(resumed, job):
                ended = _train(job, state)
                ensemble = _finish(job, state)
    return History(ensemble, state.rows, job.folder, resumed, ended)


def _train(job: Job, state: State) -> str:
    """The loop: phase after phase, step after step; returns why it ended."""
    recipe, stream = job.recipe, job.stream
    bar, board, started = progress_bar(job, state), Board(job), time.perf_counter()
    with bar, board:
        while True:
            if state.consumed >= job.ends(state.phase):
                if state.phase == len(job.phases) - 1:
                    return f"all {recipe.epochs} epochs are done"
                _enter(job, state, state.phase + 1)

            epoch = state.consumed // stream.per_epoch
            rate = job.rate(state.phase, state.consumed / stream.per_epoch)
            set_lr(state.optimizer, rate / recipe.lr)
            losses, used = STEPS[job.phases[state.phase].step].take(job, state)
            state.consumed += used
            state.steps += 1
            _count(state, losses)
            if recipe.ema:
                update_average(state, recipe.ema)
            bar.update(used)

            done = state.consumed // stream.per_epoch
            if done > epoch:
                row = _close_epoch(job, state, done, rate, time.perf_counter() - started)
                bar.set_postfix(headline(row))
                board.write(row)
                if recipe.patience is not None and state.notes.get("waited", 0) >= recipe.patience:
                    checkpoint.save(job, state)
                    return f"{recipe.patience} epochs without a better validation score"
            if done > epoch or (recipe.checkpoint and state.steps % recipe.checkpoint == 0):
                checkpoint.save(job, state)


def _close_epoch(job: Job, state: State, epoch: int, lr: float, seconds: float) -> dict[str, Any]:
    """Validate, write the epoch's record, and let the phase's hook do its part."""
    phase, recipe = job.phases[state.phase], job.recipe
    row: dict[str, Any] = {"epoch": epoch, "phase": state.phase, "lr": lr, "loss": _mean_loss(state)}
    if len(job.data.validation):
        answer = phase.answer(job, state) if phase.answer is not None else state.ensemble
        with filled_with(answer, state.recall("ema") if phase.answer is None else {}) as ensemble:
            scores = validate(job, ensemble, job.data.validation, epoch)
            warn_if_collapsed(scores, ensemble.members, epoch)
            if recipe.keep == "best" or recipe.patience is not None:
                name = chosen_score(job.data, recipe.choose)
                note_best(state, name, scores[name], ensemble.state_dict())
        state.ensemble.train()
        row |= scores
    row["seconds"] = round(seconds, 3)
    state.rows.append(row)
    if phase.after_epoch is not None:
        phase.after_epoch(job, state)
    if job.leads:
        _log.info(
            "epoch %d of %d: %s", epoch, recipe.epochs, " ".join(f"{k} {v}" for k, v in headline(row).items())
        )
        if job.folder is not None:
            history.write(state.rows, job.folder)
    return row


def _begin(job: Job, network: nn.Module | Sequence[nn.Module]) -> State:
    """The state before the first step, written down, so that a folder that cannot be used is found out now."""
    ensemble = _placed(job, job.phases[0].build(network, job))
    state = State(ensemble, STEPS[job.phases[0].step].optimizer(ensemble, job.recipe))
    check_state(job, state)
    settle(job, state)
    if job.folder is not None and job.leads:
        checkpoint.check_space(job.folder, state)
    checkpoint.save(job, state)
    return state


def _enter(job: Job, state: State, number: int) -> None:
    """Begin the next phase: another object, an optimiser for it, and what both objects share carried over."""
    before, old = state.ensemble, state.optimizer
    phase = job.phases[number]
    state.ensemble = _placed(job, phase.build(before, job))
    state.optimizer = STEPS[phase.step].optimizer(state.ensemble, job.recipe)
    carry(before, old, state.ensemble, state.optimizer)
    state.phase = number
    for name in ("losses", "ema", "best"):  # of the object before
        state.forget(name)
    state.notes = {
        key: value for key, value in state.notes.items() if key not in ("best", "waited", "best_epoch")
    }
    check_state(job, state)
    settle(job, state)
    checkpoint.save(job, state)


def _restore(job: Job, network: nn.Module | Sequence[nn.Module]) -> tuple[State | None, Path | None]:
    """The state of the newest whole checkpoint, or None."""
    assert job.folder is not None
    found = checkpoint.newest(job.folder)
    if found is None:
        _log.info("no checkpoint in %s, so the run starts from the beginning", job.folder)
        return None, None
    path, about, tensors = found
    checkpoint.check_settings(path, about["settings"], checkpoint.settings(job))
    checkpoint.check_place(path, about, job)
    ensemble: nn.Module | Sequence[nn.Module] = network
    for phase in job.phases[: about["phase"] + 1]:
        if not phase.in_place:
            ensemble = phase.build(ensemble, job)
    assert isinstance(ensemble, Ensemble)
    with checkpoint.explained(path):
        layout = Layout.from_dict(about["layout"])
        if layout != ensemble.layout:  # it was changed on the way
            ensemble.rebuild(layout, ensemble.networks())
        ensemble = _placed(job, ensemble)
        optimizer = STEPS[job.phases[about["phase"]].step].optimizer(ensemble, job.recipe)
        state = State(ensemble, optimizer, phase=about["phase"])
        checkpoint.restore(job, state, about, tensors)
    _log.info("resumed from %s, after %d minibatches", path, state.consumed)
    return state, path


def _finish(job: Job, state: State) -> Ensemble:
    """The ensemble that the run returns: the last, the average or the best, written to the folder."""
    phase, recipe = job.phases[state.phase], job.recipe
    if state.recall("ema"):
        state.ensemble.load_state_dict(state.recall("ema"))
    ensemble = phase.finish(job, state) if phase.finish is not None else state.ensemble
    if (recipe.keep == "best" or recipe.patience is not None) and state.recall("best"):
        ensemble.load_state_dict(state.recall("best"))
    ensemble.eval()
    if job.folder is not None and job.leads:
        save_ensemble(ensemble, job.folder / "ensemble")
    job.fabric.barrier()
    return ensemble


def _placed(job: Job, ensemble: Ensemble) -> Ensemble:
    """On the device, in train mode."""
    if job.machine.channels_last:
        ensemble.to(memory_format=torch.channels_last)
    return ensemble.to(job.fabric.device).train()


def _count(state: State, losses: torch.Tensor) -> None:
    """Add members' losses to the epoch's sums; members without samples count for nothing."""
    sums = state.recall("losses")
    trained = ~losses.isnan()
    if not sums:
        state.keep("losses", {"sum": losses.nan_to_num(), "steps": trained.float()})
    else:
        sums["sum"].add_(losses.nan_to_num())
        sums["steps"].add_(trained)


def _mean_loss(state: State) -> float:
    """Mean over members of their mean loss in this epoch."""
    sums = state.recall("losses")
    state.forget("losses")
    trained = sums["steps"] > 0
    return float((sums["sum"][trained] / sums["steps"][trained]).mean())
