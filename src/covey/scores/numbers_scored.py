"""All scores of ensembles that answer with numbers or quantiles, from members' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from covey.calibration import Intervals, Temperature
from covey.combine import Regression
from covey.quantiles import QuantileAnswer, Quantiles

from . import calibration, quantiles, regression
from .calibration import LEAST_FOR_CONFORMAL
from .evaluation import Evaluation, about
from .examples import Shown
from .record import Record


def score_regression(record: Record, shown: Shown, stored: Temperature | None) -> Evaluation:
    """All scores of predicted numbers."""
    prediction = Regression(record.outputs, record.variance)
    scores = regression.regression_scores(prediction, record.targets)
    curves = {}
    notes = _worse_than_the_mean(scores["ensemble"]["rmse"], record.targets)
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
    fitted = _fit_intervals(record, notes)
    scores["calibration"] = _interval_scores(prediction, record.targets, fitted)
    return Evaluation(scores, curves, about(record), tuple(notes), calibration=fitted, record=record)


def score_quantiles(record: Record, shown: Shown, stored: Temperature | None) -> Evaluation:
    """All scores of predicted quantiles."""
    asked = Quantiles.of(record.task)
    assert asked is not None
    answer = asked.answer(record.outputs)
    scores = quantiles.quantile_scores(answer, record.targets)
    notes = _worse_than_the_mean(scores["ensemble"]["rmse"], record.targets)
    fitted = {}
    if record.validation is not None:
        fitted = _fit_margin(asked.answer(record.validation[0]), record.validation[1], notes)
    calibrated = {}
    for name, margin in fitted.items():
        calibrated[name] = calibration.margin_scores(margin, answer, record.targets)
    scores["calibration"] = calibrated
    curves = {"levels": quantiles.levels_below(answer, record.targets)}
    return Evaluation(scores, curves, about(record), tuple(notes), calibration=fitted, record=record)


def _fit_margin(known: QuantileAnswer, targets: Tensor, notes: list[str]) -> dict[str, Any]:
    """A conformal margin, fitted on validation data if there are enough."""
    if len(targets) < LEAST_FOR_CONFORMAL:
        notes.append(f"Fewer than {LEAST_FOR_CONFORMAL} validation samples: no conformal margin at 90 %.")
        return {}
    return {"margin": calibration.fit_margin(known, targets)}


def _fit_intervals(record: Record, notes: list[str]) -> dict[str, Any]:
    """Conformal intervals by name, fitted on the validation outputs if there are enough."""
    if record.validation is None:
        return {}
    outputs, targets = record.validation
    if len(targets) < LEAST_FOR_CONFORMAL:
        notes.append(f"Fewer than {LEAST_FOR_CONFORMAL} validation samples: no conformal intervals at 90 %.")
        return {}
    known = Regression(outputs, record.validation_variance)
    fitted = {"absolute": calibration.fit_intervals(known, targets, kind="absolute")}
    if (known.std > 0).all():
        fitted["normalised"] = calibration.fit_intervals(known, targets, kind="normalised")
    else:
        notes.append("Members agree somewhere, so intervals cannot be normalised by their deviation.")
    return fitted


def _interval_scores(
    prediction: Regression, targets: Tensor, fitted: Mapping[str, Intervals]
) -> dict[str, Any]:
    scores = {}
    for name, intervals in fitted.items():
        if name == "normalised" and not (prediction.std > 0).all():
            continue
        scores[name] = calibration.interval_scores(intervals, prediction, targets)
    return scores


def _worse_than_the_mean(rmse: float, targets: Tensor) -> list[str]:
    """A note, if whoever answers with the targets' mean every time does better."""
    spread = float(targets.double().std(0, correction=0).square().mean().sqrt())
    if len(targets) < 2 or rmse <= spread:
        return []
    return [
        f"WORSE THAN THE MEAN: the RMSE is {rmse:.4g}; answering with the mean of the targets every time would give "
        f"{spread:.4g}. Nothing was learned: train longer, lower the learning rate, use AdamW or clip the gradient."
    ]
