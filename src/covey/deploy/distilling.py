"""An ensemble's answers taught to something cheaper.

One network learns the members' averaged prediction (Hinton et al., 2015). A cheap ensemble with as many members learns
each member's own: member k of the student from member k of the teacher (Hydra, Tran et al., 2020), which keeps what the
members disagree about and so the uncertainty.

    loss of student k = T^2 CE(softmax(z_teacher / T), softmax(z_k / T))        T a temperature
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.combine import gaussian
from covey.data import Data, Split, adapt
from covey.deploy.fusing import check_is_ensemble
from covey.ensemble import Ensemble
from covey.errors import DataError, EvaluationError, OptionError
from covey.losses import PerMember
from covey.method import Method, Training
from covey.networks.calls import arguments, inputs_explained
from covey.options import check_above, check_between
from covey.tensors import moved
from covey.train import History, Machine, Recipe, fit

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Taught(Split):
    """Samples of another split, with a teacher's answers in the place of their own.

    Args:
        inputs: the other split's.
        targets: the other split's, which say what kind of answer is wanted.
        source: the other split.
        answers: the teacher's, (N, ...).
    """

    source: Split = field(kw_only=True)
    answers: Tensor = field(kw_only=True)

    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs of the samples with these numbers, and what the teacher answers."""
        return self.source.read(rows)[0], self.answers[rows]

    def in_order(self, size: int, *, first: int = 0, every: int = 1) -> Iterator[tuple[Any, Tensor]]:
        """All samples in batches, as they lie; or every so many of them."""
        start = first * size
        for inputs, targets in self.source.in_order(size, first=first, every=every):
            yield inputs, self.answers[start : start + len(targets)]
            start += every * size

    def shown(self, rows: Tensor) -> Tensor:
        """As in the other split."""
        return self.source.shown(rows)


def distill(
    ensemble: Ensemble,
    network: nn.Module,
    data: Any,
    recipe: Recipe | None = None,
    *,
    method: Method | Training | None = None,
    temperature: float = 1.0,
    truth: float = 0.0,
    folder: str | Path | None = None,
    machine: Machine | None = None,
    resume: bool = False,
) -> History:
    """Train a network, or a cheap ensemble of it, to answer as an ensemble does.

    Without a method the network learns the averaged prediction. With a method of as many members as the ensemble has,
    each member learns one member's answers, so that the student disagrees where the teacher does; with any other
    number, all learn the average.

    Args:
        ensemble: the teacher; it stays as it is.
        network: the student's architecture, with as many outputs as the teacher.
        data: to learn on, as `covey.fit` takes them, in memory or read by number. Training labels matter only for
            `truth`; those of the validation part are scored against.
        recipe: how to train. Its loss is replaced.
        method: what makes the student an ensemble.
        temperature: above 1 softens the teacher's probabilities, so that small ones teach too.
        truth: share of the true labels in what is taught, from 0 to 1.
        folder: as in `covey.fit`.
        machine: as in `covey.fit`.
        resume: as in `covey.fit`.
    """
    check_is_ensemble(ensemble, "distill")
    check_above("temperature", temperature)
    check_between("truth", truth, 0, 1)
    recipe = recipe or Recipe()
    found = adapt(data)
    _check(ensemble, found, recipe, truth)
    per_member = isinstance(method, Method) and method.members == ensemble.members > 1
    answers = _answers(ensemble, found, temperature, truth, per_member=per_member)
    taught = Taught(found.train.inputs, found.train.targets, source=found.train, answers=answers)
    lesson = _LESSONS[ensemble.task](temperature)
    loss = PerMember(lambda k, outputs, goal: lesson(outputs, goal[:, k])) if per_member else lesson
    student = replace(found, train=taught, class_weights=None)
    return fit(
        network, student, recipe, method=method, folder=folder, machine=machine, resume=resume, loss=loss
    )


def _check(ensemble: Ensemble, data: Data, recipe: Recipe, truth: float) -> None:
    if not data.train.by_number:
        raise DataError(
            "the teacher answers each training sample once, before training, so samples must have numbers; give a "
            "map-style Dataset or tensors instead of a stream of batches."
        )
    if data.task not in ("classification", "regression"):
        raise OptionError(
            f"distill teaches one class or numbers per sample, and the data are for {data.task}, which it cannot teach."
        )
    if (data.task == "regression") != (ensemble.task != "classification"):
        raise OptionError(f"the data are for {data.task}, and the teacher's task is {ensemble.task!r}.")
    if ensemble.task not in _LESSONS:
        raise OptionError(
            f"distill teaches classes, numbers or Gaussians, and the teacher's task is {ensemble.task!r}. Train the "
            "student on the data themselves."
        )
    if truth and data.task == "regression":
        raise OptionError("truth mixes labels into probabilities; for a regression leave it at 0.")
    if recipe.augment.mixup or recipe.augment.cutmix:
        raise OptionError(
            "mixup and cutmix make targets out of labels; switch them off to learn from a teacher."
        )


