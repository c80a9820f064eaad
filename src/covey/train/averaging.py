"""Averages of weights along training (SWA, averaged SGD), and the running statistics that such weights need.

    mean <- (n mean + w) / (n + 1)        one snapshot an epoch from a start epoch on

Izmailov et al. (2018). Running statistics belong to the weights they were collected with, so after averaging they are
estimated again in one pass over the training inputs, each batch of b samples after n others with momentum b / (n + b).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from covey.data import train_batch
from covey.ensemble import Ensemble
from covey.errors import TrainingError
from covey.networks import statistics
from covey.tensors import moved
from covey.train.recipe import Recipe
from covey.train.schedules import epoch_of
from covey.train.state import Job, Phase, State


class Average:
    """The running mean of a network's or an ensemble's parameters.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> average = Average()
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = nn.init.constant_(network.weight, value)
    ...     average.update(network)
    >>> average.applied(network).weight.item()
    3.0
    """

    def __init__(self, count: int = 0, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.count = count
        self.tensors = dict(tensors or {})

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take the parameters as they are now into the mean."""
        self.count += 1
        for name, parameter in module.named_parameters():
            if self.count == 1:
                self.tensors[name] = parameter.detach().clone()
            else:
                self.tensors[name] += (parameter - self.tensors[name]) / self.count

    @torch.no_grad()
    def applied(self, module: nn.Module, inputs: Iterable[Any] = ()) -> Any:
        """A copy of the network or ensemble with the averaged parameters.

        Args:
            module: what was averaged; it stays as it is.
            inputs: training inputs in batches, for the running statistics; see `refresh_statistics`.
        """
        if not self.count:
            raise TrainingError("nothing was averaged yet; call update() at least once.")
        made = copy.deepcopy(module)
        for name, parameter in made.named_parameters():
            parameter.copy_(self.tensors[name])
        refresh_statistics(made, inputs)
        return made


def refresh_statistics(module: nn.Module, inputs: Iterable[Any]) -> None:
    """Estimate the running statistics of a network, or of every member of an ensemble, anew.

    Args:
        module: a network or an ensemble. Without running statistics nothing happens, and `inputs` is not read.
        inputs: batches, each a tensor (B, ...), a tuple of positional or a dict of keyword arguments.
    """
    if isinstance(module, Ensemble):
        module.refresh_statistics(inputs)
    else:
        statistics.refresh_statistics(module, inputs)


def averaged(phases: Sequence[Phase], recipe: Recipe) -> list[Phase]:
    """The phases of a run that ends with the average of its weights, if the recipe asks for that.

    A phase that makes another object starts the average again. What the phase makes of its ensemble in the end
    (draws, a collapsed network), it makes of the average. What it does after an epoch, it does when the average has
    that epoch's weights already.
    """
    if recipe.average is None:
        return list(phases)
    return [_averaging(phase, epoch_of(recipe.average, recipe.epochs)) for phase in phases]


def answer_now(job: Job, state: State) -> Ensemble:
    """What a run would return if it ended after this epoch: the average, once there is one, with its own statistics."""
    average = _recalled(state)
    if not average.count:
        return state.ensemble
    return average.applied(state.ensemble, training_inputs(job))


def _recalled(state: State) -> Average:
    """The average of the present phase so far, which is empty where none was asked for."""
    name = f"average {state.phase}"
    return Average(state.notes.get(name, 0), state.recall(name))


def _averaging(phase: Phase, start: int) -> Phase:
    def after_epoch(job: Job, state: State) -> None:
        if state.consumed > start * job.stream.per_epoch:
            average = _recalled(state)
            average.update(state.ensemble)
            state.notes[f"average {state.phase}"] = average.count
            state.forget(f"average {state.phase - 1}")
            state.keep(f"average {state.phase}", average.tensors)
        if phase.after_epoch is not None:
            phase.after_epoch(job, state)

    def finish(job: Job, state: State) -> Ensemble:
        state.ensemble = _recalled(state).applied(state.ensemble, training_inputs(job))
        return state.ensemble if phase.finish is None else phase.finish(job, state)

    return replace(phase, after_epoch=after_epoch, finish=finish)


def training_inputs(job: Job) -> Iterator[Any]:
    """One pass over the training inputs as a run sees them, augmented but not mixed, in batches (B, ...)."""
    if not job.data.train.by_number:
        for inputs, _ in islice(job.data.train.in_order(job.recipe.batch), job.stream.per_epoch):
            yield moved(job.data.prepare(inputs), job.fabric.device)
        return
    augment = replace(job.recipe.augment, mixup=0.0, cutmix=0.0)
    first = job.recipe.epochs * job.stream.per_epoch
    for number in range(first, first + job.stream.per_epoch):
        epoch, indices = job.stream[number]
        inputs, _ = train_batch(job.data, indices, augment, seed=job.recipe.seed, epoch=epoch)
        yield moved(inputs, job.fabric.device)
