"""Runs an ensemble over held-out data and keeps what its members answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from covey.combine import MultiLabel, Prediction, Regression, answer
from covey.data.container import IGNORED
from covey.errors import EvaluationError

from . import segmentation
from .examples import pixels
from .held_out import HeldOut
from .model import EvaluatedModel
from .record import Record
from .robustness import corrupted_sets


def collect(model: EvaluatedModel, data: HeldOut, *, batch_size: int = 256, corruptions: int = 0) -> Record:
    """Members' outputs on the test, validation, out-of-distribution and corrupted inputs.

    They are the members' own, before any temperature of the ensemble: that is scored from them afterwards.

    Args:
        model: what answers.
        data: what it is asked.
        batch_size: samples in a batch.
        corruptions: how many test images, the first ones, to corrupt in 75 ways and run too; 0 for none.
    """
    if batch_size < 1:
        raise EvaluationError(f"batch_size: expected 1 or more, got {batch_size}")
    task = _task(model, data)
    with model.evaluating(), torch.no_grad():
        return RECORDS[task](model, data, batch_size, corruptions)


ANSWERED: dict[str, str] = {
    "classification": "classification",
    "language": "classification",
    "segmentation": "classification",
    "multilabel": "multilabel",
    "regression": "regression",
    "gaussian": "regression",
}
"""What kind of answer each task of data or of ensembles needs."""


def _task(model: EvaluatedModel, data: HeldOut) -> str:
    """The task that the data name, else the one that the ensemble and the shape of the targets tell."""
    answered = ANSWERED[model.task or data.task or "classification"]
    task = data.task or answered
    if ANSWERED[task] != answered:
        raise EvaluationError(
            f"the data are for {task}, but the ensemble's task is {model.task!r}: set it in covey.convert"
        )
    if data.task is None and task == "classification" and data.inputs.ndim == 4 and data.targets.ndim == 3:
        return "segmentation"
    return task


def _classification_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: int, task: str = "classification"
) -> Record:
    """Outputs for each sample; a text's positions are samples of their own."""

    def logits(inputs: Tensor) -> Tensor:
        return _logits(model, data, inputs, batch_size).flatten(1, -2)

    validation = None
    if data.validation is not None:
        validation_inputs, validation_targets = data.validation
        validation = logits(validation_inputs), _labels(validation_targets)
    ood = {}
    for name, inputs in data.ood.items():
        ood[name] = logits(inputs)
    corrupted = {}
    if corruptions:
        for name, images in corrupted_sets(pixels(data.inputs[:corruptions])):
            corrupted[name] = logits(images)
    return Record(
        outputs=logits(data.inputs),
        targets=_labels(data.targets),
        task=task,
        validation=validation,
        ood=ood,
        corrupted=corrupted,
        classes=data.classes,
    )


def _language_record(model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: int) -> Record:
    return _classification_record(model, data, batch_size, corruptions, "language")


