"""fit(): train an ensemble, or a network, from start to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from covey.data import adapt
from covey.ensemble import Ensemble
from covey.layout import Layout
from covey.locks import locked
from covey.losses import OwnLoss
from covey.method import Method, Training
from covey.seeds import random_state_kept
from covey.store import save as save_ensemble
from covey.tables import counted
from covey.train import checkpoint, history, record, same_run
from covey.train.callbacks import Callbacks
from covey.train.history import History
from covey.train.launching import launched
from covey.train.longer import with_more_epochs
from covey.train.optimizer import carry, make_schedule, set_lr
from covey.train.own import Own
from covey.train.prepare import check_kinds, check_state, has_validation, make_job
from covey.train.recipe import Machine, Recipe
from covey.train.settling import settle
from covey.train.state import Job, State
from covey.train.steps import STEPS
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
    data: Any,
    recipe: Recipe | None = None,
    *,
    method: Method | Training | None = None,
    folder: str | Path | None = None,
    machine: Machine | None = None,
    resume: bool = False,
    loss: OwnLoss | None = None,
    optimizer: Callable[[list[dict[str, Any]]], Optimizer] | None = None,
    schedule: Callable[[Optimizer, int], Any] | None = None,
    callbacks: Sequence[Any] = (),
) -> History:
    """Train an ensemble, or a plain network, which is made into an ensemble first.

    Args:
        network: an ensemble, which is trained in place, or a plain network, which stays as it is; or several
            networks, for a method whose members may differ.
        data: what to train on: (X, y), a torch Dataset or DataLoader, a Hugging Face dataset, a dict of such by
            "train", "validation" and "test", what `covey.data.load` gives, or its name. `covey.data.adapt` has
            options for them: the task, the label, the share to validate on, weights, transforms.
        recipe: how to train.
        method: what makes a plain network an ensemble; without it the network is an ensemble of one.
        folder: where to write settings, history, checkpoints and the trained ensemble; None writes nothing.
        machine: where to train: devices, precision, shards.
        resume: go on from the newest whole checkpoint in `folder`, if there is one. The recipe is the same, or has
            more epochs where the run has one phase; a schedule that ends with training then ends later, from here on.
        loss: a loss of your own, called for each member with its outputs (B, ...) and the targets (B, ...); a
            regression's targets are (B, 1). It returns the mean over the samples, (), or the loss of each, (B,).
        optimizer: makes an optimiser of your own out of parameter groups, as `Ensemble.param_groups` gives them;
            their lr and weight_decay are the recipe's.
        schedule: makes one of torch's learning-rate schedulers out of the optimiser and the number of minibatches of
            the run; it steps once for every minibatch, from the recipe's lr.
        callbacks: what is told of steps, epochs and the end; see `covey.train.Callback`.

    Returns:
        The history of the run, with the trained ensemble.
    """
    recipe, machine = recipe or Recipe(), machine or Machine()
    check_kinds(network, recipe, machine)
    data = adapt(data)
    own = Own(loss, optimizer, schedule, callbacks)
    with ExitStack() as stack:
        fabric = stack.enter_context(launched(machine))
        if folder is not None and fabric.global_rank == 0:
            stack.enter_context(locked(folder))
        job = make_job(fabric, network, data, recipe, machine, method, folder, own=own, resume=resume)
        with random_state_kept(fabric.device):
            state, resumed = _restore(job, network) if resume else (None, None)
            if state is None:
                state = _begin(job, network)
            with checkpoint.going_on(resumed, job):
                way = network.method if isinstance(network, Ensemble) else method
                record.write(job, state, way, "not finished", None)
                told, started = Callbacks(job), time.perf_counter()
                with told.until_end(state) as why:
                    ended = _train(job, state, told)
                    ensemble = _finish(job, state)
                    why.append(ended)
                record.write(job, state, way, ended, time.perf_counter() - started)
    return History(ensemble, state.rows, job.folder, resumed, ended)


def _train(job: Job, state: State, callbacks: Callbacks) -> str:
    """The loop: phase after phase, step after step; returns why it ended."""
    recipe, stream = job.recipe, job.stream
    if _waited_enough(job, state):  # a run that was resumed after its end
        return _without_better(job)
    bar, started = progress_bar(job, state), time.perf_counter()
    with bar:
        while True:
            if state.consumed >= job.ends(state.phase):
                if state.phase == len(job.phases) - 1:
                    return _all_done(recipe.epochs)
                _enter(job, state, state.phase + 1)

            epoch = state.consumed // stream.per_epoch
            stream.release(state.consumed)
            rate = _set_rate(job, state)
            losses, used = STEPS[job.phases[state.phase].step].take(job, state)
            state.consumed += used
            state.steps += 1
            _advance_schedule(state, used)
            _count(state, losses)
            if recipe.ema:
                update_average(state, recipe.ema)
            bar.update(used)
            callbacks.step(state, losses)

            # A step of many members may consume more minibatches than are left.
            done = min(state.consumed // stream.per_epoch, recipe.epochs)
            if done > epoch:
                row = _close_epoch(job, state, done, rate, time.perf_counter() - started)
                bar.set_postfix(headline(row))
                callbacks.epoch(state)
                if _waited_enough(job, state):
                    checkpoint.save(job, state)
                    return _without_better(job)
            if done > epoch or (recipe.checkpoint and state.steps % recipe.checkpoint == 0):
                checkpoint.save(job, state)


def _all_done(epochs: int) -> str:
    return "1 epoch is done" if epochs == 1 else f"all {epochs} epochs are done"


def _waited_enough(job: Job, state: State) -> bool:
    patience = job.recipe.patience
    return patience is not None and state.notes.get("waited", 0) >= patience


def _without_better(job: Job) -> str:
    return f"{counted(job.recipe.patience or 0, 'epoch')} without a better validation score"


def _set_rate(job: Job, state: State) -> float:
    """Set the learning rate of the next step; the user's own schedule has set it already."""
    if state.scheduler is not None:
        return float(state.optimizer.param_groups[0]["lr"])
    rate = job.rate(state.phase, state.consumed / job.stream.per_epoch)
    set_lr(state.optimizer, rate / job.recipe.lr)
    return rate


