"""Starting late: train one member, then turn it into an ensemble when it is nearly trained.

    phi_k = phi_0 + sigma ||phi_0|| / sqrt(D) eps_k        at time T0, for each tensor of D numbers apart

Papers 1 and 2 of von Oswald, Kobayashi et al. Until T0 an ensemble of one member is trained, which for copies of
tensors is the network itself, and for rank-one factors and embeddings learns phi_0 along with theta. Then it is
widened: theta and its optimiser state stay, each member gets a copy of phi_0 with noise and an empty optimiser state.
Any method works whose members can be copied. After T0 every member sees minibatches of its own, so training costs
what it did before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from covey.convert import convert
from covey.edit.anatomy import Anatomy
from covey.edit.layers import Where, fresh
from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.methods.replicate import Replicate


@torch.no_grad()
def widen(
    ensemble: Ensemble, members: int, *, noise: float = 0.0, restart: Where = (), seed: int = 0
) -> Ensemble:
    """An ensemble of `members` around an ensemble of one.

    Args:
        ensemble: of one member; it stays as it is.
        members: M of the new one, which has the same method otherwise.
        noise: Gaussian noise on the members' tensors, in units of each tensor's root mean square. Running
            statistics are copied as they are.
        restart: tensors of the members that are initialised anew instead, such as "head".
        seed: of the noise and of the new initialisation.
    """
    if ensemble.members != 1 or type(ensemble) is not Ensemble:
        raise ConversionError(
            f"an ensemble is widened from one member that runs on its own; this {type(ensemble.method).__name__} "
            f"has {ensemble.members}. Members that share a pass or differ in shape cannot be started late."
        )
    body = _anatomy(ensemble)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide = replace(ensemble.method, members=members).build([body])
        _copy_state(ensemble, wide)
        perturb_(wide, noise)
        if restart:
            _restart(wide, body, restart)
    wide.about = replace(ensemble.about, extra=dict(ensemble.about.extra))
    wide.memory_format = ensemble.memory_format
    return wide.train(ensemble.training)


@torch.no_grad()
def perturb_(ensemble: Ensemble, noise: float) -> None:
    """Add Gaussian noise to every member tensor, in units of its root mean square. Uses the global random state."""
    if noise:
        for phi in _member_parameters(ensemble):
            size = phi.reshape(len(phi), -1).square().mean(1).sqrt()
            phi += noise * size.reshape(-1, *[1] * (phi.ndim - 1)) * torch.randn_like(phi)


def freeze_shared_(ensemble: Ensemble) -> None:
    """Let only the members' own tensors learn."""
    for part in ensemble.parts.values():
        for group in part.groups():  # type: ignore[operator]
            if group.kind == "shared":
                for parameter in group.parameters:
                    parameter.requires_grad_(False)


def _member_parameters(ensemble: Ensemble) -> list[nn.Parameter]:
    return [
        parameter
        for part in ensemble.parts.values()
        for group in part.groups()  # type: ignore[operator]
        if group.kind == "member"
        for parameter in group.parameters
    ]


def _anatomy(ensemble: Ensemble) -> Anatomy:
    """What was found out about the network when the ensemble of one was made."""
    buffers, _ = ensemble.buffers_of(0)
    head, stem = ensemble.bodies[0]
    return Anatomy(
        network=ensemble.member(0),
        head=tuple(head),
        stem=tuple(stem),
        state=frozenset({*buffers.changing, *buffers.own.names}),
        output=ensemble.about.output,
        extra=dict(ensemble.about.extra),
        shared=frozenset(buffers.shared.names),
        random=True,
    )


def _copy_state(one: Ensemble, wide: Ensemble) -> None:
    known: dict[str, Tensor] = one.state_dict()
    members = {id(p) for p in _member_parameters(wide)}
    own = {id(t) for _, t in wide.buffers_of(0)[0].own.items()}
    for name, tensor in [*wide.named_parameters(), *wide.named_buffers()]:
        source = known.get(name)
        is_member = id(tensor) in members or id(tensor) in own
        expected = (1, *tensor.shape[1:]) if is_member else tuple(tensor.shape)
        if source is None or tuple(source.shape) != expected:
            found = "missing" if source is None else tuple(source.shape)
            raise ConversionError(
                f"{type(one.method).__name__} cannot be started late: its tensor {name!r} depends on the number of "
                f"members ({found} for one, {tuple(tensor.shape)} for {wide.members})."
            )
        tensor.copy_(source)


def _restart(wide: Ensemble, body: Anatomy, where: Where) -> None:
    names = body.select(where)
    stored = {
        name: phi for part in wide.parts.values() if hasattr(part, "phi") for name, phi in part.phi.items()
    }
    shared = [name for name in names if name not in stored]
    if shared:
        raise ConversionError(
            f"restart={where!r} names {shared[0]!r}, which all members share, so it cannot be initialised anew for "
            "each. Replicate it, or leave it out."
        )
    for k in range(wide.members):
        made, _ = fresh(body.network, None)
        for name in names:
            stored[name][k].copy_(made.get_parameter(name))
