"""Everything that can be checked or chosen before the first step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from covey import registry
from covey.combine import class_axis
from covey.data import Data
from covey.data.container import IGNORED
from covey.data.streams import Passing
from covey.ensemble import Ensemble
from covey.errors import DataError, OptionError
from covey.losses import LossName, OwnLoss
from covey.method import Method, Training
from covey.networks.calls import arguments, inputs_explained, pick
from covey.networks.modes import evaluating
from covey.quantiles import Quantiles
from covey.seeds import random_state_kept
from covey.tables import counted
from covey.tensors import moved
from covey.train import checkpoint
from covey.train.alone import Alone
from covey.train.averaging import averaged
from covey.train.batches import PLANS, check_plan, stream_of
from covey.train.own import Own
from covey.train.phases import device_of, example, phases_of
from covey.train.recipe import Machine, Recipe
from covey.train.samples import check_labels
from covey.train.settling import attempt, pieces_of
from covey.train.state import Job, Phase, State
from covey.train.steps import STEPS
from covey.train.watch import chosen_score

if TYPE_CHECKING:
    from lightning_fabric import Fabric


_log = logging.getLogger("covey")


def make_job(
    fabric: Fabric | Alone,
    network: nn.Module | Sequence[nn.Module],
    data: Data,
    recipe: Recipe,
    machine: Machine,
    method: Any,
    folder: str | Path | None,
    *,
    own: Own | None = None,
    resume: bool,
) -> Job:
    """Check what was asked for, and put it together."""
    own = own or Own()
    given = [network] if isinstance(network, nn.Module) else network
    _check_networks(network, given, method)
    _check_samples(data, recipe)
    if data.task == "segmentation" and recipe.ignore_index is None:
        recipe = replace(recipe, ignore_index=IGNORED)
    if own.loss is None and recipe.levels is not None:
        own = replace(own, loss=recipe.levels)
    own.check(data, recipe)
    data = _with_classes(given[0], data)
    check_labels(data, recipe)
    _check_quantiles(data, own.loss)
    chosen_score(data, recipe.choose, own.loss)
    if resume and folder is None:
        raise OptionError("resume=True needs the folder of the run.")
    if folder is not None and fabric.global_rank == 0:
        checkpoint.prepare_folder(Path(folder), resume=resume)
    fabric.barrier()
    way = network.method if isinstance(network, Ensemble) else method
    if folder is not None:
        _check_storable(way, recipe)
    phases = averaged(phases_of(way, recipe), recipe)
    for phase in phases:
        _check_phase(phase, recipe, own)
    if resume and isinstance(data.train, Passing):
        _log.info(
            "training batches come as a stream: a resumed run ends with the same numbers only if the stream "
            "repeats itself"
        )
    loss = _loss(given[0], data, recipe)
    task = _task(data, own, loss)
    if isinstance(network, Ensemble) and (own.loss is None or isinstance(own.loss, Quantiles)):
        _check_task(network, task, data)
    return Job(
        data=data,
        recipe=recipe,
        machine=machine,
        fabric=fabric,
        stream=stream_of(data.train, recipe.batch, recipe.seed, shuffle=recipe.shuffle),
        phases=tuple(phases),
        loss=own.loss or loss,
        task=task,
        optimizer=own.optimizer,
        schedule=own.schedule,
        callbacks=tuple(own.callbacks),
        way=repr(way),
        folder=None if folder is None else Path(folder),
    )


def check_kinds(network: Any, recipe: Any, machine: Any) -> None:
    """Refuse arguments that have changed places, and a dict or a word where a recipe or a machine is expected."""
    given = network if isinstance(network, list | tuple) else [network]
    if not given or not all(isinstance(each, nn.Module) for each in given):
        made = ": call it first, and give what it returns" if callable(network) else ""
        raise OptionError(f"network is a torch.nn.Module or an ensemble; got {type(network).__name__}{made}.")
    for name, value, kind in (("recipe", recipe, Recipe), ("machine", machine, Machine)):
        if not isinstance(value, kind):
            raise OptionError(f"{name} is a covey.{kind.__name__}(...); got {value!r}.")


def _check_networks(network: Any, given: Sequence[nn.Module], method: Any) -> None:
    """Refuse networks that do not go with the method."""
    if len(given) > 1 and method is None:
        raise OptionError(f"{len(given)} networks were given, which only method= can make an ensemble of.")
    if isinstance(network, Ensemble) and method is not None:
        raise OptionError("network is an ensemble already, so method= has no meaning; leave it out.")


def _check_samples(data: Data, recipe: Recipe) -> None:
    """Refuse a training set of nothing, and a choice by a score that nothing is left to compute."""
    if data.train.by_number and not len(data.train):
        raise DataError("the data have no training samples.")
    by_score = recipe.keep == "best" or recipe.patience is not None
    if by_score and not has_validation(data):
        raise OptionError(
            "keep='best' and patience go by a validation score, and the data have no validation samples."
        )


def _check_quantiles(data: Data, loss: OwnLoss | None) -> None:
    if not isinstance(loss, Quantiles):
        return
    if data.task != "regression":
        raise OptionError(
            f"quantiles are of a number, and the data are for {data.task}. If the target is a number of few values, "
            "say so: task='regression' (--task regression)."
        )


def has_validation(data: Data) -> bool:
    """Whether there are samples to validate on."""
    return not data.validation.by_number or len(data.validation) > 0


def _check_phase(phase: Phase, recipe: Recipe, own: Own) -> None:
    """Refuse a step or plan that is none, and what of the recipe or the user's does not go with a phase."""
    if phase.step not in STEPS or (phase.plan is not None and phase.plan not in PLANS):
        raise OptionError(f"no such step or plan: {phase.step!r}, {phase.plan!r}.")
    if own.schedule is not None and phase.rate is not None:
        raise OptionError(
            "this way of training sets the learning rate itself, at which it collects members or starts again; leave "
            "schedule= out."
        )
    if recipe.accumulate > 1 and phase.step != "plain":
        raise OptionError(
            "accumulate is for steps of all members, and here one member steps at a time; leave it out."
        )


