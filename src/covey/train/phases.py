"""What a method's training consists of: how its ensemble is built, and how it changes on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from covey.conversion import convert
from covey.data import Data
from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.method import Method, Training, Turn
from covey.methods.replicate import Replicate
from covey.seeds import random_state_kept
from covey.tables import counted
from covey.tensors import moved
from covey.train.averaging import training_inputs
from covey.train.recipe import Recipe
from covey.train.state import Job, Phase, State


def phases_of(method: Any, recipe: Recipe) -> list[Phase]:
    """Those of a way to train, of a method, or of one network alone."""
    if isinstance(method, Training):
        return method.phases(recipe)
    if method is not None and not isinstance(method, Method):
        raise OptionError(
            f"method is one of covey.METHODS' or covey.TRAININGS' classes with options; got {type(method).__name__}."
        )
    return method_phases(Replicate(members=1) if method is None else method, recipe)


def method_phases(method: Method, recipe: Recipe) -> list[Phase]:
    """One phase, and a further one after each of the method's turns.

    Until a turn that starts again, the learning rate is the schedule's first; from then on the schedule has the epochs
    that are left.
    """
    turns = list(method.turns())
    _check_turns(turns, recipe)
    begin = max((turn.epoch for turn in turns if turn.restart), default=0)

    def rate(epoch: float) -> float:
        if epoch < begin:
            return recipe.schedule.at(0.0, lr=recipe.lr, epochs=begin)
        return recipe.schedule.at(epoch - begin, lr=recipe.lr, epochs=recipe.epochs - begin)

    own_rate = rate if begin else None
    ends = [*(turn.epoch for turn in turns), recipe.epochs]
    first = Phase(build=lambda network, job: build(network, method, job), end=ends[0], rate=own_rate)
    later = [
        Phase(build=_turning(turn), end=end, rate=own_rate, in_place=True)
        for turn, end in zip(turns, ends[1:], strict=True)
    ]
    found = [first, *later]
    if method.refreshes_statistics:
        found[-1] = replace(found[-1], finish=_refreshed)
    return found


def _check_turns(turns: Sequence[Turn], recipe: Recipe) -> None:
    for turn in turns:
        if turn.epoch >= recipe.epochs:
            raise OptionError(
                f"the method changes its ensemble after {counted(turn.epoch, 'epoch')}, and training ends at "
                f"{recipe.epochs}: train longer, or let it (refine_at, decouple_at) come earlier."
            )


def _turning(turn: Turn) -> Callable[[Any, Job], Ensemble]:
    def change(ensemble: Ensemble, job: Job) -> Ensemble:
        with random_state_kept(ensemble, seed=job.recipe.seed):
            turn.change(ensemble, _one_epoch(job))
        return ensemble

    return change


def _refreshed(job: Job, state: State) -> Ensemble:
    state.ensemble.refresh_statistics(training_inputs(job))
    return state.ensemble


def _one_epoch(job: Job) -> Iterator[tuple[Any, Tensor]]:
    """The training set once, without augmentation and without ignored samples: the same in all processes."""
    split, device = job.data.train, job.fabric.device
    if not split.in_memory:
        for inputs, targets in islice(split.in_order(job.recipe.batch), job.stream.per_epoch):
            yield moved(job.data.prepare(inputs), device), targets.to(device)
        return
    everyone = torch.arange(len(split))
    if job.recipe.ignore_index is not None and split.targets.ndim == 1:
        everyone = everyone[split.targets != job.recipe.ignore_index]
    for rows in everyone.split(job.recipe.batch):
        targets = split.targets[rows].to(device)
        if job.data.task in ("language", "segmentation"):
            targets = targets.long()
        yield moved(job.data.prepare(split.read(rows)[0]), device), targets


def single(network: nn.Module, job: Job) -> Ensemble:
    """A plain network as an ensemble of one; an ensemble as it is."""
    return build(network, Replicate(members=1), job)


def build(network: nn.Module | Sequence[nn.Module], method: Method, job: Job) -> Ensemble:
    """Convert a network, or several that differ, for the job's task; an ensemble stays as it is."""
    if isinstance(network, Ensemble):
        return network
    first = network if isinstance(network, nn.Module) else network[0]
    given = moved(example(job.data), device_of(first))
    return convert(network, method, example=given, task=job.task, seed=job.recipe.seed)


def example(data: Data) -> Any:
    """Two training samples as a network takes them."""
    return data.prepare(data.train.example())


def device_of(network: nn.Module) -> torch.device:
    """Where a network's inputs must go."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device
