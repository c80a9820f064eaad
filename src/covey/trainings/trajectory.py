"""Members out of one training run: what SWAG, snapshots and fast geometric ensembles have in common.

All end as ordinary ensembles of whole networks. SWAG's random draws are made once and kept as members, so that a
stored ensemble gives the same answer every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from covey.conversion import convert
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.methods.replicate import DeepEnsemble, Replicate
from covey.networks.calls import Output
from covey.train.averaging import answer_now
from covey.train.phases import single
from covey.train.recipe import Recipe
from covey.train.state import Job, Phase, State


@torch.no_grad()
def gather(
    networks: Sequence[nn.Module],
    method: Replicate | None = None,
    *,
    output: Output = None,
    task: str = "classification",
    class_dim: int | None = None,
) -> Ensemble:
    """An ensemble of networks that were trained already, such as snapshots or collapsed late-phase networks.

    Args:
        networks: of one architecture; they are copied.
        method: what the ensemble is stored as; a deep ensemble by default.
        output: as in `covey.convert`.
        task: likewise.
        class_dim: likewise.

    >>> gather([nn.Linear(3, 2), nn.Linear(3, 2)]).members
    2
    """
    networks = list(networks)
    if not networks:
        raise OptionError("gather needs at least one network.")
    check_alike(networks)
    first = copy.deepcopy(networks[0]).requires_grad_(True)
    method = method or DeepEnsemble(members=len(networks))
    ensemble = convert(first, method, output=output, task=task, class_dim=class_dim)
    buffers, _ = ensemble.buffers_of(0)
    (part,) = ensemble.parts.values()
    for k, network in enumerate(networks):
        for name, parameter in network.named_parameters():
            part.phi[name][k].copy_(parameter)  # type: ignore[index]
        for name, buffer in network.named_buffers():
            if name in buffers.own:
                buffers.own[name][k].copy_(buffer)
            elif not torch.equal(buffers.shared[name], buffer):
                raise ConversionError(
                    f"the networks differ in {name!r}, a constant that members share; make it the same first."
                )
    return ensemble


def check_alike(networks: Sequence[nn.Module]) -> None:
    """Refuse networks whose tensors differ in name or shape."""
    shapes = [{n: tuple(t.shape) for n, t in network.state_dict().items()} for network in networks]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            odd = next(n for n in [*shapes[0], *shape] if shapes[0].get(n) != shape.get(n))
            raise ConversionError(
                f"networks of one architecture are wanted: {odd!r} is {shapes[0].get(odd, 'missing')} in the first "
                f"and {shape.get(odd, 'missing')} in number {k}."
            )


def collecting(wanted: Sequence[int], recipe: Recipe, rate: Callable[[float], float]) -> Phase:
    """A phase that keeps the network after these epochs, and ends with a deep ensemble of what it kept.

    Where the recipe averages weights, it is the average so far that is kept, not the weights of the moment.
    """

    def collect(job: Job, state: State) -> None:
        epoch = state.consumed // job.stream.per_epoch
        if epoch in wanted:
            network = answer_now(job, state).member(0)
            state.keep(f"snapshot {wanted.index(epoch)}", network.state_dict())

    def finish(job: Job, state: State) -> Ensemble:
        networks = []
        for number in range(len(wanted)):
            network = state.ensemble.member(0)
            network.load_state_dict(state.recall(f"snapshot {number}"))
            networks.append(network)
        return gathered(networks, DeepEnsemble(members=len(networks)), state.ensemble)

    return Phase(build=single, end=recipe.epochs, rate=rate, after_epoch=collect, finish=finish)


def gathered(networks: Sequence[nn.Module], method: Replicate, like: Ensemble) -> Ensemble:
    """An ensemble of networks that is read and run as the one they come from."""
    made = gather(networks, method, output=like.output)
    made.describe_like(like)
    made.runs, made.measured = dict(like.runs), dict(like.measured)
    return made.to(next(like.parameters()).device)


def check_whole_run(recipe: Recipe, members: int = 1) -> None:
    """Refuse what would end a run before its last member is there."""
    if members < 1:
        raise OptionError(f"members is the number of networks, at least 1; got {members}.", setting="members")
    if recipe.keep == "best" or recipe.patience is not None:
        raise OptionError(
            "members along a trajectory end with the last of them, so keep='best' and patience, which stop at the "
            "best epoch, have no meaning; leave them out."
        )