def _with_classes(network: nn.Module, data: Data) -> Data:
    """Data that do not know their classes have as many as the network has outputs."""
    if data.task != "classification" or data.classes:
        return data
    outputs = _outputs(network, data)[None]
    classes = outputs.shape[class_axis(outputs, None)]
    if classes < 2:
        raise DataError(
            f"labels are whole numbers, so that they would be classes, and the network has {classes} output. "
            "Say what they are: covey.data.adapt(data, task='regression'), or give the network an output for "
            "each class."
        )
    _log.info("data: %d classes, since the network has as many outputs", classes)
    return replace(data, classes=tuple(map(str, range(classes))))


def _outputs(network: nn.Module, data: Data) -> Tensor:
    """A network's, or an ensemble's first member's, answer to two samples."""
    given = moved(example(data), device_of(network))
    args, kwargs = arguments(given)
    with torch.no_grad(), random_state_kept(network), evaluating(network), inputs_explained(given):
        if isinstance(network, Ensemble):
            return network(*args, members=[0], **kwargs)[0]
        return pick(network(*args, **kwargs), None)


def check_state(job: Job, state: State) -> None:
    """Check what can only be checked on the ensemble of a phase: the plan, and what the smallest batch does."""
    plan = job.phases[state.phase].plan or job.recipe.plan
    check_plan(plan, job.stream, state.ensemble, job.chunk(state.phase))
    _check_outputs(job, state.ensemble)
    _check_smallest(job, state, plan)


def _check_storable(method: Any, recipe: Recipe) -> None:
    """What the run ends with must be known under a name and have options that JSON holds."""
    if isinstance(method, Training):
        registry.described(method.result(recipe))
    elif isinstance(method, Method):
        registry.described(method)


def _loss(network: nn.Module, data: Data, recipe: Recipe) -> LossName:
    """The loss that is meant by the recipe for these data and this network."""
    if data.task == "multilabel":
        if recipe.loss not in ("auto", "binary"):
            raise OptionError(
                f"labels of which several may be true have the loss 'binary'; got {recipe.loss!r}."
            )
        return "binary"
    if data.task != "regression":
        if recipe.loss not in ("auto", "cross-entropy", "binary"):
            raise OptionError(f"loss={recipe.loss!r} is for numbers; the data are for {data.task}.")
        return "binary" if recipe.loss == "binary" else "cross-entropy"
    if recipe.loss in ("cross-entropy", "binary") or recipe.smoothing:
        raise OptionError("cross-entropy and label smoothing are for classes; the data are for regression.")
    if recipe.loss != "auto":
        return recipe.loss
    if isinstance(network, Ensemble):
        return "gaussian" if network.task == "gaussian" else "mse"
    outputs = _outputs(network, data)
    has_variances = (
        outputs.ndim > 1 and outputs.shape[-1] == 2 * data.outputs
    )  # else the last axis is the batch's
    return "gaussian" if has_variances else "mse"


