"""The tables of the report's sections: what calibration does, how well OOD inputs are told, how members differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from covey.scores.ood import CRITERIA

from .results import MethodRuns, Results


@dataclass(frozen=True)
class Table:
    """A plain table; the first cell of a row names it."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


CALIBRATION_HEADS = (
    "Method",
    "NLL",
    "NLL, pooled T",
    "NLL, members' T",
    "ECE, %",
    "ECE, pooled T",
    "ECE, members' T",
    "Threshold sets: coverage, % / size",
    "APS: coverage, % / size",
)


def calibration(results: Results) -> list[Table]:
    """Scores before and after calibration, and conformal sets."""
    rows = []
    for method in results.methods:
        scored = []
        for scores in _scores(method):
            if "pooled" in scores.get("calibration", {}):
                scored.append(scores)
        if scored:
            rows.append(_calibration_row(method.name, scored))
    caption = (
        "After calibration on validation data: one temperature for the pooled prediction, or one per member"
    )
    return [Table(caption, CALIBRATION_HEADS, rows)] if rows else []


def _calibration_row(name: str, scored: Sequence[dict[str, Any]]) -> list[str]:
    row = [name]
    for score, scale, digits in (("nll", 1, 4), ("ece", 100, 2)):
        before = [scores["ensemble"][score] for scores in scored]
        row.append(_mean(before, scale, digits))
        for kind in ("pooled", "members"):
            after = [scores["calibration"][kind][score] for scores in scored if kind in scores["calibration"]]
            row.append(_mean(after, scale, digits))
    for kind in ("threshold", "aps"):
        row.append(_conformal_cell(scored, kind))
    return row


def _conformal_cell(scored: Sequence[dict[str, Any]], kind: str) -> str:
    coverages = []
    sizes = []
    for scores in scored:
        found = scores["calibration"].get(kind)
        if found is not None:
            coverages.append(found["coverage"])
            sizes.append(found["size"])
    return f"{_mean(coverages, 100, 1)} / {_mean(sizes, 1, 2)}"


def ood(results: Results) -> list[Table]:
    """AUROC by method, OOD set and criterion."""
    rows = []
    for method in results.methods:
        scored = [scores["ood"]["sets"] for scores in _scores(method) if "ood" in scores]
        if not scored:
            continue
        for name in scored[0]:
            row = [f"{method.name}, {name}"]
            for criterion in CRITERIA:
                values = [sets[name][criterion]["auroc"] for sets in scored if name in sets]
                row.append(_mean(values, 100, 2))
            rows.append(row)
    heads = ["Method and set"]
    for criterion in CRITERIA:
        heads.append("MSP" if criterion == "msp" else criterion.replace("_", " "))
    return [Table("AUROC in % by criterion, mean over seeds", heads, rows)] if rows else []


DIVERSITY_HEADS = (
    "Method",
    "Disagreement",
    "Disagreement over error",
    "Error correlation",
    "Ambiguity",
    "Mutual information, nats",
)


def diversity(results: Results) -> list[Table]:
    """How much the members of each ensemble differ."""
    rows = []
    for method in results.methods:
        found = [scores["diversity"] for scores in _scores(method)]
        if method.members > 1 and "mutual_information" in found[0]:
            rows.append(_diversity_row(method.name, found))
    return (
        [Table("Diversity of the members, mean over pairs and seeds", DIVERSITY_HEADS, rows)] if rows else []
    )


def _diversity_row(name: str, found: Sequence[dict[str, Any]]) -> list[str]:
    row = [name]
    for key in ("disagreement", "normalised_disagreement", "error_correlation", "ambiguity"):
        values = [scores.get(key) for scores in found]
        row.append(_mean(values, 1, 3))
    by_set = []
    for which in found[0]["mutual_information"]:
        values = [scores["mutual_information"].get(which) for scores in found]
        by_set.append(f"{which} {_mean(values, 1, 3)}")
    row.append(", ".join(by_set))
    return row


MOST_CLASSES = 60
"""Rows of the table of classes; of more, those of the least recall are shown."""


def classes(results: Results) -> list[Table]:
    """Recall and precision of each class, and the pairs of classes that are mistaken most."""
    return [*_per_class(results), *_confused(results), *_per_label(results)]


def _per_label(results: Results) -> list[Table]:
    """AUROC and average precision of each label, where several may be true."""
    methods = [method for method in results.methods if "per_label" in _scores(method)[0]]
    rows = []
    for place, name in enumerate(class_names(methods[0]) if methods else ()):
        row = [name]
        for method in methods:
            each = [scores["per_label"] for scores in _scores(method) if "per_label" in scores]
            cells = []
            for score, scale in (("auroc", 100), ("ap", 100), ("ece", 100)):
                values = [found[score][place] for found in each if place < len(found[score])]
                cells.append(_mean(values, scale, 1))
            row.append(" / ".join(cells))
        rows.append(row)
    heads = ["Label", *(method.name for method in methods)]
    return (
        [Table("AUROC / average precision / ECE in % by label, mean over seeds", heads, rows)] if rows else []
    )


INTERVAL_HEADS = ("Method", "Kind", "Coverage, %", "Mean width", "Interval score")


