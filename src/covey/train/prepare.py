"""Everything that can be checked or chosen before the first step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey import registry
from covey.combine import class_axis
from covey.conversion import convert
from covey.data import Data
from covey.data.container import IGNORED
from covey.data.sources import Passing
from covey.ensemble import Ensemble
from covey.errors import DataError, OptionError, TrainingError
from covey.extras import load
from covey.losses import LossName, OwnLoss
from covey.method import Method, Training, Turn
from covey.methods.replicate import Replicate
from covey.networks.calls import arguments, inputs_explained, pick
from covey.networks.modes import evaluating
from covey.quantiles import Quantiles
from covey.seeds import random_state_kept
from covey.tables import counted
from covey.tensors import moved
from covey.train import checkpoint, ranks
from covey.train.alone import Alone
from covey.train.averaging import averaged, training_inputs
from covey.train.batches import PLANS, Microbatch, check_plan, microbatches, stream_of
from covey.train.callbacks import check_callbacks
from covey.train.recipe import Machine, Recipe
from covey.train.samples import check_labels
from covey.train.state import Job, Phase, State
from covey.train.statistics import running
from covey.train.step import run_piece
from covey.train.steps import STEPS
from covey.train.watch import chosen_score

if TYPE_CHECKING:
    from lightning_fabric import Fabric


_log = logging.getLogger("covey")


@contextmanager
def launched(machine: Machine) -> Iterator[Fabric | Alone]:
    """Start the processes, if there are to be several, and make numbers repeatable."""
    if machine.progress:
        load("tqdm")  # said now rather than after the ensemble is built
    _check_accelerator(machine.accelerator)
    _check_launched(machine)
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    steady()
    world = machine.devices * machine.nodes
    on_cpu = machine.accelerator == "cpu" or (
        machine.accelerator == "auto" and not torch.accelerator.is_available()
    )
    if on_cpu and machine.precision == "16-mixed":
        raise OptionError(
            "precision='16-mixed' needs a GPU; on a CPU, precision='bf16-mixed' is the mixed one."
        )
    if world == 1 and on_cpu and machine.precision == "32-true":
        yield Alone()
        return
    lightning = load("lightning_fabric")

    fabric = lightning.Fabric(
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy="ddp" if world > 1 else "auto",
        precision=machine.precision,
    )
    if world == 1:
        fabric.launch()
        yield fabric
        return
    with ranks.launched(fabric):
        yield fabric


def _check_accelerator(name: str) -> None:
    """Refuse a device that is not there."""
    there = {
        "cuda": torch.cuda.is_available,
        "gpu": torch.accelerator.is_available,
        "mps": torch.mps.is_available,
    }
    if name in there and not there[name]():
        raise OptionError(
            f"accelerator is {name!r}, and torch sees no such device on this machine; 'cpu' or 'auto' will do "
            "(on the command line --accelerator)."
        )


_LAUNCHED = ("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LSB_JOBID", "KUBERNETES_PORT")
"""Variables of the environment, of which launchers of several machines set at least one."""


def _check_launched(machine: Machine) -> None:
    """Refuse to wait for ever for other machines that nobody has told of this one."""
    if machine.nodes > 1 and not any(map(os.environ.get, _LAUNCHED)):
        raise OptionError(
            f"nodes={machine.nodes}, and this process was started alone: start it on each machine with torchrun "
            f"--nnodes {machine.nodes} or `fabric run`, which tell them of each other."
        )


def steady() -> None:
    """Call each function of torch's vector library once on one element.

    The first threaded use of one in a process was seen to be slightly wrong; a first use by one thread is not.
    """
    one = torch.ones(1)
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(one)


@dataclass(frozen=True)
class Own:
    """What the user brings of training: a loss, an optimiser, a schedule, callbacks. See `covey.fit`."""

    loss: OwnLoss | None = None
    optimizer: Callable[[Any], Optimizer] | None = None
    schedule: Callable[[Optimizer, int], Any] | None = None
    callbacks: Sequence[Any] = ()

    def check(self, data: Data, recipe: Recipe) -> None:
        """Refuse what is none of these, and what does not go together."""
        for name in ("loss", "optimizer", "schedule"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise OptionError(
                    f"{name} is a function of your own; got {value!r}. Those that covey has are chosen in "
                    f"Recipe({name}=...)."
                )
        check_callbacks(self.callbacks)
        if self.loss is None:
            return
        if data.class_weights is not None:
            raise OptionError(
                "class_weight is for covey's losses; a loss of your own takes its own, or sample_weight."
            )
        if recipe.loss != "auto" or recipe.smoothing or recipe.ignore_index is not None:
            raise OptionError(
                "loss= is a function of your own, so the recipe's loss, smoothing and ignore_index have no "
                "meaning; leave them out."
            )


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
    if isinstance(given, str) or not given or not all(isinstance(net, nn.Module) for net in given):
        raise OptionError(f"network is a torch.nn.Module or an ensemble; got {type(network).__name__}.")
    if len(given) > 1 and method is None:
        raise OptionError(f"{len(given)} networks were given, which only method= can make an ensemble of.")
    if isinstance(network, Ensemble) and method is not None:
        raise OptionError("network is an ensemble already, so method= has no meaning; leave it out.")
    if data.train.by_number and not len(data.train):
        raise DataError("the data have no training samples.")
    if (recipe.keep == "best" or recipe.patience is not None) and not has_validation(data):
        raise OptionError(
            "keep='best' and patience go by a validation score, and the data have no validation samples."
        )
    if data.task == "segmentation" and recipe.ignore_index is None:
        recipe = replace(recipe, ignore_index=IGNORED)
    own.check(data, recipe)
    data = _with_classes(given[0], data)
    check_labels(data, recipe)
    chosen_score(data, recipe.choose)
    if resume and folder is None:
        raise OptionError("resume=True needs the folder of the run.")
    if folder is not None and fabric.global_rank == 0:
        checkpoint.prepare_folder(Path(folder), resume=resume)
    fabric.barrier()
    way = network.method if isinstance(network, Ensemble) else method
    if folder is not None:
        _check_storable(way, recipe)
    phases = tuple(averaged(_phases(way, recipe), recipe))
    for phase in phases:
        if phase.step not in STEPS or (phase.plan is not None and phase.plan not in PLANS):
            raise OptionError(f"no such step or plan: {phase.step!r}, {phase.plan!r}.")
        _check_own_pace(phase, recipe, own)
    if resume and isinstance(data.train, Passing):
        _log.info(
            "training batches come as a stream: a resumed run ends with the same numbers only if the stream "
            "repeats itself"
        )
    loss = _loss(given[0], data, recipe)
    task = TASKS.get(data.task) or {"gaussian": "gaussian", "mse": "regression"}.get(loss, "classification")
    if isinstance(own.loss, Quantiles):
        task = "regression"  # two levels are no mean and variance
    if isinstance(network, Ensemble) and own.loss is None:
        _check_task(network, task, data)
    return Job(
        data=data,
        recipe=recipe,
        machine=machine,
        fabric=fabric,
        stream=stream_of(data.train, recipe.batch, recipe.seed, shuffle=recipe.shuffle),
        phases=phases,
        loss=own.loss or loss,
        task=task,
        optimizer=own.optimizer,
        schedule=own.schedule,
        callbacks=tuple(own.callbacks),
        way=repr(way),
        folder=None if folder is None else Path(folder),
    )


TASKS = {"multilabel": "multilabel"}
"""What an ensemble answers where the data alone tell; else the loss does."""


def has_validation(data: Data) -> bool:
    """Whether there are samples to validate on."""
    return not data.validation.by_number or len(data.validation) > 0


def _check_own_pace(phase: Phase, recipe: Recipe, own: Own) -> None:
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


def single(network: nn.Module, job: Job) -> Ensemble:
    """A plain network as an ensemble of one; an ensemble as it is."""
    return build(network, Replicate(members=1), job)


def build(network: nn.Module | Sequence[nn.Module], method: Method, job: Job) -> Ensemble:
    """Convert a network, or several that differ, for the job's task; an ensemble stays as it is."""
    if isinstance(network, Ensemble):
        return network
    first = network if isinstance(network, nn.Module) else network[0]
    given = moved(example(job.data), device_of(first))
    return convert(network, method, example=given, task=job.task, seed=job.recipe.seed)


