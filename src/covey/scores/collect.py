"""Runs an ensemble over held-out data and keeps what its members answer."""

from __future__ import annotations

import torch
from torch import Tensor

from covey.combine import Prediction, Regression, answer
from covey.data.container import Normalisation, Split
from covey.errors import EvaluationError
from covey.networks.calls import arguments
from covey.tensors import moved

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
        if task == "regression":
            return _regression_record(model, data, batch_size)
        return _classification_record(model, data, task, batch_size, corruptions)


def pixels(images: Tensor) -> Tensor:
    """Images as float in [0, 1] if they were uint8, else as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _task(model: EvaluatedModel, data: HeldOut) -> str:
    """The task that the data name, else the ensemble's, else classification."""
    if model.task is None:
        return data.task or "classification"
    models_task = "regression" if model.task == "gaussian" else model.task
    task = data.task or models_task
    if (task == "regression") != (models_task == "regression"):
        raise EvaluationError(
            f"the data are for {task}, but the ensemble's task is {model.task!r}: set it in covey.convert"
        )
    return task


def _classification_record(
    model: EvaluatedModel, data: HeldOut, task: str, batch_size: int, corruptions: int
) -> Record:
    def logits(part: Split) -> tuple[Tensor, Tensor]:
        """(M, N, C), where each position of a text or an image is a sample of its own, and labels (N,)."""
        outputs, targets = _outputs(model, data, part, batch_size)
        found = answer(outputs, "classification", model.class_dim)
        assert isinstance(found, Prediction)
        return found.logits.flatten(1, -2), _labels(targets)

    validation = None if data.validation is None else logits(data.validation)
    ood = {}
    for name, part in data.ood.items():
        ood[name] = logits(part)[0]
    corrupted = {}
    if corruptions:
        if data.images is None:
            raise EvaluationError("corruptions: expected test images in memory, one tensor (N, C, H, W)")
        for name, images in corrupted_sets(pixels(data.images[:corruptions])):
            corrupted[name] = logits(Split(images, torch.zeros(len(images), dtype=torch.long)))[0]
    outputs, labels = logits(data.test)
    return Record(
        outputs=outputs,
        targets=labels,
        task=task,
        validation=validation,
        ood=ood,
        corrupted=corrupted,
        classes=data.classes,
    )


def _regression_record(model: EvaluatedModel, data: HeldOut, batch_size: int) -> Record:
    outputs, answers = _outputs(model, data, data.test, batch_size)
    found = answer(outputs, model.task or "regression", model.class_dim)
    assert isinstance(found, Regression)
    mean = _one_axis_of_outputs(found.member_mean)
    targets = answers.float().cpu()
    if targets.numel() == mean[0].numel():  # else `Record` says which shape it expected
        targets = targets.reshape(mean.shape[1:])
    variance = found.member_variance
    if variance is not None:
        variance = variance.reshape(mean.shape)
    if data.target_unit is None:
        return Record(outputs=mean, targets=targets, task="regression", variance=variance)
    return _in_own_unit(mean, targets, variance, data.target_unit)


def _in_own_unit(mean: Tensor, targets: Tensor, variance: Tensor | None, unit: Normalisation) -> Record:
    """Scores are given in the targets' own unit where the data standardised them."""
    if variance is not None:
        variance = variance * unit.std[0] ** 2
    return Record(
        outputs=unit.restore(mean), targets=unit.restore(targets), task="regression", variance=variance
    )


def _outputs(model: EvaluatedModel, data: HeldOut, part: Split, batch_size: int) -> tuple[Tensor, Tensor]:
    """Members' outputs on all inputs, (M, N, ...), as float32 on the CPU, and the targets, (N, ...)."""
    device = model.device
    found, answers = [], []
    for inputs, targets in data.batches(part, batch_size):
        args, kwargs = arguments(moved(inputs, device))
        outputs = model.outputs(*args, **kwargs)
        found.append(outputs.float().cpu())
        answers.append(targets)
    if not found:
        raise EvaluationError("no samples to evaluate on, the set is empty")
    return torch.cat(found, 1), torch.cat(answers)


def _labels(targets: Tensor) -> Tensor:
    """Labels (N,) as int64. Floats stay what they are, for `Record` to refuse: half a class is a mistake."""
    flat = targets.flatten().cpu()
    if flat.is_floating_point() or flat.is_complex():
        return flat
    return flat.long()


def _one_axis_of_outputs(mean: Tensor) -> Tensor:
    """(M, N) or (M, N, ...) as (M, N, D)."""
    return mean[..., None] if mean.ndim == 2 else mean.flatten(2)
