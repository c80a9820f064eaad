"""One step of training, shared by everything that trains.

The batch of a step is cut into pieces (shards of samples, chunks of members). Each piece runs forward and backward
from the same running statistics; gradients add up with the pieces' weights, statistics likewise, and processes add up
theirs in one exchange. So shards in one process and as many processes give the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from covey.data import Data, train_batch
from covey.ensemble import Ensemble
from covey.errors import TrainingError
from covey.seeds import reseed
from covey.tensors import moved
from covey.train.batches import PLANS, Microbatch, Share, microbatches
from covey.train.recipe import Recipe
from covey.train.samples import check_read, fault
from covey.train.state import Job, State
from covey.train.statistics import Statistics, exchange


@dataclass(frozen=True)
class Step:
    """A kind of step.

    Args:
        optimizer: makes its optimiser, the recipe's or with the third argument the user's own.
        take: takes it: reads the samples of the step at `state.consumed`, changes the ensemble, and returns each
            member's mean loss (M,), NaN for members that had no samples, and the number of minibatches used.
    """

    optimizer: Callable[[Ensemble, Recipe, Callable[[Any], Optimizer] | None], Optimizer]
    take: Callable[[Job, State], tuple[Tensor, int]]


def plain(job: Job, state: State) -> tuple[Tensor, int]:
    """Sum the members' losses, go back once through each piece, and step all tensors."""
    plan = PLANS[job.phases[state.phase].plan or job.recipe.plan]
    parts, used = [], 0
    for _ in range(_minibatches(job, state)):
        shares, more = plan(job.stream, state.consumed + used, state.ensemble)
        parts.append(shares)
        used += more
    state.optimizer.zero_grad(set_to_none=True)
    losses = accumulate_gradients(job, state, parts[0])
    if len(parts) > 1:
        losses = _accumulate_more(job, state, parts, losses)
    apply_gradients(job, state)
    return losses, used


def _minibatches(job: Job, state: State) -> int:
    """How many steps' samples go into this step; an epoch's last ones may be fewer."""
    if job.recipe.accumulate == 1:
        return 1
    left = job.stream.per_epoch - state.consumed % job.stream.per_epoch
    return min(job.recipe.accumulate, left)


def _accumulate_more(job: Job, state: State, parts: Sequence[Sequence[Share]], losses: Tensor) -> Tensor:
    """The mean of the parts' gradients, by their samples, when those of the first are there; returns the losses'."""
    trained = [p for p in state.ensemble.parameters() if p.requires_grad]
    samples = [sum(share.indices.numel() for share in shares) for shares in parts]
    shares_of_all = [count / sum(samples) for count in samples]
    total = [None if p.grad is None else p.grad * shares_of_all[0] for p in trained]
    mean = losses.nan_to_num() * shares_of_all[0]
    for number, shares in enumerate(parts[1:], 1):
        state.optimizer.zero_grad(set_to_none=True)
        mean += accumulate_gradients(job, state, shares, part=number).nan_to_num() * shares_of_all[number]
        for place, parameter in enumerate(trained):
            if parameter.grad is not None:
                more = parameter.grad * shares_of_all[number]
                before = total[place]
                total[place] = more if before is None else before + more
    for parameter, gradient in zip(trained, total, strict=True):
        parameter.grad = gradient
    return mean.masked_fill(losses.isnan(), math.nan)


def accumulate_gradients(job: Job, state: State, shares: Sequence[Share], part: int = 0) -> Tensor:
    """Forward and backward over all pieces of a step, or of one part of it, and over all processes.

    Returns each member's mean loss, (M,), NaN for members without samples. A loss that is no number is an error.
    """
    ensemble, recipe = state.ensemble, job.recipe
    mine = list(
        microbatches(
            shares,
            shards=job.my_shards,
            of=job.shards,
            chunk=job.chunk(state.phase),
            key=(recipe.seed, state.consumed, part) if part else (recipe.seed, state.consumed),
        )
    )
    several = len(mine) != 1 or job.fabric.world_size > 1
    trained = [k for share in shares for k in share.members]
    statistics = Statistics(ensemble, len(trained)) if several else None
    losses = torch.zeros(ensemble.members, device=job.fabric.device)
    for piece in mine:
        if statistics is not None:
            statistics.restart()
        each = run_piece(job, ensemble, piece)
        job.fabric.backward(each.sum() * piece.weight)
        losses[list(piece.members)] += each.detach().to(losses.dtype) * piece.weight
        if statistics is not None:
            statistics.add(piece)
    if statistics is not None:
        exchange(job.fabric, ensemble, losses, statistics)
        statistics.finish()
    check_losses(losses, job, state, shares)
    idle = torch.ones(ensemble.members, dtype=torch.bool, device=losses.device)
    idle[trained] = False
    return losses.masked_fill(idle, math.nan)


def run_piece(job: Job, ensemble: Ensemble, piece: Microbatch) -> Tensor:
    """The losses (len(members),) of one forward pass."""
    recipe, device, data = job.recipe, job.fabric.device, job.data
    inputs, targets = train_batch(data, piece.indices, recipe.augment, seed=recipe.seed, epoch=piece.epoch)
    if not data.train.in_memory:
        check_read(targets, "training", data, recipe)
    weights = None if data.sample_weights is None else data.sample_weights[piece.indices].to(device)
    reseed(piece.seed, device)
    with job.fabric.autocast():
        return ensemble.losses(
            moved(inputs, device),
            as_targets(targets, data).to(device),
            members=piece.members,
            per_member=piece.indices.ndim == 2,
            loss=job.loss,
            smoothing=recipe.smoothing,
            ignore_index=recipe.ignore_index,
            weights=weights,
            class_weights=None if data.class_weights is None else data.class_weights.to(device),
        )


def as_targets(targets: Tensor, data: Data) -> Tensor:
    """Targets as the loss takes them: a regression's numbers get the axis of the network's one output."""
    if data.task != "regression" or data.train.targets.ndim > 1:
        return targets
    return targets[..., None] if targets.is_floating_point() else targets[..., None].float()


def check_losses(losses: Tensor, job: Job, state: State, shares: Sequence[Share]) -> None:
    """Stop where a member's loss is no number, before it reaches the weights, and say what is to blame."""
    for k, value in enumerate(losses.tolist()):
        if math.isfinite(value):
            continue
        rows = torch.cat([share.indices.flatten() for share in shares])
        mixed = job.recipe.augment.mixup or job.recipe.augment.cutmix
        if mixed and job.data.train.in_memory:
            rows = torch.arange(len(job.data.train))  # partners come from anywhere
        reason = fault(job.data.train, rows, "training")
        if reason is not None:
            raise TrainingError(f"the loss of member {k} became {value} at step {state.steps}: {reason}")
        lr = max(group["lr"] for group in state.optimizer.param_groups)
        raise TrainingError(
            f"the loss of member {k} became {value} at step {state.steps}, with a learning rate of {lr:.3g}. "
            "Lower lr, clip the gradient, or warm up."
        )


def apply_gradients(job: Job, state: State) -> None:
    """Clip if asked, and step."""
    if job.recipe.clip is not None:
        job.fabric.clip_gradients(
            state.ensemble, state.optimizer, max_norm=job.recipe.clip, error_if_nonfinite=False
        )
    job.fabric.strategy.optimizer_step(state.optimizer)
