"""Runs an ensemble over held-out data and keeps what its members answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from covey.combine import MultiLabel, Prediction, Regression, answer
from covey.data.container import IGNORED, Split
from covey.errors import EvaluationError
from covey.networks.calls import arguments, inputs_explained
from covey.networks.language import check_not_copied
from covey.quantiles import KIND, QuantileAnswer, kind_of
from covey.tensors import moved

from . import segmentation
from .answered import without_ignored
from .examples import pixels
from .held_out import HeldOut
from .model import EvaluatedModel
from .record import Record
from .robustness import Corruptions


def collect(
    model: EvaluatedModel, data: HeldOut, *, batch_size: int = 256, corruptions: Corruptions | None = None
) -> Record:
    """Members' outputs on the test, validation, out-of-distribution and corrupted inputs.

    They are the members' own, before any temperature of the ensemble: that is scored from them afterwards.

    Args:
        model: what answers.
        data: what it is asked.
        batch_size: samples in a batch.
        corruptions: which corrupted test images to run too; none by default.
    """
    if batch_size < 1:
        raise EvaluationError(f"batch_size: expected 1 or more, got {batch_size}")
    task = _task(model, data)
    corruptions = corruptions or Corruptions()
    _check_corruptions(corruptions, task, data)
    if data.ignore_index is not None and ANSWERED[task] != "classification":
        raise EvaluationError(f"ignore_index names a class, and the data are for {task}; leave it out")
    with model.evaluating(), torch.no_grad():
        return RECORDS[task](model, data, batch_size, corruptions)


def _check_corruptions(corruptions: Corruptions, task: str, data: HeldOut) -> None:
    """Refuse to corrupt what is no image, or has no classes to score."""
    if corruptions.count < 0:
        raise EvaluationError(f"corruptions: expected 0 or more test images, got {corruptions.count}")
    if not corruptions.asked:
        return
    if corruptions.folder is not None and task != "classification":
        raise EvaluationError(f"published corruptions have a class for each image; these data are for {task}")
    if task not in ("classification", "segmentation"):
        raise EvaluationError(f"corruptions are scored for images with classes; these data are for {task}")
    if task == "classification" and data.ignore_index is not None:
        raise EvaluationError("corruptions are scored on all test images: leave ignore_index out")
    if data.images is None or data.images.ndim != 4 or data.images.shape[1] not in (1, 3):
        raise EvaluationError(
            "corruptions: expected test images in memory, one tensor (N, 1 or 3, H, W); these inputs are none"
        )
    corruptions.check(pixels(data.images), data.test.targets)


ANSWERED: dict[str, str] = {
    "classification": "classification",
    "language": "classification",
    "segmentation": "classification",
    "multilabel": "multilabel",
    "regression": "regression",
    "gaussian": "regression",
    KIND: "regression",
}
"""What kind of answer each task of data or of ensembles needs."""


def _task(model: EvaluatedModel, data: HeldOut) -> str:
    """The task that the data name, else the one that the ensemble and the shape of the targets tell."""
    own = kind_of(model.task or data.task or "classification")
    answered = ANSWERED[own]
    task = data.task or answered
    if ANSWERED[task] != answered:
        raise EvaluationError(
            f"the data are for {task}, but the ensemble's task is {model.task!r}: set it in covey.convert"
        )
    images = data.images
    with_pixels = images is not None and images.ndim == 4 and data.test.targets.ndim == 3
    if data.task is None and task == "classification" and with_pixels:
        return "segmentation"
    return KIND if own == KIND else task


def _classification_record(
    model: EvaluatedModel,
    data: HeldOut,
    batch_size: int,
    corruptions: Corruptions,
    task: str = "classification",
) -> Record:
    """Outputs for each sample; a text's positions are samples of their own."""

    def logits(part: Split) -> tuple[Tensor, Tensor]:
        """(M, N, C) and labels (N,)."""
        found, targets = _logits(model, data, part, batch_size)
        return found.flatten(1, -2), _labels(targets)

    def counted(part: Split) -> tuple[Tensor, Tensor]:
        """The same without what does not count."""
        return without_ignored(*logits(part), data.ignore_index)

    validation = None if data.validation is None else counted(data.validation)
    ood = {}
    for name, part in data.ood.items():
        ood[name] = logits(part)[0]
    corrupted = {}
    if corruptions.asked:
        for name, images in corruptions.sets(pixels(_images(data)), data.test.targets):
            corrupted[name] = logits(Split(images, torch.zeros(len(images), dtype=torch.long)))[0]
    outputs, labels = counted(data.test)
    return Record(
        outputs=outputs,
        targets=labels,
        task=task,
        validation=validation,
        ood=ood,
        corrupted=corrupted,
        classes=data.classes,
    )


def _language_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: Corruptions
) -> Record:
    return _classification_record(model, data, batch_size, corruptions, "language")