@torch.no_grad()
def _answers(ensemble: Ensemble, data: Data, temperature: float, truth: float, *, per_member: bool) -> Tensor:
    """What is taught for every training sample: (N, ...), or each member's, (N, M, ...)."""
    device = next(ensemble.parameters()).device
    found = []
    with ensemble.evaluating():
        for inputs, targets in data.train.in_order(_BATCH):
            outputs = _asked(ensemble, moved(data.prepare(inputs), device))
            answer = _TAUGHT[ensemble.task](outputs, temperature)
            if not per_member:
                answer = _AVERAGED[ensemble.task](answer)[None]
            if truth:
                answer = (1 - truth) * answer + truth * _sure(targets, answer.shape[-1])
            found.append(answer.movedim(0, 1) if per_member else answer[0])
    return torch.cat(found)


def _sure(targets: Tensor, classes: int) -> Tensor:
    """True labels as probabilities."""
    if targets.min() < 0 or targets.max() >= classes:
        raise DataError(
            f"labels range from {targets.min()} to {targets.max()}, and the teacher knows the classes 0 to "
            f"{classes - 1}: truth= mixes labels in, so give labels of its classes or leave it at 0."
        )
    return F.one_hot(targets.long(), classes).float()


def _asked(ensemble: Ensemble, inputs: Any) -> Tensor:
    """The teacher's outputs, (M, B, ...); those that nobody can learn from are refused."""
    args, kwargs = arguments(inputs)
    with inputs_explained(inputs):
        outputs = ensemble(*args, **kwargs).float().cpu()
    if not outputs.isfinite().all():
        raise EvaluationError(
            "the teacher's answers to the training data are NaN or infinite: its training diverged, or the inputs are "
            "not finite."
        )
    return outputs


# --- by task: what members teach, (M, B, ...); how it is averaged; and the loss of a student ------------------------


def _probabilities(outputs: Tensor, temperature: float) -> Tensor:
    if outputs.ndim != 3:
        raise OptionError(
            f"distill teaches one answer per sample, (members, batch, classes); this teacher's have the shape "
            f"{tuple(outputs.shape)}."
        )
    return (outputs / temperature).softmax(-1)


def _numbers(outputs: Tensor, temperature: float) -> Tensor:
    return outputs


def _moments(outputs: Tensor, temperature: float) -> Tensor:
    return torch.cat(gaussian(outputs), -1)


def _mixture(moments: Tensor) -> Tensor:
    """Mean and variance of the members' Gaussians together."""
    mean, variance = moments.chunk(2, -1)
    return torch.cat([mean.mean(0), variance.mean(0) + mean.var(0, correction=0)], -1)


def _check_outputs(outputs: Tensor, goal: Tensor) -> None:
    """Refuse a student that answers with more or fewer numbers than the teacher."""
    given, wanted = outputs[0].numel(), goal[0].numel()
    if given != wanted:
        raise OptionError(
            f"the student gives {given} outputs per sample and the teacher {wanted}; give it as many."
        )


def _soft_cross_entropy(temperature: float) -> Any:
    def lesson(outputs: Tensor, goal: Tensor) -> Tensor:
        _check_outputs(outputs, goal)
        each = -(goal * (outputs.flatten(1) / temperature).log_softmax(-1)).sum(-1)
        return temperature**2 * each

    return lesson


def _squared_error(temperature: float) -> Any:
    def lesson(outputs: Tensor, goal: Tensor) -> Tensor:
        _check_outputs(outputs, goal)
        return (outputs - goal.reshape(outputs.shape)).square().flatten(1).mean(1)

    return lesson


def _gaussian_divergence(temperature: float) -> Any:
    def lesson(outputs: Tensor, goal: Tensor) -> Tensor:
        """KL divergence of the student's Gaussian from the teacher's."""
        _check_outputs(outputs, goal)
        mean, variance = gaussian(outputs)
        center, spread = goal.reshape(len(outputs), -1).chunk(2, -1)
        each = (variance / spread).log() + (spread + (mean - center).square()) / variance - 1
        return 0.5 * each.flatten(1).mean(1)

    return lesson


_TAUGHT = {"classification": _probabilities, "regression": _numbers, "gaussian": _moments}
_AVERAGED = {
    "classification": lambda answers: answers.mean(0),
    "regression": lambda answers: answers.mean(0),
    "gaussian": _mixture,
}
_LESSONS = {
    "classification": _soft_cross_entropy,
    "regression": _squared_error,
    "gaussian": _gaussian_divergence,
}
