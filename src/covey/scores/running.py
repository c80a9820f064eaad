"""`evaluate`: everything the papers measure, from members' outputs that are stored first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from covey.calibration import Conformal, Temperature
from covey.combine import MultiLabel, Prediction
from covey.data import Data
from covey.errors import EvaluationError
from covey.locks import locked
from covey.quantiles import KIND, Quantiles, kind_of

from . import (
    calibration,
    metrics,
    multilabel,
    ood,
    robustness,
    segmentation,
    selective,
)
from .calibration import LEAST_FOR_CONFORMAL
from .classes import class_scores
from .collect import collect, uncertainty_maps
from .diversity import diversity_scores
from .evaluation import CRITERION, OUTPUTS_FILE, Evaluation, about
from .examples import Shown, examples
from .held_out import held_out
from .model import evaluated_model
from .numbers_scored import score_quantiles, score_regression
from .record import Record
from .robustness import Corruptions

HISTOGRAM_BINS = 30

Predictions = Mapping[str, Prediction]


def evaluate(
    ensemble: nn.Module,
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    validation: Any = None,
    task: Literal["classification", "language", "regression", "gaussian", "segmentation", "multilabel"]
    | Quantiles
    | None = None,
    batch_size: int = 256,
    limit: int | None = None,
    ignore_index: int | None = None,
    corruptions: int = 0,
    corrupted: str | Path | None = None,
    folder: str | Path | None = None,
    half: bool = False,
) -> Evaluation:
    """Score an ensemble, or a plain network, on test data.

    Args:
        ensemble: what `convert`, `fit` or `load` gave, or any network.
        data: what `covey.fit` takes: a pair (inputs, targets), a torch Dataset, IterableDataset or DataLoader, a
            Hugging Face dataset; or what has a test part: a data set of covey, its name, a dict of parts. Data sets
            and loaders are read batch by batch.
        ood: more sets of out-of-distribution inputs by name: tensors, arrays, data sets or loaders.
        validation: data for calibration, as `data`; by default the data's own validation split.
        task: what is predicted, where neither the data nor the ensemble says; "classification" by default. For a plain
            network that answers with quantiles, these; for one that answers with means and raw variances, "gaussian".
        batch_size: samples in a batch.
        limit: use at most this many samples of each set, the first ones.
        ignore_index: the label of samples, or of positions in them, that do not count, such as -100, as in `Recipe`.
            None: all count, but 255 in segmentation.
        corruptions: how many test images, the first ones, to corrupt in 75 ways and score too; 0 for none.
        corrupted: a folder of published files, CIFAR-10-C or CIFAR-100-C: their images are scored in place of ones
            corrupted here, all of them if `corruptions` does not say how many.
        folder: where to store members' outputs (before any score is computed) and the scores.
        half: store the outputs as float16.
    """
    model = evaluated_model(ensemble)
    if isinstance(task, Quantiles) or task == "gaussian":
        if model.task not in (None, str(task)):
            raise EvaluationError(
                f"task is {task}, and the ensemble's own is {model.task!r}; leave task= out."
            )
        model, task = replace(model, task=str(task)), "regression"
    sets = held_out(data, ood=ood, validation=validation, task=task, limit=limit, ignore_index=ignore_index)
    with nullcontext() if folder is None else locked(folder):
        published = None if corrupted is None else Path(corrupted)
        record = collect(model, sets, batch_size=batch_size, corruptions=Corruptions(corruptions, published))
        if folder is not None:
            record.save(Path(folder) / OUTPUTS_FILE, half=half)
        result = score(
            record,
            inputs=sets.images
            if ignore_index is None
            else None,  # whose order is no longer that of the labels
            ood=sets.ood_inputs,
            columns=_column_names(data),
            stored=model.temperature,
        )
        if record.task == "segmentation":
            result = replace(result, examples=uncertainty_maps(model, sets, batch_size))
        if folder is not None:
            result.save(folder, half=half)
    return result


def _column_names(data: Any) -> list[str]:
    """The names of a table's columns, where covey's own record of the data knows them."""
    if not isinstance(data, Data):
        return []
    return [str(column["name"]) for column in data.record.get("columns", [])]


def score(
    record: Record,
    *,
    inputs: Tensor | None = None,
    ood: Mapping[str, Tensor] | None = None,
    columns: Sequence[str] = (),
    stored: Temperature | None = None,
) -> Evaluation:
    """All scores from members' outputs, without the network.

    Args:
        record: the outputs.
        inputs: the test inputs, to show some of them if they are images or rows of a table.
        ood: the out-of-distribution inputs, likewise.
        columns: the names of a table's columns.
        stored: a temperature that the ensemble already has, scored beside those fitted here.
    """
    shown = Shown(inputs, ood or {}, columns)
    return SCORERS[kind_of(record.task)](record, shown, stored)


def _score_classes(record: Record, shown: Shown, stored: Temperature | None) -> Evaluation:
    prediction = Prediction(record.outputs)
    labels = record.targets
    outside = {}
    for name, outputs in record.ood.items():
        outside[name] = Prediction(outputs)
    fitted = _fit_calibrations(record)
    scores = _classification_scores(record, prediction, outside)
    scores["calibration"] = _calibration_scores(record, prediction, fitted, stored)
    return Evaluation(
        scores=scores,
        curves=_curves(prediction, labels, outside),
        about=about(record),
        notes=_notes(record, scores),
        examples=examples(prediction, labels, outside, shown),
        calibration=fitted,
        record=record,
    )


def _classification_scores(record: Record, prediction: Prediction, outside: Predictions) -> dict[str, Any]:
    labels = record.targets
    is_text = record.task == "language"
    scores: dict[str, Any] = metrics.classification_scores(prediction, labels, language=is_text)
    scores["selective"] = selective.selective_scores(prediction.max_prob, prediction.label == labels)
    scores["diversity"] = diversity_scores(prediction, labels, outside)
    if not is_text:
        scores |= class_scores(prediction.label, labels, prediction.logits.shape[-1])
    if outside:
        scores["ood"] = ood.ood_scores(prediction, outside)
    if record.corrupted:
        scores["robustness"] = robustness.robustness_scores(record.corrupted, labels)
    return scores


def _score_pixels(record: Record, shown: Shown, stored: Temperature | None) -> Evaluation:
    """A class for each pixel: the scores of a classification of pixels, and how well regions are covered."""
    # No pixel is shown as an example: it is its image that a reader wants, which `evaluate` draws.
    found = _score_classes(record, Shown(), stored)
    segmentation.add_iou(found.scores, Prediction(record.outputs), record.targets)
    return found


def _score_labels(record: Record, shown: Shown, stored: Temperature | None) -> Evaluation:
    """Several labels may be true."""
    prediction = MultiLabel(record.outputs)
    scores = multilabel.multilabel_scores(prediction, record.targets)
    curves = {"reliability": multilabel.reliability(prediction.probs, record.targets)}
    notes = []
    lonely = [k for k, value in enumerate(scores["per_label"]["auroc"]) if value is None]
    if lonely:
        named = ", ".join(map(str, lonely[:5])) + (" ..." if lonely[5:] else "")
        notes.append(f"Labels that are always or never true have no AUROC and average precision: {named}.")
    if record.members == 1:
        notes.append("One member: disagreement is not defined, mutual information is 0.")
    return Evaluation(scores, curves, about(record), tuple(notes), record=record)


SCORERS: dict[str, Callable[[Record, Shown, Temperature | None], Evaluation]] = {
    "classification": _score_classes,
    "language": _score_classes,
    "segmentation": _score_pixels,
    "multilabel": _score_labels,
    "regression": score_regression,
    KIND: score_quantiles,
}
"""How each task is scored."""


def _fit_calibrations(record: Record) -> dict[str, Temperature | Conformal]:
    """Temperatures and conformal sets by name, fitted on the validation outputs if there are some."""
    fitted: dict[str, Temperature | Conformal] = {}
    if record.validation is None:
        return fitted
    logits, labels = record.validation
    for kind in ("pooled", "members"):
        fitted[kind] = calibration.fit_temperature(logits, labels, kind=kind)
    # Pixels of one image depend on each other, so for them conformal sets would promise what they do not hold.
    if len(labels) >= LEAST_FOR_CONFORMAL and record.task != "segmentation":
        probs = Prediction(logits).probs
        for kind in ("threshold", "aps"):
            fitted[kind] = calibration.fit_conformal(probs, labels, kind=kind)
    return fitted


def _calibration_scores(
    record: Record,
    prediction: Prediction,
    fitted: Mapping[str, Temperature | Conformal],
    stored: Temperature | None,
) -> dict[str, Any]:
    """What each calibration, and the one that the ensemble already has, does to the test scores."""
    labels = record.targets
    scores: dict[str, Any] = {}
    if stored is not None:
        scores["stored"] = _scores_at(stored, record)
    for name, found in fitted.items():
        if isinstance(found, Temperature):
            scores[name] = _scores_at(found, record)
            scores[name]["temperatures"] = list(found.values)
        else:
            scores[name] = calibration.conformal_scores(found, prediction.probs, labels)
    return scores


def _scores_at(temperature: Temperature, record: Record) -> dict[str, Any]:
    calibrated = Prediction(temperature.apply(record.outputs))
    return metrics.answer_scores(calibrated.log_probs, record.targets)


def _curves(prediction: Prediction, labels: Tensor, outside: Predictions) -> dict[str, Any]:
    correct = prediction.label == labels
    curves: dict[str, Any] = {
        "reliability": metrics.reliability(prediction.log_probs, labels),
        "risk_coverage": selective.thinned(prediction.max_prob, correct),
    }
    if not outside:
        return curves
    criterion = ood.CRITERIA[CRITERION]
    inside = criterion(prediction)
    highest = math.log(prediction.logits.shape[-1])  # the entropy of equal probabilities
    shares = {"test": _histogram(inside, highest)}
    roc = {}
    for name, found in outside.items():
        values = criterion(found)
        shares[name] = _histogram(values, highest)
        roc[name] = ood.roc(inside, values)
    edges = torch.linspace(0, highest, HISTOGRAM_BINS + 1).tolist()
    curves["histogram"] = {"criterion": CRITERION, "edges": edges, "share": shares}
    curves["roc"] = roc
    return curves


def _histogram(values: Tensor, highest: float) -> list[float]:
    """Shares of the samples in bins of equal width from 0 to `highest`."""
    counts = torch.histc(values.clamp(0, highest), bins=HISTOGRAM_BINS, min=0, max=highest)
    return (counts / len(values)).tolist()


def _notes(record: Record, scores: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if record.members == 1:
        notes.append(
            "One member: disagreement and error correlation are not defined, mutual information is 0."
        )
    elif scores["diversity"]["normalised_disagreement"] is None:
        notes.append(
            "A member makes no error on the test set, so disagreement over its error is not defined."
        )
    samples = record.outputs.shape[1]
    if samples < metrics.BINS:
        notes.append(
            f"{samples} samples are fewer than the {metrics.BINS} bins: calibration errors are not defined."
        )
    if len(record.targets.unique()) == 1:
        notes.append(
            f"All test labels are class {int(record.targets[0])}: scores say nothing of the other classes."
        )
    if record.validation is None:
        notes.append("No validation data, so no temperature or conformal sets were fitted.")
    elif record.task == "segmentation":
        notes.append("Pixels of one image depend on each other: no conformal sets were fitted.")
    elif len(record.validation[1]) < LEAST_FOR_CONFORMAL:
        notes.append(f"Fewer than {LEAST_FOR_CONFORMAL} validation samples: no conformal sets at 90 %.")
    return tuple(notes)
