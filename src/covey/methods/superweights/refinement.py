"""Learn from gradients which layers should share templates, and which members coefficients (SuperWeights)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError, TrainingError
from covey.losses import loss, loss_of
from covey.methods.superweights.clusters import greedy_groups
from covey.networks.calls import arguments
from covey.networks.initial import fresh
from covey.parts.banks import Bank, FlatBank, Piece, corner, flat_step
from covey.parts.templates import Templates

Key = tuple[int, str]  # member and tensor name


def layer_gradients(ensemble: Ensemble, batches: Iterable[tuple[Any, Tensor]]) -> dict[Key, Tensor]:
    """Each member's loss gradient with respect to its made weights, in eval mode, summed over the batches.

    Args:
        ensemble: SuperWeights.
        batches: inputs and targets; inputs are a tensor, a tuple or a dict as in `convert`.
    """
    total: dict[Key, Tensor] = {}
    with ensemble.evaluating():
        for inputs, targets in batches:
            for k in range(ensemble.members):
                for name, gradient in _gradients_of(ensemble, k, inputs, targets).items():
                    total[k, name] = total.get((k, name), 0) + gradient
    if not total:
        raise TrainingError("there was no batch to take gradients from.")
    for (k, name), gradient in total.items():
        if not torch.isfinite(gradient).all():
            raise TrainingError(
                f"the gradient of member {k}'s {name!r} is NaN or infinite, so layers cannot be compared. "
                "Lower the learning rate, or refine earlier."
            )
    return total


def _gradients_of(ensemble: Ensemble, k: int, inputs: Any, targets: Tensor) -> dict[str, Tensor]:
    """One member's loss gradient on one batch, with respect to the weights that templates make."""
    args, kwargs = arguments(inputs)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in ensemble.tensors(k).items():
            tensors[name] = tensor.detach()
    leaves: dict[str, Tensor] = {}
    for name in _part(ensemble).member(k):
        leaves[name] = tensors[name].clone().requires_grad_()
    buffers, row = ensemble.buffers_of(k)
    for name, buffer in buffers.member(row).items():
        tensors[name] = buffer.clone()  # the call may write to it
    kind = loss_of(ensemble.task)
    with torch.enable_grad():
        output = ensemble.call(k, {**tensors, **leaves}, args, kwargs)
        value = kind(output, targets) if callable(kind) else loss(output[None], targets, kind)
        found = torch.autograd.grad(value, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def similarity(gradients: Mapping[Any, Tensor], items: Sequence[Any]) -> dict[tuple[Any, Any], float]:
    """Cosines between gradients of all pairs, cropped to the leading channels that both have; 0 where one is 0."""
    found = {}
    for a, b in combinations(items, 2):
        found[a, b] = _cosine(gradients[a], gradients[b])
    return found


def _cosine(a: Tensor, b: Tensor) -> float:
    """Between what two gradients have in common: their leading rows and columns."""
    rows = min(len(a), len(b))
    columns = min(a.shape[1], b.shape[1])
    first = a[:rows, :columns].double().flatten()
    second = b[:rows, :columns].double().flatten()
    length = first.norm() * second.norm()
    return float(first @ second / length) if length > 0 else 0.0


def refine(ensemble: Ensemble, batches: Iterable[tuple[Any, Tensor]]) -> float:
    """Make clusters anew from gradients, re-allocate and re-initialise the ensemble in place.

    Within each cluster, layers whose gradients have a cosine above tau are united (`greedy_groups`). Where one network
    gives all members, their gradients are added. If the new clusters break the budget, tau is lowered by 0.05 until
    they do not. Returns the tau that was used.
    """
    if not ensemble.layout.facts["exploring"]:
        return ensemble.layout.facts.get("tau", ensemble.method.tau)  # type: ignore[attr-defined]  # refined before
    summed: dict[Key, Tensor] = {}
    for (k, name), gradient in layer_gradients(ensemble, batches).items():
        key = (ensemble.network_of(k), name)
        summed[key] = summed[key] + gradient if key in summed else gradient
    clusters = [[(body, name) for body, name in cluster] for cluster in ensemble.layout.facts["clusters"]]
    cosines = [similarity(summed, cluster) for cluster in clusters]
    method: Any = ensemble.method
    networks = [fresh(network) for network in ensemble.networks()]
    tau = method.tau
    while True:
        groups: list[list[Key]] = []
        for cluster, cosine in zip(clusters, cosines, strict=True):
            groups += greedy_groups(cluster, cosine, threshold=tau)
        try:
            layout = method.redesign(ensemble.bodies(networks), ensemble.layout, groups, tau)
        except ConversionError:
            if tau < -1:
                raise
            tau = round(tau - 0.05, 10)
            continue
        ensemble.rebuild(layout, networks)
        return tau


def decouple(ensemble: Ensemble, batches: Iterable[tuple[Any, Tensor]]) -> int:
    """Give coefficients of their own to members that pull shared ones in other directions, in place.

    For each row of coefficients that several layers share, the gradient that each layer gives it is compared; layers
    whose gradients have a cosine above beta (`greedy_groups`) keep sharing, each other group gets a copy of the row.
    Returns how many rows were added.
    """
    part = _part(ensemble)
    gradients = layer_gradients(ensemble, batches)
    added = 0
    for label, bank in part.named_banks().items():
        pulls = _pulls(part, label, gradients)
        new = _split(bank, pulls, ensemble.method.beta)  # type: ignore[attr-defined]
        before, after = bank.alpha.flatten(0, -2), max(new.values()) + 1
        if after > len(before):
            added += after - len(before)
            source = {row: old for (_, _, old), row in zip(pulls, new.values(), strict=True)}
            bank.alpha = nn.Parameter(before.detach()[[source[row] for row in range(after)]].clone())
            _point(part, label, new)
    _note_rows(ensemble, part)
    part.refresh()
    return added


def _note_rows(ensemble: Ensemble, part: Templates) -> None:
    """Write the rows as they are now into the layout, so that a stored ensemble has them."""
    facts = dict(ensemble.layout.facts)
    facts["makeup"] = [{name: made.to_dict() for name, made in each.items()} for each in part.makeup]
    banks = {}
    for label, bank in part.named_banks().items():
        banks[label] = {**facts["banks"][label], "alpha": list(bank.alpha.shape)}
    facts["banks"] = banks
    ensemble.layout = ensemble.layout.with_facts(facts)


def _pulls(
    part: Templates, label: str, gradients: Mapping[Key, Tensor]
) -> dict[tuple[int, str, int], Tensor]:
    """What every user of a bank gives its row of coefficients: (member, name, row) -> (T,)."""
    bank = part.named_banks()[label]
    found = {}
    for k, name, piece in _users(part, label):
        _, row = part.place(k)
        gradient = gradients[k, name][piece.into] if piece.into else gradients[k, name]
        found[k, name, piece.rows[row]] = piece.scale * _templates(bank, piece) @ gradient.flatten()
    return found


def _templates(bank: Bank, piece: Piece) -> Tensor:
    """The templates that a piece mixes, each laid out as one vector, (T, entries)."""
    theta = bank.theta.detach()
    if not isinstance(bank, FlatBank):
        return theta[(slice(None), *corner(piece.shape))].flatten(1)
    size, count = math.prod(piece.shape), bank.alpha.shape[-1]
    starts = piece.start + flat_step(size, len(theta), count) * torch.arange(count, device=theta.device)
    return theta[(starts[:, None] + torch.arange(size, device=theta.device)) % len(theta)]


def _users(part: Templates, label: str) -> list[tuple[int, str, Piece]]:
    """(member, name, piece) of all that use a bank, in the order of the layout: member by member."""
    found = []
    for k in range(part.members()):
        network, _ = part.place(k)
        for name, made in part.makeup[network].items():
            for piece in made.pieces:
                if piece.bank == label:
                    found.append((k, name, piece))
    return found


def _split(bank: Bank, pulls: Mapping[tuple[int, str, int], Tensor], beta: float) -> dict[Any, int]:
    """A row for each user: the first group of a row's users keeps it, each further one gets a new row."""
    count = len(bank.alpha.flatten(0, -2))
    new: dict[Any, int] = {}
    for row in range(count):
        users = [user for user in pulls if user[2] == row]
        cosines = similarity({user: pulls[user][None] for user in users}, users)
        for i, group in enumerate(greedy_groups(users, cosines, threshold=beta)):
            place = row if i == 0 else count
            count += i > 0
            new |= dict.fromkeys(group, place)
    return {user: new[user] for user in pulls}


def _point(part: Templates, label: str, rows: Mapping[tuple[int, str, int], int]) -> None:
    """Let the pieces of a bank use other rows: `rows` has the new one by member, name and old row."""
    for network, makeup in enumerate(part.makeup):
        members = [k for k in range(part.members()) if part.place(k)[0] == network]
        for name, made in makeup.items():
            pieces = []
            for piece in made.pieces:
                if piece.bank == label:
                    new = [rows[k, name, old] for k, old in zip(members, piece.rows, strict=True)]
                    piece = replace(piece, rows=tuple(new))
                pieces.append(piece)
            makeup[name] = replace(made, pieces=tuple(pieces))


def _part(ensemble: Ensemble) -> Templates:
    return ensemble.parts["superweights"]  # type: ignore[return-value]
