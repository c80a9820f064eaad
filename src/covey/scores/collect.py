"""Runs an ensemble over data and keeps what its members answer."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.combine import Prediction, Regression
from covey.errors import EvaluationError

from .record import Record
from .robustness import corrupted_sets

Pair = tuple[Tensor, Tensor]
Prepare = Callable[[Tensor], Tensor]


def collect(
    ensemble: nn.Module,
    data: Any,
    *,
    ood: Mapping[str, Tensor] | None = None,
    validation: Pair | None = None,
    batch_size: int = 256,
    limit: int | None = None,
    corruptions: int = 0,
) -> Record:
    """Members' outputs on the test, validation, OOD and corrupted inputs; arguments as in `evaluate`."""
    if batch_size < 1:
        raise EvaluationError(f"batch_size: expected 1 or more, got {batch_size}")
    inputs, targets = test_pair(data)
    inputs, targets = inputs[:limit], targets[:limit]
    ood = {**getattr(data, "ood", {}), **(ood or {})}
    for name, strange in ood.items():
        if not len(strange):
            raise EvaluationError(f"the OOD set {name!r} is empty: leave it out or give samples")
    task = task_of(ensemble, data)
    prepare: Prepare = getattr(data, "prepare", lambda batch: batch)

    def run(samples: Tensor) -> Prediction | Regression:
        return _run(ensemble, samples, prepare, batch_size, regression=task == "regression")

    with _uncalibrated(ensemble):
        answer = run(inputs)
        if isinstance(answer, Regression):
            return _regression_record(answer, targets, getattr(data, "target_normalisation", None))
        held_back = _validation_pair(data, validation)
        return Record(
            outputs=_flat(answer),
            targets=targets.flatten().long(),
            task=task,
            validation=None
            if held_back is None
            else (_flat(run(held_back[0][:limit])), held_back[1][:limit].flatten().long()),
            ood={name: _flat(run(strange[:limit])) for name, strange in ood.items()},
            corrupted={
                name: _flat(run(images))
                for name, images in (corrupted_sets(pixels(inputs[:corruptions])) if corruptions else ())
            },
            classes=tuple(map(str, getattr(data, "classes", ()))),
        )


def test_pair(data: Any) -> Pair:
    """The test inputs (N, ...) and targets (N, ...) of a data set or of a pair of tensors."""
    return _pair(getattr(data, "test", data), "data")


def task_of(ensemble: nn.Module, data: Any) -> str:
    """The task that the data name, else the ensemble, else classification."""
    for source in (data, getattr(ensemble, "about", None), ensemble):
        task = getattr(source, "task", None)
        if task is not None:
            return "regression" if task == "gaussian" else str(task)
    return "classification"


def pixels(images: Tensor) -> Tensor:
    """Images as float in [0, 1] if they were uint8, else as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def example_pictures(inputs: Tensor, indices: list[int]) -> list[str | None]:
    """Some inputs as PNG data URIs, None where inputs are no images (N, 1 or 3, H, W)."""
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or max(inputs.shape[2:]) > 256:
        return [None] * len(indices)
    chosen = pixels(inputs[indices]).float()
    low, high = chosen.min(), chosen.max()
    if low < 0 or high > 1:
        # Normalised inputs: the true range is not known here, so stretch what there is.
        chosen = (chosen - low) / (high - low)
    return [_png((image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()) for image in chosen]


def _png(pixel: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixel[..., 0] if pixel.shape[-1] == 1 else pixel).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _run(
    ensemble: nn.Module, inputs: Tensor, prepare: Prepare, batch_size: int, *, regression: bool
) -> Prediction | Regression:
    if not len(inputs):
        raise EvaluationError("no samples to evaluate on: the set is empty")
    device = next((p.device for p in ensemble.parameters()), torch.device("cpu"))
    answers = []
    for start in range(0, len(inputs), batch_size):
        answer = _predict(ensemble, prepare(inputs[start : start + batch_size]).to(device), regression)
        answers.append(answer)
    first = answers[0]
    if isinstance(first, Prediction):
        return Prediction(torch.cat([a.logits.float().cpu() for a in answers], 1))
    variance = None
    if first.member_variance is not None:
        variance = torch.cat([a.member_variance.float().cpu() for a in answers], 1)
    return Regression(torch.cat([a.member_mean.float().cpu() for a in answers], 1), variance)


@torch.no_grad()
def _predict(ensemble: Any, batch: Tensor, regression: bool) -> Any:
    if hasattr(ensemble, "predict"):
        return ensemble.predict(batch)
    # A plain network counts as an ensemble of one.
    training = ensemble.training
    ensemble.eval()
    try:
        outputs = ensemble(batch)[None]
    finally:
        ensemble.train(training)
    return Regression(outputs) if regression else Prediction(outputs)


@contextmanager
def _uncalibrated(ensemble: Any) -> Iterator[None]:
    """Members' own logits are what is stored; the ensemble's temperature is scored from them afterwards."""
    temperature = getattr(ensemble, "temperature", None)
    if temperature is None:
        yield
        return
    ensemble.temperature = None
    try:
        yield
    finally:
        ensemble.temperature = temperature


def _flat(answer: Any) -> Tensor:
    """(M, B, ..., C) as (M, N, C)."""
    return answer.logits.flatten(1, -2)


def _regression_record(answer: Regression, targets: Tensor, unit: Any) -> Record:
    """In the targets' own unit where the data standardised them."""
    mean, variance = answer.member_mean.flatten(2), answer.member_variance
    if mean.ndim == 2:
        mean = mean[..., None]
    targets = targets.float().reshape(mean.shape[1:])
    variance = None if variance is None else variance.reshape(mean.shape)
    if unit is not None:
        std, shift = float(unit.std[0]), float(unit.mean[0])
        mean, targets = mean * std + shift, targets * std + shift
        variance = None if variance is None else variance * std**2
    return Record(outputs=mean, targets=targets, task="regression", variance=variance)


def _pair(value: Any, what: str) -> Pair:
    if hasattr(value, "inputs") and hasattr(value, "targets"):
        value = (value.inputs, value.targets)
    if not (
        isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(t, Tensor) for t in value)
    ):
        raise EvaluationError(
            f"{what}: expected a data set with a test split, or a pair of tensors (inputs, targets), "
            f"got {type(value).__name__}"
        )
    inputs, targets = value
    if len(inputs) != len(targets):
        raise EvaluationError(f"{what}: {len(inputs)} inputs but {len(targets)} targets")
    return inputs, targets


def _validation_pair(data: Any, given: Pair | None) -> Pair | None:
    if given is not None:
        return _pair(given, "validation")
    own = getattr(data, "validation", None)
    if own is None:
        return None
    pair = _pair(own, "validation")
    return pair if len(pair[0]) else None
