"""`evaluate`: everything the papers measure, from members' outputs that are stored first."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.calibration import from_dict
from covey.combine import Prediction, Regression
from covey.errors import EvaluationError
from covey.files import write_text

from . import calibration as calibrations
from . import collect as collecting
from . import metrics, ood, regression, robustness, selective
from .diversity import diversity_scores
from .record import Record

FORMAT = 1
EXAMPLES = 8
CRITERION = "entropy"
"""The OOD criterion of the headline and the figures."""

OUTPUTS_FILE, SCORES_FILE = "outputs.npz", "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """Scores, curves for figures, and the outputs they came from.

    Args:
        scores: nested plain numbers: "ensemble", "member_mean", "members", "ood", "selective", "diversity",
            "robustness", "calibration". A score that is not defined is None, and a note says why.
        curves: what figures draw: "reliability", "risk_coverage", "roc", "histogram", or "intervals".
        about: task, members, samples, classes, OOD sets and versions.
        notes: what a reader must know.
        examples: the most and the least certain test samples.
        calibration: fitted on validation data, by name ("pooled", "members", "aps", ...),
            ready for `ensemble.temperature` or `ensemble.conformal`.
        record: members' outputs; None if this was read without them.
    """

    scores: dict[str, Any]
    curves: dict[str, Any]
    about: dict[str, Any]
    notes: tuple[str, ...] = ()
    examples: tuple[dict[str, Any], ...] = ()
    calibration: dict[str, Any] = field(default_factory=dict)
    record: Record | None = None

    @property
    def headline(self) -> dict[str, float | None]:
        """The scores of the report's table by their short names."""
        row = dict(self.scores["ensemble"])
        if "ood" in self.scores:
            mean = self.scores["ood"]["mean"][CRITERION]
            row |= {"auroc": mean["auroc"], "fpr95": mean["fpr95"]}
        row |= self.scores.get("selective", {})
        diversity = self.scores["diversity"]
        row |= {k: diversity[k] for k in ("disagreement", "error_correlation", "ambiguity") if k in diversity}
        robust = self.scores.get("robustness", {})
        row |= {k: robust[k] for k in ("mean_corruption_error", "mean_corruption_ece") if k in robust}
        return row

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON of all but the record."""
        return {
            "format": FORMAT,
            "scores": self.scores,
            "curves": self.curves,
            "about": self.about,
            "notes": list(self.notes),
            "examples": list(self.examples),
            "calibration": {name: fitted.to_dict() for name, fitted in self.calibration.items()},
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any], record: Record | None = None) -> Evaluation:
        """An evaluation from what `to_dict` gave."""
        if stored.get("format") != FORMAT:
            raise EvaluationError(f"evaluation of format {stored.get('format')!r}, this covey reads {FORMAT}")
        return Evaluation(
            scores=stored["scores"],
            curves=stored["curves"],
            about=stored["about"],
            notes=tuple(stored["notes"]),
            examples=tuple(stored["examples"]),
            calibration={name: from_dict(d) for name, d in stored["calibration"].items()},
            record=record,
        )

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write `evaluation.json`, and `outputs.npz` where the record is at hand."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.record is not None:
            self.record.save(folder / OUTPUTS_FILE, half=half)
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_text(folder / SCORES_FILE, text)

    @staticmethod
    def load(folder: str | Path, *, outputs: bool = True) -> Evaluation:
        """Read what `save` wrote; with `outputs=False` the scores alone, which is quick."""
        folder = Path(folder)
        try:
            stored = json.loads((folder / SCORES_FILE).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as problem:
            raise EvaluationError(f"{folder}: no readable {SCORES_FILE} ({problem})") from problem
        file = folder / OUTPUTS_FILE
        return Evaluation.from_dict(stored, Record.load(file) if outputs and file.exists() else None)


def evaluate(
    ensemble: nn.Module,
    data: Any,
    *,
    ood: Mapping[str, Tensor] | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    batch_size: int = 256,
    limit: int | None = None,
    corruptions: int = 0,
    folder: str | Path | None = None,
    half: bool = False,
) -> Evaluation:
    """Score an ensemble, or a plain network, on test data.

    Args:
        ensemble: what `convert`, `fit` or `load` gave, or any network.
        data: a data set of covey, or a pair of tensors, inputs (N, ...) and targets (N, ...).
        ood: more sets of inputs that are not like the training data, by name.
        validation: a pair of tensors for calibration; by default the data's own validation split.
        batch_size: samples run at once.
        limit: use the first so many samples of each set.
        corruptions: corrupt the first so many test images in 75 ways and score those too.
        folder: where to store members' outputs (before any score is computed) and the scores.
        half: store the outputs as float16.
    """
    record = collecting.collect(
        ensemble,
        data,
        ood=ood,
        validation=validation,
        batch_size=batch_size,
        limit=limit,
        corruptions=corruptions,
    )
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        record.save(Path(folder) / OUTPUTS_FILE, half=half)
    inputs = collecting.test_pair(data)[0][:limit]
    result = score(record, inputs=inputs, stored=getattr(ensemble, "temperature", None))
    if folder is not None:
        result.save(folder, half=half)
    return result


def score(record: Record, *, inputs: Tensor | None = None, stored: Any = None) -> Evaluation:
    """All scores from members' outputs, without the network.

    Args:
        record: the outputs.
        inputs: the test inputs, to show the most and the least certain ones if they are images.
        stored: a temperature that the ensemble already has, scored beside those fitted here.
    """
    about = _about(record)
    if record.task == "regression":
        return _score_regression(record, about)
    prediction, labels = Prediction(record.outputs), record.targets
    strange = {name: Prediction(outputs) for name, outputs in record.ood.items()}
    correct = prediction.label == labels
    scores: dict[str, Any] = metrics.classification_scores(
        prediction, labels, language=record.task == "language"
    )
    scores["selective"] = selective.selective_scores(prediction.max_prob, correct)
    scores["diversity"] = diversity_scores(prediction, labels, strange)
    if strange:
        scores["ood"] = ood.ood_scores(prediction, strange)
    if record.corrupted:
        scores["robustness"] = robustness.robustness_scores(record.corrupted, labels)
    fitted, scores["calibration"] = _calibrate(record, prediction, stored)
    curves: dict[str, Any] = {
        "reliability": metrics.reliability(prediction.log_probs, labels),
        "risk_coverage": selective.thinned(prediction.max_prob, correct),
    }
    if strange:
        curves |= _ood_curves(prediction, strange)
    return Evaluation(
        scores, curves, about, _notes(record, scores), _examples(prediction, labels, inputs), fitted, record
    )


def _score_regression(record: Record, about: dict[str, Any]) -> Evaluation:
    prediction = Regression(record.outputs, record.variance)
    scores = regression.regression_scores(prediction, record.targets)
    curves, notes = {}, []
    if scores["ensemble"]["gaussian_nll"] is None:
        notes.append(
            "Members give points without variances and agree somewhere (or there is one member), so "
            "likelihood and intervals are not defined."
        )
    else:
        curves["intervals"] = regression.interval_calibration(
            prediction.mean, prediction.variance, record.targets
        )
        if record.variance is None:
            notes.append("Members give no variance of their own; intervals come from their spread alone.")
    return Evaluation(scores, curves, about, tuple(notes), record=record)


def _calibrate(record: Record, prediction: Prediction, stored: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Calibrations fitted on the validation outputs, and what each does to the test scores."""
    labels = record.targets
    fitted: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    if stored is not None and hasattr(stored, "apply"):
        answer = Prediction(stored.apply(record.outputs))
        scores["stored"] = metrics.answer_scores(answer.log_probs, labels)
    if record.validation is None:
        return fitted, scores
    logits, targets = record.validation
    for kind in ("pooled", "members"):
        temperature = calibrations.fit_temperature(logits, targets, kind=kind)
        answer = Prediction(temperature.apply(record.outputs))
        fitted[kind] = temperature
        scores[kind] = metrics.answer_scores(answer.log_probs, labels) | {
            "temperatures": list(temperature.values)
        }
    validation_probs = Prediction(logits).probs
    for kind in ("threshold", "aps"):
        if len(targets) >= 9:
            conformal = calibrations.fit_conformal(validation_probs, targets, kind=kind)
            fitted[kind] = conformal
            scores[kind] = calibrations.conformal_scores(conformal, prediction.probs, labels)
    return fitted, scores


