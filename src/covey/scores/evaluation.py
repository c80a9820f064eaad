"""The result of an evaluation: scores, curves and notes, to read, to store and to read again."""

from __future__ import annotations

import html
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from covey.calibration import from_dict
from covey.errors import EvaluationError, StoreError
from covey.files import write_text
from covey.quantiles import KIND, kind_of
from covey.schema import read_json
from covey.tables import counted, html_table, number, text_table

from .ood import DETECTION
from .record import Record
from .stored import check_evaluation, renewed

FORMAT = 1
CRITERION = "entropy"
"""The out-of-distribution criterion of the headline and the figures."""

OUTPUTS_FILE = "outputs.npz"
SCORES_FILE = "evaluation.json"


@dataclass(frozen=True)
class _Table:
    caption: str
    headings: tuple[str, ...]
    rows: list[tuple] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """Scores, curves for figures, and the outputs they came from.

    Args:
        scores: nested plain numbers: "ensemble", "member_mean", "members", "ood", "selective", "diversity",
            "robustness", "calibration". A score that is not defined is None, and a note says why.
        curves: what figures draw: "reliability", "risk_coverage", "roc", "histogram", "intervals", or "levels".
        about: task, members, samples, classes, out-of-distribution sets and versions.
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

    def __repr__(self) -> str:
        about = self.about
        return (
            f"Evaluation(task={about['task']!r}, members={about['members']}, samples={about['samples']}, "
            f"outputs={about['outputs']})"
        )

    def __str__(self) -> str:
        parts = []
        for table in self._tables():
            text = text_table(table.headings, table.rows, right=table.headings[1:])
            parts.append(f"{table.caption}\n{text}")
        for note in self.notes:
            parts.append(f"Note: {note}")
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        parts = []
        for table in self._tables():
            right = table.headings[1:]
            parts.append(html_table(table.headings, table.rows, right=right, caption=table.caption))
        for note in self.notes:
            parts.append(f"<p>Note: {html.escape(note)}</p>")
        return "\n".join(parts)

    def _tables(self) -> list[_Table]:
        """What a person reads first."""
        about = self.about
        parts = [
            f"Evaluation: {about['task']}",
            counted(about["members"], "member"),
            counted(about["samples"], "test sample"),
        ]
        one, several = OUTPUTS.get(kind_of(about["task"]), ("class", "classes"))
        parts.append(counted(about["outputs"], one, several))
        headline = _Table(", ".join(parts), ("score", "ensemble", "mean of members"))
        members = self.scores["member_mean"]
        for name, value in self.headline.items():
            if value is not None and name not in DETECTION:  # those stand in the other table
                headline.rows.append((name, number(value), number(members.get(name))))
        if "ood" not in self.scores:
            return [headline]
        detection = _Table(f"Out-of-distribution detection by {CRITERION}", ("set", "samples", *DETECTION))
        for name, scores in self.scores["ood"]["sets"].items():
            found = scores[CRITERION]
            values = [number(found[score]) for score in DETECTION]
            detection.rows.append((name, about["ood"][name], *values))
        return [headline, detection]

    @property
    def headline(self) -> dict[str, float | None]:
        """The scores of the report's table by their short names."""
        row = dict(self.scores["ensemble"])
        if "ood" in self.scores:
            mean = self.scores["ood"]["mean"][CRITERION]
            row["auroc"] = mean["auroc"]
            row["fpr95"] = mean["fpr95"]
            row["aupr_in"] = mean["aupr_in"]
            row["aupr_out"] = mean["aupr_out"]
        row |= self.scores.get("selective", {})
        further = self.scores["diversity"] | self.scores.get("robustness", {})
        for name in _FURTHER:
            if name in further:
                row[name] = further[name]
        return row

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON of all but the record."""
        calibration = {}
        for name, fitted in self.calibration.items():
            calibration[name] = fitted.to_dict()
        return {
            "format": FORMAT,
            "scores": self.scores,
            "curves": self.curves,
            "about": self.about,
            "notes": list(self.notes),
            "examples": list(self.examples),
            "calibration": calibration,
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any], record: Record | None = None) -> Evaluation:
        """An evaluation from what `to_dict` gave."""
        if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
            found = stored.get("format") if isinstance(stored, Mapping) else None
            raise EvaluationError(f"evaluation of format {found!r}, this covey reads {FORMAT}")
        stored = renewed(stored)
        try:
            check_evaluation(stored, "the evaluation")
        except StoreError as problem:
            raise EvaluationError(str(problem)) from problem
        calibration = {}
        for name, fitted in stored["calibration"].items():
            calibration[name] = from_dict(fitted)
        return Evaluation(
            scores=stored["scores"],
            curves=stored["curves"],
            about=stored["about"],
            notes=tuple(stored["notes"]),
            examples=tuple(stored["examples"]),
            calibration=calibration,
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
            stored = read_json(folder / SCORES_FILE)
        except StoreError as problem:
            raise EvaluationError(
                f"{folder}: no readable {SCORES_FILE} ({problem}); evaluate again to write it anew"
            ) from problem
        found = Evaluation.from_dict(stored)
        if not outputs or not os.path.lexists(folder / OUTPUTS_FILE):
            return found
        return replace(found, record=Record.load(folder / OUTPUTS_FILE))


OUTPUTS = {"regression": ("output", "outputs"), "multilabel": ("label", "labels"), KIND: ("level", "levels")}
"""What the outputs of a task are called, where they are no classes."""

_FURTHER = (
    "disagreement",
    "normalised_disagreement",
    "error_correlation",
    "ambiguity",
    "mean_corruption_error",
    "mean_corruption_nll",
    "mean_corruption_ece",
)
"""Scores of diversity and robustness that the headline shows."""


def about(record: Record) -> dict[str, Any]:
    """What was scored, in numbers."""
    ood_samples = {}
    for name, outputs in record.ood.items():
        ood_samples[name] = outputs.shape[1]
    return {
        "task": record.task,
        "members": record.members,
        "samples": record.outputs.shape[1],
        "outputs": record.outputs.shape[2],
        "classes": list(record.classes),
        "ood": ood_samples,
        "validation": 0 if record.validation is None else len(record.validation[1]),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
