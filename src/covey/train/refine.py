"""SuperWeights' run: explore, refine the clusters and start again, later tell coefficients apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.methods.superweights import refinement
from covey.train.prepare import build
from covey.train.recipe import Recipe
from covey.train.state import Job, Phase

if TYPE_CHECKING:
    from covey.methods.superweights import SuperWeights


def phases(method: SuperWeights, recipe: Recipe) -> list[Phase]:
    """Up to three phases: with coefficients shared in a cluster until `refine_at`; anew, with the learning rate's
    schedule from its start over the epochs that are left; from `decouple_at` epochs later on with coefficients apart.
    """
    begin = method.refine_at or 0
    apart = begin + (method.decouple_at or 0)
    if max(begin, apart) >= recipe.epochs:
        raise OptionError(
            f"refine_at={method.refine_at} and decouple_at={method.decouple_at} come to {max(begin, apart)} epochs, "
            f"and training ends at {recipe.epochs}; train longer, or refine earlier."
        )

    def rate(epoch: float) -> float:
        return recipe.schedule.at(epoch - begin, lr=recipe.lr, epochs=recipe.epochs - begin)

    def first(network: nn.Module | Sequence[nn.Module], job: Job) -> Ensemble:
        return build(network, method, job)

    found = []
    if begin:
        found.append(
            Phase(
                build=first, end=begin, rate=lambda epoch: recipe.schedule.at(0.0, lr=recipe.lr, epochs=begin)
            )
        )
    found.append(
        Phase(build=_refined if begin else first, end=apart, rate=rate, restore=_restored if begin else None)
    )
    if method.decouple_at is not None:
        found.append(Phase(build=_decoupled, end=recipe.epochs, rate=rate, restore=_restored))
    return found


def _refined(network: nn.Module, job: Job) -> Ensemble:
    assert isinstance(network, Ensemble)
    if not network.about.extra["superweights"]["exploring"]:
        return network  # the user's own, refined before
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.recipe.seed)
        refinement.refine(network, _epoch(job))
    return network


def _decoupled(network: nn.Module, job: Job) -> Ensemble:
    assert isinstance(network, Ensemble)
    refinement.decouple(network, _epoch(job))
    return network


def _restored(network: nn.Module, job: Job, extra: dict[str, Any]) -> Ensemble:
    """The ensemble with the clusters of a checkpoint, to be filled."""
    assert isinstance(network, Ensemble)
    refinement.rebuild(network, extra["superweights"])
    return network


def _epoch(job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    """The training set once, without augmentation: the same in all processes."""
    split, device = job.data.train, job.fabric.device
    for rows in torch.arange(len(split)).split(job.recipe.batch):
        targets = split.targets[rows].to(device)
        if job.data.task == "language":
            targets = targets.long()
        yield job.data.prepare(split.inputs[rows]).to(device), targets
