"""The parts of the report that the page and its Markdown twin share: sections, tables, and words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.scores.subsets import Measured
from covey.tables import counted

from . import curves, evidence, figures, members
from .evidence import Table
from .fronts import fronts
from .pictures import Pictures, examples
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
    "Predictive entropy on the test set (grey) and on out-of-distribution inputs, for the first seed, and how "
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
    "The rise of the loss when weights are disturbed, loss and accuracy between the first two members, and accuracy "
    "and NLL on the plane through three. Between members, norms use the statistics of the samples at hand, so that the "
    "ends are not quite the members' own scores; only members of equal shapes have such a line."
)
MEMBERS = (
    "For the first seed of each method: subsets of the members with their cost and their score, and a line through "
    "those that no cheaper one beats. Subsets are told apart by the test samples themselves, so the line is a little "
    "too good. Where layers share templates, which layer of which member belongs to which cluster."
)
TRAINING = "What training recorded; mean over seeds, band of one standard deviation."
CLASSES = (
    "Which classes are answered well. Colours in a confusion matrix show the mistakes: the share of a class (row) that "
    "is taken for another (column); right answers stand on the diagonal."
)
EXAMPLES = (
    "For the first seed of each method: the samples of least and of most predictive entropy, the wrong answers given "
    "with most confidence, and the out-of-distribution inputs that look most like known ones. Maps show an image, the "
    "classes of its pixels (black: not counted), the answer, and the image reddened where the answer is unsure."
)


@dataclass(frozen=True)
class Section:
    """A part of the report: some words, figures, example pictures, tables, and notes on what is missing."""

    anchor: str
    title: str
    words: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Pictures] = ()
    notes: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.pictures or self.notes)


def sections(results: Results, looks: Looks) -> list[Section]:
    """Every part that the runs have something to show for."""
    with styled():
        parts = [
            Section("cost", "Score against cost", FRONT, fronts(results, looks)),
            _classes(results),
            _calibration(results, looks),
            _intervals(results, looks),
            Section("selective", "Answering only when sure", SELECTIVE, curves.risk_coverage(results, looks)),
            _ood(results, looks),
            _diversity(results, looks),
            Section("robustness", "Corrupted inputs", ROBUSTNESS, curves.severity(results, looks)),
            _members(results),
            _landscape(results, looks),
            Section("training", "Training", TRAINING, curves.training(results, looks)),
            _examples(results),
        ]
    parts = [part for part in parts if not part.empty]
    return _with_own_names(parts)


def _calibration(results: Results, looks: Looks) -> Section:
    drawn = figures.reliability(results, looks)
    tables = evidence.calibration(results)
    return Section("calibration", "Calibration", CALIBRATION, drawn, tables)


def _classes(results: Results) -> Section:
    drawn = figures.confusions(results)
    return Section("classes", "Classes", CLASSES, drawn, evidence.classes(results))


def _intervals(results: Results, looks: Looks) -> Section:
    drawn = curves.intervals(results, looks)
    return Section("intervals", "Intervals", INTERVALS, drawn, evidence.intervals(results))


def _ood(results: Results, looks: Looks) -> Section:
    histograms = figures.ood_histograms(results, looks)
    rocs = curves.ood_roc(results, looks)
    tables = evidence.ood(results)
    return Section("ood", "Out-of-distribution inputs", OOD, [*histograms, *rocs], tables)


def _diversity(results: Results, looks: Looks) -> Section:
    drawn = figures.disagreement(results, looks)
    tables = evidence.diversity(results)
    return Section("diversity", "Diversity", DIVERSITY, drawn, tables)


def _members(results: Results) -> Section:
    """Subsets of members against their cost, and which layers share templates; of each method's first seed."""
    subsets: dict[str, Measured] = {}
    drawn = []
    for method in results.methods:
        first = method.runs[0]
        if first.subsets is not None:
            subsets[method.name] = first.subsets
        if first.clusters:
            drawn.append(members.draw_clusters(first.clusters, name=method.name))
    if subsets:
        fronts_of_subsets = [
            members.anytime(subsets, "multiply_adds"),
            members.anytime(subsets, "milliseconds"),
        ]
        drawn = [*fronts_of_subsets, *drawn]
    return Section("members", "Members and their subsets", MEMBERS, drawn)


def _landscape(results: Results, looks: Looks) -> Section:
    lines = curves.landscape(results, looks)
    planes = figures.planes(results, looks)
    return Section("landscape", "Loss landscape", LANDSCAPE, [*lines, *planes])


def _examples(results: Results) -> Section:
    groups, tables, notes = examples(results)
    return Section("examples", "Examples", EXAMPLES, tables=tables, pictures=groups, notes=notes)


def _with_own_names(parts: Sequence[Section]) -> list[Section]:
    """The same sections with a name of its own for each figure: "A" and "a" would share a file otherwise."""
    taken: set[str] = set()
    result = []
    for part in parts:
        named = []
        for figure in part.figures:
            name = figure.name
            copy = 2
            while name in taken:
                name = f"{figure.name}-{copy}"
                copy += 1
            taken.add(name)
            named.append(replace(figure, name=name))
        result.append(replace(part, figures=named))
    return result


def lead(results: Results) -> str:
    """What was compared, in a sentence or two."""
    about = results.baseline.runs[0].evaluation.about
    seeds: set[int] = set()
    for method in results.methods:
        seeds.update(run.seed for run in method.runs)
    methods = counted(len(results.methods), "method")
    samples = f"{about['samples']:,}".replace(",", " ")
    text = f"{methods}, {counted(len(seeds), 'seed')}, {samples} test samples"
    if about["ood"]:
        text += "; out-of-distribution inputs from " + ", ".join(about["ood"])
    if results.alone:
        return f"{text}."
    return f"{text}. Compared with {results.baseline.name}."


def notes(results: Results) -> list[str]:
    """What a reader must know of the evaluations, each note once, with the methods that it is true of."""
    methods_of: dict[str, list[str]] = {}
    for method in results.methods:
        for note in method.runs[0].evaluation.notes:
            methods_of.setdefault(str(note), []).append(method.name)
    found = []
    for note, names in methods_of.items():
        everywhere = len(names) == len(results.methods)
        found.append(note if everywhere else f"{note} ({', '.join(names)})")
    return found


def settings_text(method: MethodRuns) -> str:
    """All that a run's record holds of how to repeat it, as JSON; settings that all seeds share stand once."""
    common = _common_settings(method)
    own = {}
    for run in method.runs:
        own[run.seed] = {name: value for name, value in run.settings.items() if name not in common}
    first = method.runs[0]
    result: dict[str, Any] = {"seeds": [run.seed for run in method.runs], "settings": common}
    if any(own.values()):
        result["settings by seed"] = own
    result["versions"] = first.evaluation.about["versions"]
    if first.cost is not None:
        result["cost measured with"] = {
            "batch": first.cost.batch,
            "threads": first.cost.threads,
            "clock": first.cost.clock,
        }
    return json.dumps(result, indent=2, ensure_ascii=False, default=str)


def _common_settings(method: MethodRuns) -> dict[str, Any]:
    common = {}
    for name, value in method.runs[0].settings.items():
        if all(run.settings.get(name) == value for run in method.runs):
            common[name] = value
    return common
