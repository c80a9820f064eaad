"""What `covey evaluate` fits on a run's validation data, for the commands that answer with the run.

Conformal sets and intervals stand beside the answer and are always given. A temperature changes the probabilities that
the run was scored with, and is a bad one where validation samples are few or all answered rightly: it is for those who
ask for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from covey.calibration import Conformal, Intervals, Margin, Temperature
from covey.cli.reading import read_ensemble, read_settings
from covey.combine import CONFORMAL, Prediction
from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.quantiles import kind_of
from covey.scores import Evaluation, fit_conformal
from covey.scores.evaluation import SCORES_FILE

Kind = Literal["pooled", "members"]


def read_calibrated(folder: Path, code: str | None = None, temperature: Kind | None = None) -> Ensemble:
    """The trained ensemble of a run, with the conformal sets or intervals that `covey evaluate` has fitted.

    What was stored with the ensemble itself stays.

    Args:
        folder: of the run.
        code: as in `read_ensemble`.
        temperature: which of the fitted temperatures calibrates the probabilities; none if not given.
    """
    ensemble = read_ensemble(folder, code)
    if not os.path.lexists(folder / SCORES_FILE):
        if temperature is not None:
            raise OptionError(f"{folder} was not evaluated yet: `covey evaluate {folder}` fits temperatures.")
        return ensemble
    fitted = Evaluation.load(folder, outputs=False).calibration
    if temperature is not None:
        if not isinstance(fitted.get(temperature), Temperature):
            raise OptionError(_no_temperature(folder, ensemble.task))
        # Sets that were stored are those of other probabilities.
        ensemble.temperature, ensemble.conformal = fitted[temperature], None
    if ensemble.conformal is None:
        ensemble.conformal = _conformal(ensemble, fitted, folder)
    return ensemble


def offer(folder: Path, evaluation: Evaluation) -> list[str]:
    """What a fitted temperature does to the test scores, and how to ask for it, in a line."""
    fitted = evaluation.calibration.get("pooled")
    scores = evaluation.scores.get("calibration", {}).get("pooled")
    if not isinstance(fitted, Temperature) or scores is None:
        return []
    before, after = evaluation.scores["ensemble"]["nll"], scores["nll"]
    return [
        f"  a temperature of {fitted.values[0]:.3g}, fitted on validation data, takes the test NLL from {before:.4f} "
        f"to {after:.4f}: predict, serve and export of {folder} use it with --temperature pooled"
    ]


def _no_temperature(folder: Path, task: str) -> str:
    if task != "classification":
        return f"--temperature is for probabilities of classes; the task of {folder} is {task!r}."
    return (
        f"no temperature was fitted for {folder}, because it was trained without validation data: train with "
        "--validation 0.1, say."
    )


def _conformal(ensemble: Ensemble, fitted: dict[str, Any], folder: Path) -> Any:
    """Fitted sets, the smallest on average, or intervals, at best those that follow the uncertainty; or None."""
    for name in ("threshold", "normalised", "absolute", "margin"):
        found = fitted.get(name)
        if type(found) is not CONFORMAL.get(kind_of(ensemble.task)):
            continue
        if isinstance(found, Conformal):
            return found if ensemble.temperature is None else _sets_at(ensemble.temperature, folder, found)
        unit = read_settings(folder)["record"]["target_normalisation"]
        assert isinstance(found, Intervals | Margin)
        return found.standardised(None if unit is None else unit["std"])
    return None


def _sets_at(temperature: Temperature, folder: Path, like: Conformal) -> Conformal | None:
    """Such sets for probabilities at this temperature, from the stored validation outputs; None if they are gone."""
    record = Evaluation.load(folder).record
    if record is None or record.validation is None:
        return None
    logits, labels = record.validation
    probs = Prediction(temperature.apply(logits)).probs
    return fit_conformal(probs, labels, alpha=like.alpha, kind=like.kind)
