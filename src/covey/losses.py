"""The training loss of an ensemble: the sum over members of each member's own mean loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.combine import gaussian
from covey.errors import DataError, OptionError
from covey.quantiles import Quantiles
from covey.tables import counted

LossName = Literal["cross-entropy", "binary", "gaussian", "mse"]

OwnLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss of one's own: from one member's outputs (B, ...) and the targets (B, ...) to the mean over its samples, (), or
the loss of each, (B,)."""


class PerMember:
    """A loss of one's own that differs between members.

    Args:
        loss: called with a member's number, its outputs (B, ...) and the targets (B, ...); else as `OwnLoss`.
    """

    def __init__(self, loss: Callable[[int, Tensor, Tensor], Tensor]) -> None:
        self.loss = loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Only members have one."""
        raise OptionError("this loss differs between members, so it is taken through an ensemble's `losses`.")

    def of(self, k: int) -> OwnLoss:
        """Member k's."""
        return lambda outputs, targets: self.loss(k, outputs, targets)


LOSS_OF_TASK: dict[str, LossName] = {
    "classification": "cross-entropy",
    "multilabel": "binary",
    "regression": "mse",
    "gaussian": "gaussian",
}
"""The loss that an ensemble of each task is trained with, unless another is asked for."""


def loss_of(task: str) -> LossName | OwnLoss:
    """The loss that an ensemble of a task is trained with, unless another is asked for; an error for no task."""
    asked = Quantiles.of(task)
    if asked is not None:
        return asked
    if task not in LOSS_OF_TASK:
        known = ", ".join(map(repr, (*LOSS_OF_TASK, "quantiles(0.05, 0.95)")))
        raise OptionError(f"task is one of {known}; got {task!r}.")
    return LOSS_OF_TASK[task]


_NO_LABEL = -(2**63)
"""Stands for "ignore no label": torch's own default would silently leave out the samples with label -100."""


