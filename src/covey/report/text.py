"""The parts of the report that the page and its Markdown twin share: sections, tables, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.scores.ood import CRITERIA

from . import curves, figures
from .results import MethodRuns, Results
from .style import Figure, Looks, styled

FRONT = (
    "Each method's mean score with its standard deviation over seeds. Methods on the dotted line are the "
    "front: no other method is both better and cheaper."
)
CALIBRATION = (
    "How often the ensemble is right (line) where it claims a confidence; on the dashed line it claims what "
    "it holds. Bars are the share of samples in each bin. The table shows what calibration on validation "
    "data does to the test scores, and conformal sets that should hold the label in 90 % of cases."
)
INTERVALS = (
    "How often targets fall into the intervals that should hold them; on the dotted line, as promised."
)
SELECTIVE = "The error among the samples answered, if those of least confidence are left unanswered."
OOD = (
    "Predictive entropy on the test set (grey) and on inputs from elsewhere, for the first seed, and how "
    "well it tells the two apart."
)
DIVERSITY = (
    "How often two members answer differently, over the error rate of the member in the row. Copies give 0, "
    "members that fail independently about 1 and more."
)
ROBUSTNESS = (
    "Mean over 15 kinds of corruption; severity 0 is the clean test set. Bands are one standard deviation "
    "over seeds."
)
LANDSCAPE = (
    "The rise of the loss when weights are disturbed, the loss between two members, and accuracy and NLL on the plane "
    "through three."
)
TRAINING = "What training recorded; mean over seeds, band of one standard deviation."
EXAMPLES = "By the entropy of the prediction, for the first seed of each method."


@dataclass(frozen=True)
class Table:
    """A plain table; the first cell of a row names it."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of the report: some words, figures, example pictures and tables."""

    anchor: str
    title: str
    words: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[tuple[str, Sequence[dict[str, Any]]]] = field(default_factory=tuple)


def sections(results: Results, looks: Looks) -> list[Section]:
    """Every part that the runs have something to show for."""
    with styled():
        parts = _all_sections(results, looks)
    return [part for part in parts if part.figures or part.tables or part.pictures]


def _all_sections(results: Results, looks: Looks) -> list[Section]:
    return [
        Section("cost", "Score against cost", FRONT, figures.fronts(results, looks)),
        Section(
            "calibration",
            "Calibration",
            CALIBRATION,
            figures.reliability(results, looks),
            _calibration_tables(results),
        ),
        Section("intervals", "Intervals", INTERVALS, curves.intervals(results, looks)),
        Section("selective", "Answering only when sure", SELECTIVE, curves.risk_coverage(results, looks)),
        Section(
            "ood",
            "Strange inputs",
            OOD,
            [*figures.ood_histograms(results, looks), *curves.ood_roc(results, looks)],
            _ood_tables(results),
        ),
        Section(
            "diversity",
            "Diversity",
            DIVERSITY,
            figures.disagreement(results, looks),
            _diversity_tables(results),
        ),
        Section("robustness", "Corrupted inputs", ROBUSTNESS, curves.severity(results, looks)),
        Section(
            "landscape",
            "Loss landscape",
            LANDSCAPE,
            [*curves.landscape(results, looks), *figures.planes(results, looks)],
        ),
        Section("training", "Training", TRAINING, curves.training(results, looks)),
        Section("examples", "Most and least certain samples", EXAMPLES, pictures=_examples(results)),
    ]


