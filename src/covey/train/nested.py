"""Nested training: every member takes its own minibatch, the shared tensors move once for all of them.

    for k in 1..K:  phi_k <- U(phi_k, grad of L(M_k, theta, phi_k)),   d_k = grad_theta L(M_k, theta, phi_k)
    theta <- U(theta, gamma sum_k d_k)

Algorithm 1 of von Oswald et al. (2021). theta stands still inside the inner loop, so with an optimiser that works
elementwise (SGD, Nesterov, Adam, AdamW) one ordinary step on the stacked phi and on theta gives the same numbers as
the K small steps and the large one. `nested_step` is that step, with all members at once or a few at a time.

Where only one drawn member steps (the non-nested form), momentum and decay must not move the others. Then the
optimiser works on `Rows`: leaf tensors, one per member, that share storage with the stacked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey.ensemble import Ensemble
from covey.errors import OptionError, TrainingError
from covey.losses import member_losses
from covey.seeds import generator_of
from covey.train.batches import Share
from covey.train.optimizer import Factory, Groups, make_optimizer
from covey.train.recipe import Recipe
from covey.train.state import Job, State
from covey.train.step import accumulate_gradients, apply_gradients

Minibatch = tuple[Tensor, Tensor]  # inputs (B, ...), targets (B, ...)
Losses = Callable[[Tensor, Tensor], Tensor]  # outputs (M, B, ...), targets (M, B, ...) -> (M,)


def nested_step(
    ensemble: Ensemble,
    optimizer: Optimizer,
    minibatches: Sequence[Minibatch],
    *,
    losses: Losses = member_losses,
    chunk: int | None = None,
) -> Tensor:
    """One step in which member k sees `minibatches[k]`; returns the members' losses, (M,).

    Args:
        ensemble: what is trained; its method's gamma scales the shared tensors' gradient.
        optimizer: an elementwise one over `ensemble.param_groups(...)`.
        minibatches: M pairs of inputs and targets.
        losses: members' outputs and targets to members' mean losses.
        chunk: how many members run at a time; all if None. 1 is the sequential inner loop, which needs 1/M of
            the memory and gives the same numbers.
    """
    if len(minibatches) != ensemble.members:
        raise OptionError(
            f"a nested step takes one minibatch for each of {ensemble.members} members; got {len(minibatches)}."
        )
    optimizer.zero_grad()
    sizes = {(x.shape, y.shape) for x, y in minibatches}
    if len(sizes) > 1:  # the short minibatch at an epoch's end cannot be stacked with the others
        chunk = 1
    found, statistics = [], _SharedStatistics(ensemble)
    everyone = range(ensemble.members)
    for first in range(0, ensemble.members, chunk or ensemble.members):
        chosen = everyone[first : first + (chunk or ensemble.members)]
        inputs = torch.stack([minibatches[k][0] for k in chosen])
        targets = torch.stack([minibatches[k][1] for k in chosen])
        each = losses(ensemble(inputs, members=chosen, per_member=True), targets)
        each.sum().backward()
        found.append(each.detach())
        statistics.ran(len(chosen))
    statistics.merge()
    optimizer.step()
    return torch.cat(found)


def drawn_step(
    ensemble: Ensemble,
    optimizer: Optimizer,
    rows: Rows,
    member: int,
    minibatch: Minibatch,
    *,
    losses: Losses = member_losses,
) -> Tensor:
    """One step of one member and of the shared tensors (the non-nested form); returns its loss, ().

    Args:
        ensemble: what is trained. Build its method with gamma=1: one member is one minibatch.
        optimizer: over `rows.param_groups(...)`.
        rows: of this ensemble.
        member: which of them; drawn uniformly for each minibatch in the paper.
        minibatch: inputs and targets.
        losses: as in `nested_step`.
    """
    for parameter in ensemble.parameters():
        parameter.grad = None
    inputs, targets = minibatch
    loss = losses(ensemble(inputs, members=[member]), targets)[0]
    loss.backward()
    rows.hand_over([member])
    optimizer.step()
    return loss.detach()


class Rows:
    """The members' rows of all member tensors, as leaf parameters that share storage with them.

    Whatever moves a row moves the ensemble. An optimiser leaves rows alone that have no gradient: it neither
    decays them nor adds momentum, and Adam counts their steps apart.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self._rows: dict[int, list[nn.Parameter]] = {}
        for group in ensemble.param_groups(lr=1.0):
            if group["members"]:
                for phi in group["params"]:
                    self._rows[id(phi)] = [nn.Parameter(row) for row in phi.detach()]

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """As `Ensemble.param_groups`, with each member's rows in place of the stacked tensors."""
        return self.in_place_of(self.ensemble.param_groups(lr, weight_decay))

    def in_place_of(self, groups: Groups) -> Groups:
        """Parameter groups of the ensemble with the rows of every stacked tensor in its place."""
        return [
            {**group, "params": [row for p in group["params"] for row in self._rows.get(id(p), [p])]}
            for group in groups
        ]

    def hand_over(self, members: Sequence[int]) -> None:
        """Give these members' rows the gradients of the stacked tensors; the other rows get none."""
        for phi in self.ensemble.parameters():
            for k, row in enumerate(self._rows.get(id(phi), ())):
                if row.data_ptr() != phi[k].data_ptr():
                    raise TrainingError(
                        "the ensemble's tensors were replaced (by .to(), .double() or the like) after its Rows were "
                        "made, so a step would be lost. Make Rows and the optimiser afterwards."
                    )
                row.grad = phi.grad[k] if phi.grad is not None and k in members else None


def row_optimizer(ensemble: Ensemble, recipe: Recipe, own: Factory | None = None) -> Optimizer:
    """The recipe's optimiser over the members' rows, which it knows as `rows`."""
    rows = Rows(ensemble)
    optimizer = make_optimizer(ensemble, recipe, own, instead=rows.in_place_of)
    optimizer.rows = rows  # type: ignore[attr-defined]
    return optimizer


def drawn(job: Job, state: State) -> tuple[Tensor, int]:
    """The non-nested form in `fit`: a member drawn for this minibatch steps, and the shared tensors."""
    chance = generator_of(job.recipe.seed, "drawn", state.consumed)
    member = int(torch.randint(state.ensemble.members, (), generator=chance))
    epoch, indices = job.stream[state.consumed]
    for parameter in state.ensemble.parameters():
        parameter.grad = None
    losses = accumulate_gradients(job, state, [Share((member,), indices, epoch)])
    state.optimizer.rows.hand_over([member])  # type: ignore[attr-defined]
    apply_gradients(job, state)
    return losses, 1


class _SharedStatistics:
    """Statistics that all members share, kept as if all had run at once: each starts from what they were.

    In the end they are the mean over members.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self.buffers = ensemble.state[0]  # where members differ in shape, none share statistics
        self.before = self.buffers.copies() if ensemble.stackable else {}
        self.after: list[dict[str, Tensor]] = []

    def ran(self, count: int) -> None:
        """`count` members ran: note what they left and go back to the start."""
        if self.before:
            self.after.extend([self.buffers.copies()] * count)
            self.buffers.merge([self.before])

    def merge(self) -> None:
        """All members ran."""
        if self.after:
            self.buffers.merge(self.after)