def intervals(results: Results) -> list[Table]:
    """The outermost quantiles, and conformal intervals that should hold 90 % of the targets."""
    rows = []
    for method in results.methods:
        rows += _outermost(method)
        for kind in ("absolute", "normalised", "margin"):
            found = [scores.get("calibration", {}).get(kind) for scores in _scores(method)]
            known = [each for each in found if each is not None and "width" in each]
            if known:
                row = [method.name, kind, _mean([each["coverage"] for each in known], 100, 1)]
                row += [_mean([each[key] for each in known], 1, 4) for key in ("width", "interval_score")]
                rows.append(row)
    caption = (
        "Conformal intervals fitted on validation data to hold 90 % of the targets: equally wide, by the ensemble's "
        "deviation, or its outermost quantiles with a margin; means over seeds. A lower interval score is better"
    )
    return [Table(caption, INTERVAL_HEADS, rows), *_levels(results)] if rows else _levels(results)


def _outermost(method: MethodRuns) -> list[list[str]]:
    """What the lowest and the highest quantile hold as they are."""
    found = [
        scores["ensemble"] for scores in _scores(method) if scores["ensemble"].get("nominal") is not None
    ]
    if not found:
        return []
    kind = f"quantiles, {100 * found[0]['nominal']:.3g} %"
    coverage = _mean([scores.get("coverage") for scores in found], 100, 1)
    return [[method.name, kind, coverage, _mean([scores.get("width") for scores in found], 1, 4), ""]]


def _levels(results: Results) -> list[Table]:
    """How many targets lie below each quantile."""
    methods = [method for method in results.methods if method.curves("levels")]
    if not methods:
        return []
    rows = []
    for place, level in enumerate(methods[0].curves("levels")[0]["expected"]):
        row = [f"{level:g}"]
        for method in methods:
            row.append(_mean([curve["observed"][place] for curve in method.curves("levels")], 100, 1))
        rows.append(row)
    heads = ["Level", *(method.name for method in methods)]
    return [Table("Share of targets at or below each quantile in %, mean over seeds", heads, rows)]


def _per_class(results: Results) -> list[Table]:
    scored = [
        method for method in results.methods if all("per_class" in scores for scores in _scores(method))
    ]
    if not scored:
        return []
    names = class_names(scored[0])
    methods = [method for method in scored if len(class_names(method)) == len(names)]
    recalls = [_class_means(method, "recall") for method in methods]
    shown_scores, words = ["recall", "precision"], ["Recall", "precision"]
    if results.task == "segmentation":
        shown_scores, words = [*shown_scores, "iou"], [*words, "IoU"]
    order = sorted(range(len(names)), key=lambda place: recalls[0][place] or 0.0)
    shown = sorted(order[:MOST_CLASSES])
    rows = []
    for place in shown:
        row = [names[place], str(_scores(methods[0])[0]["per_class"]["samples"][place])]
        for method in methods:
            cells = [_mean([_class_means(method, score)[place]], 100, 1) for score in shown_scores]
            row.append(" / ".join(cells))
        rows.append(row)
    caption = f"{' / '.join(words)} in % by class, mean over seeds"
    if len(names) > len(shown):
        caption += f"; the {len(shown)} classes of least recall, of {len(names)}"
    return [Table(caption, ["Class", "Samples", *(method.name for method in methods)], rows)]


def _class_means(method: MethodRuns, score: str) -> list[float | None]:
    """A score of each class, mean over the seeds where it is defined."""
    by_seed = [scores["per_class"].get(score, []) for scores in _scores(method)]
    means: list[float | None] = []
    for values in zip(*by_seed, strict=False):
        known = [value for value in values if value is not None]
        means.append(fmean(known) if known else None)
    return means


def _confused(results: Results) -> list[Table]:
    rows = []
    for method in results.methods:
        names = class_names(method)
        first = _scores(method)[0]
        samples = method.runs[0].evaluation.about["samples"]
        for pair in first.get("confused", ())[:MOST_PAIRS]:
            share = 100 * pair["count"] / samples
            told = f"{pair['count']} ({share:.2f} %)"
            rows.append([method.name, names[pair["label"]], names[pair["predicted"]], told])
    heads = ["Method", "Class", "Taken for", "Samples"]
    return [Table("The most frequent mistakes of each method's first seed", heads, rows)] if rows else []


MOST_PAIRS = 5
"""Pairs of classes shown for each method."""


def class_names(method: MethodRuns) -> list[str]:
    """A name for each output; classes without one are numbered."""
    about = method.runs[0].evaluation.about
    names = [str(name) for name in about["classes"][: about["outputs"]]]
    return names + [f"class {k}" for k in range(len(names), about["outputs"])]


def _scores(method: MethodRuns) -> list[dict[str, Any]]:
    return [run.evaluation.scores for run in method.runs]


def _mean(values: Sequence[float | None], scale: float, digits: int) -> str:
    """The mean of what is defined, as it is written."""
    known = [value for value in values if value is not None]
    if not known:
        return "\u2013"
    return f"{scale * fmean(known):.{digits}f}"