def example(data: Data) -> Any:
    """Two training samples as a network takes them."""
    return data.prepare(data.train.example())


def device_of(network: nn.Module) -> torch.device:
    """Where a network's inputs must go."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def check_state(job: Job, state: State) -> None:
    """Check what can only be checked on the ensemble of a phase: the plan, and what the smallest batch does."""
    plan = job.phases[state.phase].plan or job.recipe.plan
    check_plan(plan, job.stream, state.ensemble, job.chunk(state.phase))
    _check_outputs(job, state.ensemble)
    _check_smallest(job, state, plan)


def settle(job: Job, state: State) -> None:
    """Choose how members run before the first step, the same in all processes; weights and statistics stay."""
    ensemble = state.ensemble
    if job.recipe.run != "auto":
        ensemble.run = job.recipe.run
    piece = _pieces(job, state, state.consumed)[0]
    for mode in ("train", "eval"):
        if ensemble.runs[mode] == "auto":
            ensemble.train(mode == "train")
            with torch.set_grad_enabled(mode == "train"):
                _try(job, ensemble, piece)
            if ensemble.runs[mode] == "auto":  # nothing was measured, since there is nothing to choose
                ensemble.runs[mode] = "loop"
    ensemble.train()
    ensemble.runs, ensemble.measured = job.fabric.broadcast((ensemble.runs, ensemble.measured))


def _phases(method: Any, recipe: Recipe) -> list[Phase]:
    if isinstance(method, Training):
        return method.phases(recipe)
    if method is not None and not isinstance(method, Method):
        raise OptionError(
            f"method is one of covey.METHODS' or covey.TRAININGS' classes with options; got {type(method).__name__}."
        )
    return method_phases(Replicate(members=1) if method is None else method, recipe)


def method_phases(method: Method, recipe: Recipe) -> list[Phase]:
    """One phase, and a further one after each of the method's turns.

    Until a turn that starts again, the learning rate is the schedule's first; from then on the schedule has the epochs
    that are left.
    """
    turns = list(method.turns())
    _check_turns(turns, recipe)
    begin = max((turn.epoch for turn in turns if turn.restart), default=0)

    def rate(epoch: float) -> float:
        if epoch < begin:
            return recipe.schedule.at(0.0, lr=recipe.lr, epochs=begin)
        return recipe.schedule.at(epoch - begin, lr=recipe.lr, epochs=recipe.epochs - begin)

    own_rate = rate if begin else None
    ends = [*(turn.epoch for turn in turns), recipe.epochs]
    first = Phase(build=lambda network, job: build(network, method, job), end=ends[0], rate=own_rate)
    later = [
        Phase(build=_turning(turn), end=end, rate=own_rate, in_place=True)
        for turn, end in zip(turns, ends[1:], strict=True)
    ]
    found = [first, *later]
    if method.refreshes_statistics:
        found[-1] = replace(found[-1], finish=_refreshed)
    return found


def _check_turns(turns: Sequence[Turn], recipe: Recipe) -> None:
    for turn in turns:
        if turn.epoch >= recipe.epochs:
            raise OptionError(
                f"the method changes its ensemble after {counted(turn.epoch, 'epoch')}, and training ends at "
                f"{recipe.epochs}: train longer, or let it (refine_at, decouple_at) come earlier."
            )


def _turning(turn: Turn) -> Callable[[Any, Job], Ensemble]:
    def change(ensemble: Ensemble, job: Job) -> Ensemble:
        with random_state_kept(ensemble, seed=job.recipe.seed):
            turn.change(ensemble, _one_epoch(job))
        return ensemble

    return change


def _refreshed(job: Job, state: State) -> Ensemble:
    state.ensemble.refresh_statistics(training_inputs(job))
    return state.ensemble


def _one_epoch(job: Job) -> Iterator[tuple[Any, Tensor]]:
    """The training set once, without augmentation and without ignored samples: the same in all processes."""
    split, device = job.data.train, job.fabric.device
    if not split.in_memory:
        for inputs, targets in islice(split.in_order(job.recipe.batch), job.stream.per_epoch):
            yield moved(job.data.prepare(inputs), device), targets.to(device)
        return
    everyone = torch.arange(len(split))
    if job.recipe.ignore_index is not None and split.targets.ndim == 1:
        everyone = everyone[split.targets != job.recipe.ignore_index]
    for rows in everyone.split(job.recipe.batch):
        targets = split.targets[rows].to(device)
        if job.data.task in ("language", "segmentation"):
            targets = targets.long()
        yield moved(job.data.prepare(split.read(rows)[0]), device), targets


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
    return "gaussian" if outputs.shape[-1] == 2 * data.outputs else "mse"


def _check_outputs(job: Job, ensemble: Ensemble) -> None:
    """The network must have an output for each class, or one or two for a number."""
    given = moved(example(job.data), job.fabric.device)
    args, kwargs = arguments(given)
    with torch.no_grad(), random_state_kept(ensemble), ensemble.evaluating(), inputs_explained(given):
        outputs = ensemble(*args, members=[0], **kwargs)
    _check_one_label(job.data, outputs)
    axis = class_axis(outputs, ensemble.class_dim)
    found, wanted = outputs.shape[axis], job.data.outputs * (2 if job.task == "gaussian" else 1)
    if callable(job.loss) and job.data.task == "regression":
        return  # how many outputs it needs, only that loss knows
    exactly = job.data.task in ("regression", "multilabel")
    if found < wanted or (exactly and found != wanted):
        raise DataError(
            f"the network has {found} outputs and the data need {wanted}: "
            + (
                f"{len(job.data.classes)} classes."
                if job.data.classes
                else f"a number with loss {job.loss!r}."
            )
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
    pieces = _pieces(job, state, number)
    smallest = min(pieces, key=lambda p: p.indices.shape[-1], default=None)
    if smallest is None or smallest.indices.shape[-1] > 1:
        return
    try:
        _try(job, state.ensemble, smallest)
    except (ValueError, RuntimeError) as error:
        raise OptionError(
            f"the last minibatch of an epoch ({job.stream.samples} samples in batches of {job.stream.batch}, plan "
            f"{plan!r}, {counted(job.shards, 'shard')}) leaves a part of one sample, which the network does not take: "
            f"{error} Choose another batch."
        ) from error


def _pieces(job: Job, state: State, consumed: int) -> list[Microbatch]:
    plan = PLANS[job.phases[state.phase].plan or job.recipe.plan]
    shares, _ = plan(job.stream, consumed, state.ensemble)
    chunk = job.chunk(state.phase)
    return list(microbatches(shares, shards=range(job.shards), of=job.shards, chunk=chunk, key=(0,)))


def _try(job: Job, ensemble: Ensemble, piece: Microbatch) -> None:
    """Run a piece and leave no trace but the choice of how to run."""
    before = {name: tensor.clone() for name, tensor in running(ensemble).items()}
    try:
        with random_state_kept(ensemble):
            losses = run_piece(job, ensemble, piece)
    finally:
        with torch.no_grad():
            for name, tensor in running(ensemble).items():
                tensor.copy_(before[name])
    if losses.shape != (len(piece.members),):
        raise TrainingError(f"the loss should be one number a member; it has shape {tuple(losses.shape)}.")
