"""Runs a piece of a step before training begins, and chooses how members run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from covey import run as runs
from covey.data import Augment, train_batch
from covey.ensemble import Ensemble
from covey.errors import TrainingError
from covey.networks.calls import Arguments, arguments
from covey.seeds import random_state_kept
from covey.tensors import moved
from covey.train.batches import PLANS, Microbatch, microbatches
from covey.train.state import Job, State
from covey.train.statistics import running
from covey.train.step import run_piece


def settle(job: Job, state: State) -> None:
    """Choose how members run before the first step, the same in all processes; weights and statistics stay."""
    ensemble = state.ensemble
    if job.recipe.run != "auto":
        ensemble.run = job.recipe.run
    piece = pieces_of(job, state, state.consumed)[0]
    for mode, run_once in (("train", attempt), ("eval", _try_answer)):
        if ensemble.runs[mode] == "auto":
            ensemble.train(mode == "train")
            with torch.set_grad_enabled(mode == "train"):
                run_once(job, ensemble, piece)
            if ensemble.runs[mode] == "auto":  # nothing was measured
                ensemble.runs[mode] = _fastest_loop(job, ensemble, piece)
    ensemble.train()
    ensemble.runs, ensemble.measured = job.fabric.broadcast((ensemble.runs, ensemble.measured))


def pieces_of(job: Job, state: State, consumed: int) -> list[Microbatch]:
    """The pieces of the step that begins after so many minibatches."""
    plan = PLANS[job.phases[state.phase].plan or job.recipe.plan]
    shares, _ = plan(job.stream, consumed, state.ensemble)
    chunk = job.chunk(state.phase)
    return list(microbatches(shares, shards=range(job.shards), of=job.shards, chunk=chunk, key=(0,)))


def attempt(job: Job, ensemble: Ensemble, piece: Microbatch) -> None:
    """Run a piece and leave no trace but the choice of how to run."""
    with _statistics_kept(ensemble), random_state_kept(ensemble):
        losses = run_piece(job, ensemble, piece)
    if losses.shape != (len(piece.members),):
        raise TrainingError(f"the loss should be one number a member; it has shape {tuple(losses.shape)}.")


def _try_answer(job: Job, ensemble: Ensemble, piece: Microbatch) -> None:
    """Likewise, in answering: there all members get the same inputs, whatever each of them learns from.

    All of them, even where a step takes some at a time, as MC-dropout's does; unless that is to save memory.
    """
    args, kwargs = _inputs(job, piece)
    with _statistics_kept(ensemble), random_state_kept(ensemble), job.fabric.autocast():
        ensemble(*args, members=piece.members if job.recipe.member_chunk else None, **kwargs)


def _fastest_loop(job: Job, ensemble: Ensemble, piece: Microbatch) -> str:
    """How some of the members at a time run fastest: one after another, in one memory format or the other."""
    if len(piece.members) == ensemble.members:
        return "loop"  # there are no ways to choose from, as in MIMO's joint pass
    args, kwargs = _inputs(job, piece)
    inputs = ensemble.inputs(args, kwargs)
    with _statistics_kept(ensemble), job.fabric.autocast():
        choice = runs.tune(ensemble, piece.members, inputs, batched=False)
    ensemble.measured["train" if ensemble.training else "eval"] = inputs.shapes()
    return choice


def _inputs(job: Job, piece: Microbatch) -> Arguments:
    """A piece's samples as the network takes them, the same for all members."""
    rows = piece.indices if piece.indices.ndim == 1 else piece.indices[0]
    inputs, _ = train_batch(job.data, rows, Augment(), seed=job.recipe.seed, epoch=piece.epoch)
    return arguments(moved(inputs, job.fabric.device))


@contextmanager
def _statistics_kept(ensemble: Ensemble) -> Iterator[None]:
    """Running statistics are as before when the block ends."""
    before = {name: tensor.clone() for name, tensor in running(ensemble).items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in running(ensemble).items():
                tensor.copy_(before[name])
