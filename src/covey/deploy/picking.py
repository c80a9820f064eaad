"""An ensemble of some members of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from covey.ensemble import Ensemble
from covey.errors import CoveyError, OptionError
from covey.methods.replicate import DeepEnsemble
from covey.networks.copies import hollow
from covey.seeds import random_state_kept
from covey.trainings.trajectory import gathered


@torch.no_grad()
def picked(ensemble: Ensemble, members: Sequence[int]) -> Ensemble:
    """An ensemble of some members, in this order, that answer as they did; what they shared is still shared.

    Where a method's members cannot stand without the others, as MIMO's cannot, they become plain networks, which are a
    deep ensemble. Calibration is not taken over: it belonged to all members.

    Args:
        ensemble: with members of one architecture.
        members: numbers of members; one may stand there more than once, and then counts so much more.
    """
    chosen = [_checked(ensemble, k) for k in members]
    if not chosen:
        raise OptionError("members names no member; an ensemble has at least one.")
    if not ensemble.stackable:
        raise OptionError(
            "members of different architectures stay together in one ensemble; run some of them with "
            "ensemble(x, members=[...])."
        )
    if not ensemble.differ:
        raise OptionError(
            "members have no tensors of their own, only other random numbers; convert the network again with fewer."
        )
    made = _with_rows(ensemble, chosen)
    if made is None:
        networks = [ensemble.member(k) for k in chosen]
        made = gathered(networks, DeepEnsemble(members=len(networks)), ensemble)
    made.describe_like(ensemble)
    return made.train(ensemble.training)


def _with_rows(ensemble: Ensemble, members: list[int]) -> Ensemble | None:
    """The same method with other members; None where that gives other networks."""
    try:
        per_member = _per_member(ensemble)
        made = _rebuilt(ensemble, len(members), on_meta=False)
        state = {}
        for name, tensor in ensemble.state_dict().items():
            state[name] = tensor[members] if name in per_member else tensor
        made.load_state_dict(state)
    except (CoveyError, RuntimeError, ValueError, LookupError):  # its layout is made for just so many members
        return None
    made = made.to(next(ensemble.parameters()).device)
    return made if _as_before(ensemble, members, made) else None


def _per_member(ensemble: Ensemble) -> set[str]:
    """Names of the stored tensors with a row for each member: those that are longer in an ensemble of one more."""
    larger = _rebuilt(ensemble, ensemble.members + 1, on_meta=True).state_dict()
    found = set()
    for name, tensor in ensemble.state_dict().items():
        if larger[name].shape != tensor.shape:
            found.add(name)
    return found


def _rebuilt(ensemble: Ensemble, members: int, *, on_meta: bool) -> Ensemble:
    """What the method builds for another number of members from the same layout."""
    networks = ensemble.networks()
    if on_meta:
        networks = [hollow(network) for network in networks]
    method = replace(ensemble.method, members=members)
    with random_state_kept():
        return method.build(ensemble.bodies(networks), ensemble.layout)


def _as_before(ensemble: Ensemble, members: list[int], made: Ensemble) -> bool:
    """Whether the new members are the old ones, tensor by tensor."""
    for i, k in enumerate(members):
        before, after = ensemble.member(k).state_dict(), made.member(i).state_dict()
        if before.keys() != after.keys():
            return False
        if not all(torch.equal(before[name], after[name]) for name in before):
            return False
    return True


def _checked(ensemble: Ensemble, k: int) -> int:
    if not 0 <= k < ensemble.members:
        raise OptionError(f"member {k} was asked for; this ensemble has members 0 to {ensemble.members - 1}.")
    return k