def _calibration_tables(results: Results) -> list[Table]:
    rows = []
    for method in results.methods:
        scored = [
            r.evaluation.scores for r in method.runs if "pooled" in r.evaluation.scores.get("calibration", {})
        ]
        if not scored:
            continue
        row = [method.name]
        for score, scale, digits in (("nll", 1, 4), ("ece", 100, 2)):
            for name in ("", "pooled", "members"):
                values = [(s["calibration"][name] if name else s["ensemble"])[score] for s in scored]
                row.append(_mean(values, scale, digits))
        for name in ("threshold", "aps"):
            found = [s["calibration"][name] for s in scored if name in s["calibration"]]
            row.append(
                f"{_mean([f['coverage'] for f in found], 100, 1)} / {_mean([f['size'] for f in found], 1, 2)}"
            )
        rows.append(row)
    heads = [
        "Method",
        "NLL",
        "NLL, pooled T",
        "NLL, members' T",
        "ECE, %",
        "ECE, pooled T",
        "ECE, members' T",
    ]
    heads += ["Threshold sets: coverage, % / size", "APS: coverage, % / size"]
    caption = (
        "After calibration on validation data: one temperature of the pooled prediction, or one a member"
    )
    return [Table(caption, heads, rows)] if rows else []


def _ood_tables(results: Results) -> list[Table]:
    rows = []
    for method in results.methods:
        scored = [r.evaluation.scores["ood"] for r in method.runs if "ood" in r.evaluation.scores]
        for name in scored[0]["sets"] if scored else ():
            values = [_mean([s["sets"][name][c]["auroc"] for s in scored], 100, 2) for c in CRITERIA]
            rows.append([f"{method.name}, {name}", *values])
    heads = ["Method and set", *(c.replace("_", " ") if c != "msp" else "MSP" for c in CRITERIA)]
    return [Table("AUROC in % by criterion, mean over seeds", heads, rows)] if rows else []


def _diversity_tables(results: Results) -> list[Table]:
    rows = []
    for method in results.methods:
        found = [r.evaluation.scores["diversity"] for r in method.runs]
        if method.members < 2 or "mutual_information" not in found[0]:
            continue
        row = [method.name]
        for key in ("disagreement", "error_correlation", "ambiguity"):
            row.append(_mean([d[key] for d in found], 1, 3))
        sets = found[0]["mutual_information"]
        row.append(", ".join(f"{s} {_mean([d['mutual_information'][s] for d in found], 1, 3)}" for s in sets))
        rows.append(row)
    heads = [
        "Method",
        "Disagreement over error",
        "Error correlation",
        "Ambiguity",
        "Mutual information, nats",
    ]
    return [Table("Diversity of the members, mean over pairs and seeds", heads, rows)] if rows else []


def _examples(results: Results) -> list[tuple[str, list[dict[str, Any]]]]:
    found = []
    for method in results.methods:
        evaluation = method.runs[0].evaluation
        names = evaluation.about["classes"]

        def named(label: int, names: list[str] = names) -> str:
            return names[label] if label < len(names) else f"class {label}"

        for kind in ("most certain", "least certain"):
            chosen = [
                e | {"label_name": named(e["label"]), "predicted_name": named(e["predicted"])}
                for e in evaluation.examples
                if e["kind"] == kind
            ]
            if chosen:
                found.append((f"{method.name}: {kind}", chosen))
    return found


def settings_text(method: MethodRuns) -> dict[str, Any]:
    """All that a run's record holds of how to repeat it; settings that all seeds share stand once."""
    first = method.runs[0]
    common = {k: v for k, v in first.settings.items() if all(r.settings.get(k) == v for r in method.runs)}
    own = {r.seed: {k: v for k, v in r.settings.items() if k not in common} for r in method.runs}
    result: dict[str, Any] = {"seeds": [r.seed for r in method.runs], "settings": common}
    if any(own.values()):
        result["settings by seed"] = own
    result["versions"] = first.evaluation.about["versions"]
    if first.cost is not None:
        measured = {"batch": first.cost.batch, "threads": first.cost.threads, "clock": first.cost.clock}
        result["cost measured with"] = measured
    return result


def _mean(values: Sequence[float | None], scale: float, digits: int) -> str:
    known = [v for v in values if v is not None]
    return f"{scale * sum(known) / len(known):.{digits}f}" if known else "\u2013"