def _segmentation_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: Corruptions
) -> Record:
    """Outputs for each pixel that counts."""

    def counted(part: Split) -> tuple[Tensor, Tensor]:
        """(M, P, C) and (P,) of the pixels that count."""
        found, targets = _logits(model, data, part, batch_size)
        if found.shape[1:-1] != targets.shape:
            raise EvaluationError(
                f"the network answers for pixels of shape {tuple(found.shape[1:-1])}, and the targets have shape "
                f"{tuple(targets.shape)}: a segmentation needs a class for each pixel"
            )
        ignored = IGNORED if data.ignore_index is None else data.ignore_index
        return without_ignored(found.flatten(1, -2), _labels(targets), ignored)

    validation = None if data.validation is None else counted(data.validation)
    ood = {}
    for name, part in data.ood.items():
        ood[name] = _logits(model, data, part, batch_size)[0].flatten(1, -2)
    corrupted = {}
    if corruptions.asked:
        targets = data.test.targets
        for name, images in corruptions.sets(pixels(_images(data)), targets):
            corrupted[name], _ = counted(Split(images, targets[: len(images)]))
    outputs, labels = counted(data.test)
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
    if data.images is None:
        return ()
    images = data.images[: segmentation.LOOKED_AT]
    looked_at = Split(images, data.test.targets[: len(images)])
    with model.evaluating(), torch.no_grad():
        logits, labels = _logits(model, data, looked_at, batch_size)
    return tuple(segmentation.uncertainty_maps(logits, labels.cpu(), images.cpu()))


def _multilabel_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: Corruptions
) -> Record:
    """Outputs for each label of each sample."""
    outputs, answers = _outputs(model, data, data.test, batch_size)
    found = answer(outputs, "multilabel", model.class_dim)
    assert isinstance(found, MultiLabel)
    logits, targets = found.logits, answers.cpu()
    if logits.ndim > 3:  # a position of a text or an image is a sample of its own
        logits, targets = logits.flatten(1, -2), targets.flatten(0, -2)
    return Record(outputs=logits, targets=targets, task="multilabel", classes=data.classes)


def _regression_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: Corruptions
) -> Record:
    mean, variance, targets = _numbers(model, data, data.test, batch_size)
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
    model: EvaluatedModel, data: HeldOut, part: Split, batch_size: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Members' means and variances (M, N, D), and the targets (N, D), in the targets' own unit."""
    outputs, answers = _outputs(model, data, part, batch_size)
    found = answer(outputs, model.task or "regression", model.class_dim)
    assert isinstance(found, Regression)
    mean = _one_axis_of_outputs(found.member_mean)
    targets = answers.float().cpu()
    if targets.numel() == mean[0].numel():  # else `Record` says which shape it expected
        targets = targets.reshape(mean.shape[1:])
    variance = found.member_variance
    if variance is not None:
        variance = variance.reshape(mean.shape)
    unit = data.target_unit
    if unit is None:
        return mean, variance, targets
    if variance is not None:
        variance = variance.double() * unit.scale(variance).square()
    return unit.restore(mean), variance, unit.restore(targets)


def _quantile_record(
    model: EvaluatedModel, data: HeldOut, batch_size: int, corruptions: Corruptions
) -> Record:
    """Quantiles of a number, or of several, for each sample."""

    def numbers(part: Split) -> tuple[Tensor, Tensor]:
        """Members' quantiles (M, N, Q) or (M, N, D Q) and the targets (N,) or (N, D), in the targets' own unit."""
        outputs, answers = _outputs(model, data, part, batch_size)
        found = answer(outputs, str(model.task))
        assert isinstance(found, QuantileAnswer)
        targets = answers.float().cpu()
        if targets.numel() == len(targets):  # else `Record` says which shape it expected
            targets = targets.flatten()
        members, unit = found.members, data.target_unit
        if unit is not None:
            with_targets_last = members.movedim(-1, 2)
            members, targets = unit.restore(with_targets_last).movedim(2, -1), unit.restore(targets)
        return members.flatten(2), targets

    outputs, targets = numbers(data.test)
    validation = None if data.validation is None else numbers(data.validation)
    return Record(outputs=outputs, targets=targets, task=str(model.task), validation=validation)


RECORDS: dict[str, Callable[[EvaluatedModel, HeldOut, int, Corruptions], Record]] = {
    "classification": _classification_record,
    "language": _language_record,
    "segmentation": _segmentation_record,
    "multilabel": _multilabel_record,
    "regression": _regression_record,
    KIND: _quantile_record,
}
"""How the outputs of each task are collected."""


def _logits(model: EvaluatedModel, data: HeldOut, part: Split, batch_size: int) -> tuple[Tensor, Tensor]:
    """Members' logits with the class axis last, (M, N, ..., C), and the targets, (N, ...)."""
    outputs, targets = _outputs(model, data, part, batch_size)
    found = answer(outputs, "classification", model.class_dim)
    assert isinstance(found, Prediction)
    return found.logits, targets


def _images(data: HeldOut) -> Tensor:
    """The test images, to be corrupted."""
    if data.images is None:
        raise EvaluationError("corruptions: expected test images in memory, one tensor (N, C, H, W)")
    return data.images


def _outputs(model: EvaluatedModel, data: HeldOut, part: Split, batch_size: int) -> tuple[Tensor, Tensor]:
    """Members' outputs on all inputs, (M, N, ...), as float32 on the CPU, and the targets, (N, ...)."""
    device = model.device
    found, answers = [], []
    for inputs, targets in data.batches(part, batch_size):
        args, kwargs = arguments(moved(inputs, device))
        check_not_copied(model.network, kwargs, moved(targets, device), data.ignore_index)
        with inputs_explained(inputs):
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
