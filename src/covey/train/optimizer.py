"""Optimisers for ensembles, and how their state is carried from one object to the next."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.extras import load
from covey.train.recipe import Recipe

Groups = list[dict[str, Any]]
Factory = Callable[[Groups], Optimizer]


def make_optimizer(
    ensemble: Ensemble,
    recipe: Recipe,
    own: Factory | None = None,
    *,
    instead: Callable[[Groups], Groups] | None = None,
) -> Optimizer:
    """The recipe's optimiser over the ensemble's parameter groups, or over what `instead` makes of them.

    Each group has `base`, its learning rate before the schedule. `own` makes another optimiser out of the groups.
    """
    groups = ensemble.param_groups(recipe.lr, recipe.decay)
    if not groups:
        raise OptionError("every parameter is frozen, so there is nothing to train.")
    if not recipe.decay_vectors:
        groups = without_vectors(ensemble, groups)
    if instead is not None:
        groups = instead(groups)
    for group in groups:
        group["base"] = group["lr"]
    if own is not None:
        return _own_optimizer(own, groups)
    if recipe.optimizer == "sgd":
        nesterov = recipe.nesterov and recipe.momentum > 0
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=nesterov)
    betas = (recipe.momentum, 0.999)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, lr=recipe.lr, betas=betas)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=betas)
    optim = load("timm.optim")
    return optim.Lamb(groups, lr=recipe.lr, betas=betas)


def _own_optimizer(make: Factory, groups: Groups) -> Optimizer:
    if getattr(make, "func", make) is torch.optim.LBFGS:  # bare, or in functools.partial
        raise OptionError(
            "LBFGS calls the loss several times in a step and takes no parameter groups, which fit does not support; "
            "take another optimiser."
        )
    made = make(groups)
    if not isinstance(made, Optimizer):
        raise OptionError(
            f"optimizer is a function of parameter groups that returns a torch optimiser, such as "
            f"functools.partial(torch.optim.RMSprop, alpha=0.9); got {type(made).__name__} from it."
        )
    held = {id(p) for group in made.param_groups for p in group["params"]}
    left_out = sum(id(p) not in held for group in groups for p in group["params"])
    if left_out:
        raise OptionError(
            f"the optimiser leaves {left_out} of the ensemble's tensors out: give it all groups that it is "
            "called with, and freeze what is not to learn (requires_grad_(False))."
        )
    for group in made.param_groups:
        group.setdefault("base", group["lr"])
    return made


def make_schedule(make: Callable[[Optimizer, int], Any], optimizer: Optimizer, total: int, done: int) -> Any:
    """The user's own schedule, as it is after `done` of `total` minibatches.

    Schedules are functions of the steps that they took, so that nothing needs to be stored: they are taken again.
    """
    try:
        inspect.signature(make).bind(optimizer, total)
    except TypeError as error:
        raise OptionError(
            f"schedule is called with the optimiser and the number of minibatches, and takes something else: {error}. "
            "Such as lambda optimizer, total: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)."
        ) from error
    made = make(optimizer, total)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    if isinstance(made, plateau) or not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
        raise OptionError(
            "schedule is a function of an optimiser and the number of minibatches that returns one of "
            f"torch's learning-rate schedulers, but not one that goes by a score; got {type(made).__name__} from it."
        )
    if made.optimizer is not optimizer:
        raise OptionError("the schedule is another optimiser's: make it of the one that it is called with.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the optimiser takes no steps meanwhile
        for _ in range(done):
            made.step()
    return made


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to `factor` times its own before the schedule."""
    for group in optimizer.param_groups:
        group["lr"] = group["base"] * factor


def carry(before: nn.Module, old: Optimizer, after: Ensemble, new: Optimizer) -> list[str]:
    """Take over the optimiser state of the shared tensors that two ensembles, or a network and one, have in common.

    A tensor is the same one if it has the same name and shape, where an ensemble of one network may have a leading
    axis of 1. Members' tensors start with an empty state. Returns the names that were taken over.
    """
    known = dict(before.named_parameters())
    if isinstance(before, Ensemble):
        for name, parameter in before.named_parameters():
            known.setdefault(_leaf(name), parameter)  # the weight comes before factors of the same name
    shared = {id(p) for g in after.param_groups(1.0) if not g["members"] for p in g["params"]}
    taken = []
    for name, parameter in after.named_parameters():
        source = known.get(name, known.get(_leaf(name)))
        if id(parameter) not in shared or source is None or source not in old.state:
            continue
        if source.shape == parameter.shape or source.shape == (1, *parameter.shape):
            new.state[parameter] = {
                key: value.reshape(parameter.shape).clone() if _is_like(value, source) else _copy(value)
                for key, value in old.state[source].items()
            }
            taken.append(_leaf(name))
    return taken


def without_vectors(ensemble: Ensemble, groups: Groups) -> Groups:
    """Each group as two: matrices, and norms and biases without decay."""
    network = ensemble.skeleton()
    ranks = {name: tensor.ndim for name, tensor in network.named_parameters()}
    vectors = {id(p) for name, p in ensemble.named_parameters() if ranks.get(_leaf(name), 2) <= 1}
    found = []
    for group in groups:
        for is_vector in (False, True):
            chosen = [p for p in group["params"] if (id(p) in vectors) == is_vector]
            if chosen:
                decay = 0.0 if is_vector else group["weight_decay"]
                found.append({**group, "params": chosen, "weight_decay": decay})
    return found


def _leaf(name: str) -> str:
    """The network's name of a tensor out of the ensemble's name of a parameter."""
    return name.rpartition(".")[2].replace("/", ".")


def _is_like(value: Any, source: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.shape == source.shape


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