def member_losses(
    outputs: Tensor,
    targets: Tensor,
    kind: LossName = "cross-entropy",
    smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_dim: int | None = None,
    *,
    weights: Tensor | None = None,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Each member's mean loss, (M,).

    Args:
        outputs: members' outputs, (M, B, ...). The class axis is the one that class numbers lack; where that does not
            tell, axis 1 of (B, C, H, W) and more, else the last.
        targets: the same for all members, (B, ...), or each member's own, (M, B, ...). Class numbers, or
            probabilities of the outputs' shape.
        kind: "cross-entropy" on logits; "binary", the mean over classes of each class's own binary cross-entropy, as
            if an image could show several; "gaussian", the negative log-likelihood of means and raw variances
            side by side on the last axis; "mse", the mean squared error.
        smoothing: label smoothing for cross-entropy, of either kind.
        ignore_index: a class number whose samples do not count: the mean is over the others, and 0 if there are none.
            None: all count.
        class_dim: the class axis of one member's output, where it is known.
        weights: factors of the samples' losses, the same for all members, (B,), or each member's own, (M, B). The mean
            is over the samples, not over their weights.
        class_weights: factors of the losses of each class's samples, (C,), likewise; for cross-entropy of either kind.
    """
    if kind == "mse":
        return _weighted(_squares(outputs, targets), weights).mean(1)
    if kind == "gaussian":
        return _weighted(_surprises(outputs, targets), weights).mean(1)
    if kind not in ("cross-entropy", "binary"):
        raise OptionError(f"kind is 'cross-entropy', 'binary', 'gaussian' or 'mse'; got {kind!r}.")
    logits, goal = _logits_and_goal(outputs, targets, class_dim)
    counts = None
    if ignore_index is not None and not goal.is_floating_point():
        counts = goal != ignore_index
        goal = goal.masked_fill(~counts, 0)  # any class will do, since its loss is dropped
    each = _CLASS_LOSSES[kind](logits, goal, smoothing)
    if class_weights is not None:
        each = each * _weights_of(goal, class_weights, classes=logits.shape[-1])
    each = _weighted(each.view(len(outputs), -1), weights)
    if counts is None:
        return each.mean(1)
    counts = counts.view(len(outputs), -1)
    return each.masked_fill(~counts, 0).sum(1) / counts.sum(1).clamp_min(1)


def loss(
    outputs: Tensor,
    targets: Tensor,
    kind: LossName = "cross-entropy",
    smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """The sum over members of their mean losses, a scalar. See `member_losses` for the arguments.

    The sum gives each member's tensors the gradient they would get alone. What the shared tensors get is scaled
    by the ensemble itself (its method's gamma).

    >>> import torch
    >>> loss(torch.zeros(3, 2, 10), torch.tensor([1, 7])).item() / 3  # log 10
    2.3025...
    """
    return member_losses(outputs, targets, kind, smoothing, ignore_index).sum()


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error at each position, (M, positions)."""
    goal = _for_members(outputs, targets, outputs.shape[1:])
    return (outputs - goal).square().flatten(1)


def _surprises(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative log-likelihood under a Gaussian at each position, (M, positions)."""
    mean, variance = gaussian(outputs)
    goal = _for_members(mean, targets, mean.shape[1:])
    return F.gaussian_nll_loss(mean, goal, variance, full=True, reduction="none").flatten(1)


def _logits_and_goal(outputs: Tensor, targets: Tensor, class_dim: int | None) -> tuple[Tensor, Tensor]:
    """Logits (all positions of all members, C), and for each a class number or the classes' probabilities."""
    if outputs.ndim < 3:
        raise OptionError(
            f"outputs have shape {tuple(outputs.shape)}; expected those of an ensemble, (members, batch, classes). "
            "For a plain network's logits (batch, classes) use torch.nn.functional.cross_entropy."
        )
    axis = _class_axis(outputs, targets) if class_dim is None else class_dim % (outputs.ndim - 1) + 1
    logits = outputs.movedim(axis, -1)
    classes = logits.shape[-1]
    if targets.is_floating_point():
        shares = _for_members(outputs, targets, outputs.shape[1:])
        goal = shares.movedim(axis, -1).reshape(-1, classes)
    else:
        numbers = _for_members(logits[..., 0], targets, logits.shape[1:-1])
        goal = numbers.reshape(-1).long()
    return logits.reshape(-1, classes), goal


def _cross_entropy(logits: Tensor, goal: Tensor, smoothing: float) -> Tensor:
    try:
        return F.cross_entropy(
            logits, goal, reduction="none", label_smoothing=smoothing, ignore_index=_NO_LABEL
        )
    except IndexError as error:
        # torch's, for a class that there is no logit of; no device but the CPU says it
        low, high, classes = int(goal.min()), int(goal.max()), logits.shape[-1]
        raise DataError(
            f"labels go from {low} to {high}, and the network has {classes} outputs, for the classes 0 to "
            f"{classes - 1}. Give it an output for each class, or ignore_index= for labels that do not count."
        ) from error


def _binary(logits: Tensor, goal: Tensor, smoothing: float) -> Tensor:
    """The mean over classes of each class's own binary cross-entropy."""
    classes = logits.shape[-1]
    shares = goal if goal.is_floating_point() else F.one_hot(goal, classes).to(logits.dtype)
    shares = (1 - smoothing) * shares + smoothing / classes
    return F.binary_cross_entropy_with_logits(logits, shares, reduction="none").mean(-1)


_CLASS_LOSSES = {"cross-entropy": _cross_entropy, "binary": _binary}


def _weights_of(goal: Tensor, class_weights: Tensor, classes: int) -> Tensor:
    """The factor of each position: its class's, or the mean over its classes."""
    if len(class_weights) > classes:
        raise OptionError(
            f"there are {len(class_weights)} class weights, and the network has {classes} outputs: give one for each."
        )
    if goal.is_floating_point():
        return goal @ class_weights.to(goal.dtype)
    return class_weights[goal]


def _weighted(each: Tensor, weights: Tensor | None) -> Tensor:
    """Losses (M, B positions) times the factors of their samples, (B,) or (M, B)."""
    if weights is None:
        return each
    positions = each.shape[1] // weights.shape[-1]
    return each * weights.repeat_interleave(positions, -1).to(each.dtype)


def own_losses(
    outputs: Tensor,
    targets: Tensor,
    loss: OwnLoss,
    *,
    members: Sequence[int],
    per_member: bool,
    weights: Tensor | None = None,
) -> Tensor:
    """Each member's mean loss, (M,), by a function of the user's own that is called on one member at a time.

    Args:
        outputs: members' outputs, (M, B, ...).
        targets: the same for all members, (B, ...), or with `per_member` each member's own, (M, B, ...).
        loss: see `OwnLoss` and `PerMember`.
        members: the members' numbers.
        per_member: whose targets.
        weights: factors of the samples' losses, (B,) or (M, B); the function then returns the loss of each sample.
    """
    found = []
    for k, answer in enumerate(outputs):
        own = loss.of(members[k]) if isinstance(loss, PerMember) else loss
        if weights is not None and isinstance(own, Quantiles):
            own = own.each
        each = own(answer, targets[k] if per_member else targets)
        _check_own(each, loss, answer, weights)
        if weights is not None:
            each = each * (weights[k] if weights.ndim == 2 else weights)
        found.append(each.mean())
    return torch.stack(found)


def _check_own(each: Tensor, loss: OwnLoss, outputs: Tensor, weights: Tensor | None) -> None:
    samples = len(outputs)
    name = getattr(loss, "__name__", type(loss).__name__)
    if not isinstance(each, Tensor) or not each.is_floating_point():
        raise OptionError(f"the loss {name} returned {type(each).__name__}; expected a tensor of floats.")
    if outputs.requires_grad and not each.requires_grad:
        raise OptionError(
            f"the loss {name} returned a number that has no gradient with respect to the outputs: compute it by "
            "torch's functions, without detach, item or no_grad."
        )
    if each.shape == (samples,) or (each.ndim == 0 and weights is None):
        return
    wanted = "" if weights is not None else "their mean, of shape (), or "
    why = ", which sample weights are for" if weights is not None else ""
    raise OptionError(
        f"the loss {name} returned a tensor of shape {tuple(each.shape)} for {samples} samples of one member; expected "
        f"{wanted}the loss of each, ({samples},){why}."
    )


def _class_axis(outputs: Tensor, targets: Tensor) -> int:
    """The axis of (M, B, ...) that class numbers lack; the usual one where both or neither would do."""
    usual = 2 if outputs.ndim > 4 else outputs.ndim - 1
    for axis in (usual, outputs.ndim - 1, 2):
        without = (*outputs.shape[:axis], *outputs.shape[axis + 1 :])
        if axis > 1 and tuple(targets.shape) in (without, without[1:]):
            return axis
    return usual


def _for_members(outputs: Tensor, targets: Tensor, single: tuple[int, ...]) -> Tensor:
    """Targets with the members' axis: as they are, or the same for all.

    Numbers to regress on may lack the axis of the network's one output.
    """
    if targets.shape != outputs.shape and (*targets.shape, 1) in (tuple(outputs.shape), tuple(single)):
        targets = targets.unsqueeze(-1)
    if targets.shape == outputs.shape:
        return targets
    if tuple(targets.shape) == tuple(single):
        return targets.expand(outputs.shape)
    raise OptionError(
        f"targets have shape {tuple(targets.shape)}; for outputs of {counted(len(outputs), 'member')} they should be "
        f"{tuple(single)}, the same for all, or {tuple(outputs.shape)}, each member's own."
    )