def _advance_schedule(state: State, minibatches: int) -> None:
    if state.scheduler is not None:
        for _ in range(minibatches):
            state.scheduler.step()


def _close_epoch(job: Job, state: State, epoch: int, lr: float, seconds: float) -> dict[str, Any]:
    """Validate, write the epoch's record, and let the phase's hook do its part."""
    phase, recipe = job.phases[state.phase], job.recipe
    row: dict[str, Any] = {"epoch": epoch, "phase": state.phase, "lr": lr, "loss": _mean_loss(state)}
    if has_validation(job.data):
        answer = phase.answer(job, state) if phase.answer is not None else state.ensemble
        with filled_with(answer, state.recall("ema") if phase.answer is None else {}) as ensemble:
            scores = validate(job, ensemble, job.data.validation, epoch)
            warn_if_collapsed(scores, ensemble.members, epoch)
            if recipe.keep == "best" or recipe.patience is not None:
                name = chosen_score(job.data, recipe.choose, job.loss)
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
    state = State(ensemble, STEPS[job.phases[0].step].optimizer(ensemble, job.recipe, job.optimizer))
    _make_schedule(job, state)
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
    state.optimizer = STEPS[phase.step].optimizer(state.ensemble, job.recipe, job.optimizer)
    _make_schedule(job, state)
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
    same_run.check_settings(path, with_more_epochs(path, about, job), same_run.settings(job))
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
        optimizer = STEPS[job.phases[about["phase"]].step].optimizer(ensemble, job.recipe, job.optimizer)
        state = State(ensemble, optimizer, phase=about["phase"])
        made_with = [group["lr"] for group in optimizer.param_groups]
        checkpoint.restore(job, state, about, tensors)
        if job.schedule is not None:  # it begins with the rates that the optimiser was made with
            for group, rate in zip(optimizer.param_groups, made_with, strict=True):
                group["lr"] = rate
                group.pop("initial_lr", None)
        _make_schedule(job, state)
    _log.info("resumed from %s, after %d minibatches", path, state.consumed)
    return state, path


def _make_schedule(job: Job, state: State) -> None:
    if job.schedule is not None:
        total = job.recipe.epochs * job.stream.per_epoch
        state.scheduler = make_schedule(job.schedule, state.optimizer, total, state.consumed)


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