def _segmentation_record(model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: int) -> Record:
    """Outputs for each pixel that counts."""

    def counted(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(M, P, C) and (P,) of the pixels that count."""
        found, labels = _logits(model, data, inputs, batch_size), _labels(targets)
        if found.shape[1:-1] != targets.shape:
            raise EvaluationError(
                f"the network answers for pixels of shape {tuple(found.shape[1:-1])}, and the targets have shape "
                f"{tuple(targets.shape)}: a segmentation needs a class for each pixel"
            )
        counts = labels != IGNORED
        if not counts.any():
            raise EvaluationError(f"every pixel has the class {IGNORED}, which does not count")
        return found.flatten(1, -2)[:, counts], labels[counts]

    validation = None if data.validation is None else counted(*data.validation)
    ood = {}
    for name, inputs in data.ood.items():
        ood[name] = _logits(model, data, inputs, batch_size).flatten(1, -2)
    corrupted = {}
    if corruptions:
        for name, images in corrupted_sets(pixels(data.inputs[:corruptions])):
            corrupted[name], _ = counted(images, data.targets[:corruptions])
    outputs, labels = counted(data.inputs, data.targets)
    return Record(
        outputs=outputs,
        targets=labels,
        task="segmentation",
        validation=validation,
        ood=ood,
        corrupted=corrupted,
        classes=data.classes,
    )


def uncertainty_maps(model: EvaluatedModel, data: HeldOut, batch_size: int) -> tuple[dict[str, Any], ...]:
    """Some test images of a segmentation with the answer and its uncertainty, for the report."""
    images, labels = data.inputs[: segmentation.LOOKED_AT], data.targets[: segmentation.LOOKED_AT]
    with model.evaluating(), torch.no_grad():
        logits = _logits(model, data, images, batch_size)
    return tuple(segmentation.uncertainty_maps(logits, labels.cpu(), images.cpu()))


def _multilabel_record(model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: int) -> Record:
    """Outputs for each label of each sample."""
    outputs = _outputs(model, data, data.inputs, batch_size)
    found = answer(outputs, "multilabel", model.class_dim)
    assert isinstance(found, MultiLabel)
    logits, targets = found.logits, data.targets.cpu()
    if logits.ndim > 3:  # a position of a text or an image is a sample of its own
        logits, targets = logits.flatten(1, -2), targets.flatten(0, -2)
    return Record(outputs=logits, targets=targets, task="multilabel", classes=data.classes)


def _regression_record(model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: int) -> Record:
    mean, variance, targets = _numbers(model, data, (data.inputs, data.targets), batch_size)
    validation = validation_variance = None
    if data.validation is not None:
        known, validation_variance, known_targets = _numbers(model, data, data.validation, batch_size)
        validation = known, known_targets
    return Record(
        outputs=mean,
        targets=targets,
        task="regression",
        variance=variance,
        validation=validation,
        validation_variance=validation_variance,
    )


def _numbers(
    model: EvaluatedModel, data: HeldOut, pair: tuple[Tensor, Tensor], batch_size: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Members' means and variances (M, N, D), and the targets (N, D), in the targets' own unit."""
    inputs, targets = pair
    found = answer(_outputs(model, data, inputs, batch_size), model.task or "regression", model.class_dim)
    assert isinstance(found, Regression)
    mean = _one_axis_of_outputs(found.member_mean)
    targets = targets.float().cpu()
    if targets.numel() == mean[0].numel():  # else `Record` says which shape it expected
        targets = targets.reshape(mean.shape[1:])
    variance = found.member_variance
    if variance is not None:
        variance = variance.reshape(mean.shape)
    unit = data.target_unit
    if unit is None:
        return mean, variance, targets
    if variance is not None:
        variance = variance * unit.scale(variance).square()
    return unit.restore(mean), variance, unit.restore(targets)


RECORDS: dict[str, Callable[[EvaluatedModel, HeldOut, int, int], Record]] = {
    "classification": _classification_record,
    "language": _language_record,
    "segmentation": _segmentation_record,
    "multilabel": _multilabel_record,
    "regression": _regression_record,
}
"""How the outputs of each task are collected."""


def _logits(model: EvaluatedModel, data: HeldOut, inputs: Tensor, batch_size: int) -> Tensor:
    """Members' logits with the class axis last, (M, N, ..., C)."""
    found = answer(_outputs(model, data, inputs, batch_size), "classification", model.class_dim)
    assert isinstance(found, Prediction)
    return found.logits


def _outputs(model: EvaluatedModel, data: HeldOut, inputs: Tensor, batch_size: int) -> Tensor:
    """Members' outputs on all inputs, (M, N, ...), as float32 on the CPU."""
    device = model.device
    found = []
    for batch in inputs.split(batch_size):
        outputs = model.outputs(data.prepare(batch).to(device))
        found.append(outputs.float().cpu())
    return torch.cat(found, 1)


def _labels(targets: Tensor) -> Tensor:
    """Labels (N,) as int64. Floats stay what they are, for `Record` to refuse: half a class is a mistake."""
    flat = targets.flatten().cpu()
    if flat.is_floating_point() or flat.is_complex():
        return flat
    return flat.long()


def _one_axis_of_outputs(mean: Tensor) -> Tensor:
    """(M, N) or (M, N, ...) as (M, N, D)."""
    return mean[..., None] if mean.ndim == 2 else mean.flatten(2)