def _task(data: Data, own: Own, loss: LossName) -> str:
    """What the ensemble answers: the data tell where several labels may be true, else the loss does."""
    if data.task == "multilabel":
        return "multilabel"
    if isinstance(own.loss, Quantiles):
        return str(own.loss)
    return {"gaussian": "gaussian", "mse": "regression"}.get(loss, "classification")


def _check_outputs(job: Job, ensemble: Ensemble) -> None:
    """The network must have an output for each class, or one or two for a number."""
    given = moved(example(job.data), job.fabric.device)
    args, kwargs = arguments(given)
    with torch.no_grad(), random_state_kept(ensemble), ensemble.evaluating(), inputs_explained(given):
        outputs = ensemble(*args, members=[0], **kwargs)
    _check_one_label(job.data, outputs)
    axis = class_axis(outputs, ensemble.class_dim)
    found, wanted = outputs.shape[axis], job.data.outputs * (2 if job.task == "gaussian" else 1)
    if isinstance(job.loss, Quantiles):
        wanted = len(job.loss.levels) * job.data.outputs
    elif callable(job.loss) and job.data.task == "regression":
        _check_choice(job.recipe, outputs[0, 0].numel(), wanted)
        return  # how many outputs it needs, only that loss knows
    exactly = job.data.task in ("regression", "multilabel")
    if found < wanted or (exactly and found != wanted):
        raise DataError(
            f"the network has {found} outputs and the data need {wanted}: "
            + (
                f"{len(job.data.classes)} classes."
                if job.data.classes
                else f"{counted(job.data.outputs, 'number')} with loss {str(job.loss)!r}."
            )
        )


def _check_choice(recipe: Recipe, outputs: int, numbers: int) -> None:
    """Refuse to choose an epoch by a score that a loss of the user's own leaves undefined."""
    if outputs != numbers and (recipe.keep == "best" or recipe.patience is not None):
        raise OptionError(
            f"keep='best' and patience go by the rmse of the validation data, and the network has {outputs} outputs "
            f"for {counted(numbers, 'number')}: what they mean, only your loss knows. Leave keep and patience out."
        )


def _check_one_label(data: Data, outputs: Tensor) -> None:
    """Where the network gives one answer a sample, its label is one number: rows of zeros and a one are none."""
    if data.task != "classification" or outputs.ndim != 3:
        return
    targets = data.train.targets
    if data.train.by_number and not data.train.in_memory:
        targets = data.train.read(torch.arange(1))[1]
    if targets.ndim == 2 and not targets.is_floating_point():
        raise DataError(
            f"labels have shape (N, {targets.shape[1]}), and the network gives one answer a sample; expected the "
            "number of each sample's class, (N,). Rows of zeros and a one become that by labels.argmax(-1); where "
            "several may be true, say covey.data.adapt(data, task='multilabel')."
        )


def _check_task(ensemble: Ensemble, task: str, data: Data) -> None:
    """An ensemble answers as its task says, whatever it was trained on."""
    if ensemble.task != task:
        notes = "; ".join(map(str, data.record.get("notes", ())))
        raise DataError(
            f"the ensemble's task is {ensemble.task!r}, and it would be trained for {task!r}, as the data are for "
            f"{data.task}{notes and f' ({notes})'}. Say the task in covey.convert(task=...), or what the targets are: "
            "covey.data.adapt(data, task=...)."
        )


def _check_smallest(job: Job, state: State, plan: str) -> None:
    """A layer that cannot take one sample should say so now and not at the end of the first epoch."""
    number, _ = job.stream.smallest()
    pieces = pieces_of(job, state, number)
    smallest = min(pieces, key=lambda p: p.indices.shape[-1], default=None)
    if smallest is None or smallest.indices.shape[-1] > 1:
        return
    try:
        attempt(job, state.ensemble, smallest)
    except (ValueError, RuntimeError) as error:
        raise OptionError(
            f"the last minibatch of an epoch ({job.stream.samples} samples in batches of {job.stream.batch}, plan "
            f"{plan!r}, {counted(job.shards, 'shard')}) leaves a part of one sample, which the network does not take: "
            f"{error} Choose another batch."
        ) from error