def _ood_curves(prediction: Prediction, strange: Mapping[str, Prediction]) -> dict[str, Any]:
    criterion = ood.CRITERIA[CRITERION]
    known = criterion(prediction)
    values = {"test": known} | {name: criterion(p) for name, p in strange.items()}
    top = float(torch.log(torch.tensor(float(prediction.logits.shape[-1]))))
    edges = torch.linspace(0, top, 31)
    shares = {
        name: (torch.histc(v.clamp(0, top), bins=30, min=0, max=top) / len(v)).tolist()
        for name, v in values.items()
    }
    return {
        "histogram": {"criterion": CRITERION, "edges": edges.tolist(), "share": shares},
        "roc": {name: ood.roc(known, values[name]) for name in strange},
    }


def _examples(prediction: Prediction, labels: Tensor, inputs: Tensor | None) -> tuple[dict[str, Any], ...]:
    if inputs is None or len(inputs) != len(labels):
        return ()
    order = prediction.entropy.argsort(stable=True)
    count = min(EXAMPLES, len(order) // 2)
    if not count:
        return ()
    chosen = [("most certain", int(i)) for i in order[:count]]
    chosen += [("least certain", int(i)) for i in order.flip(0)[:count]]
    pictures = collecting.example_pictures(inputs, [i for _, i in chosen])
    return tuple(
        {
            "kind": kind,
            "index": i,
            "label": int(labels[i]),
            "predicted": int(prediction.label[i]),
            "confidence": float(prediction.max_prob[i]),
            "entropy": float(prediction.entropy[i]),
            "picture": picture,
        }
        for (kind, i), picture in zip(chosen, pictures, strict=True)
        if picture is not None
    )


def _notes(record: Record, scores: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if record.members == 1:
        notes.append(
            "One member: disagreement and error correlation are not defined, mutual information is 0."
        )
    elif scores["diversity"]["disagreement"] is None:
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
    elif len(record.validation[1]) < 9:
        notes.append("Fewer than 9 validation samples: no conformal sets at 90 %.")
    return tuple(notes)


def _about(record: Record) -> dict[str, Any]:
    return {
        "task": record.task,
        "members": record.members,
        "samples": record.outputs.shape[1],
        "outputs": record.outputs.shape[2],
        "classes": list(record.classes),
        "ood": {name: outputs.shape[1] for name, outputs in record.ood.items()},
        "validation": 0 if record.validation is None else len(record.validation[1]),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
