"""The columns of the report's table, and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.scores.statistics import Summary

from .results import MethodRuns, Results


@dataclass(frozen=True)
class Column:
    """A score or cost: where it comes from, how it is written, and which way is better."""

    key: str
    title: str
    better: Literal["higher", "lower"]
    meaning: str
    digits: int = 4
    scale: float = 1.0
    unit: str = ""

    @property
    def head(self) -> str:
        """The heading; other units than percent stand in the cells."""
        return f"{self.title}, %" if self.unit == "%" else self.title

    @property
    def first(self) -> str:
        """The order that shows the best on top."""
        return "descending" if self.better == "higher" else "ascending"


def _percent(key: str, title: str, better: Literal["higher", "lower"], meaning: str) -> Column:
    return Column(key, title, better, meaning, 2, 100, "%")


SCORES = (
    _percent(
        "miou", "Mean IoU", "higher", "pixels answered correctly over those of the class or so answered, mean"
    ),
    _percent("mean_ap", "Mean AP", "higher", "average precision, mean over labels"),
    _percent("mean_auroc", "Mean AUROC", "higher", "area under the ROC curve, mean over labels"),
    _percent("f1", "F1", "higher", "harmonic mean of precision and recall over all labels"),
    _percent(
        "exact", "All labels right", "higher", "share of test samples whose labels are all answered correctly"
    ),
    _percent("accuracy", "Accuracy", "higher", "share of test samples, pixels or labels answered correctly"),
    _percent("top5", "Top-5", "higher", "share of test samples whose label is among the five most probable"),
    Column("pinball", "Pinball", "lower", "mean pinball loss over the levels, in the target's unit"),
    _percent("level_error", "Level error", "lower", "mean |level - share of targets below its quantile|"),
    _percent("crossing", "Crossing", "lower", "samples whose quantiles had to be put in order"),
    Column("rmse", "RMSE", "lower", "root of the mean squared error, in the target's unit"),
    Column("mae", "MAE", "lower", "mean absolute error, in the target's unit"),
    Column("gaussian_nll", "NLL", "lower", "negative log-density of the targets, nats"),
    Column("interval_error", "Interval error", "lower", "mean |expected - observed| coverage of intervals"),
    Column(
        "bits_per_character", "Bits per character", "lower", "negative log2-likelihood of the next symbol"
    ),
    Column("perplexity", "Perplexity", "lower", "exponential of the NLL of the next symbol"),
    Column("nll", "NLL", "lower", "negative log-likelihood of the labels, nats"),
    Column("brier", "Brier", "lower", "squared distance of probabilities to the one-hot label, 0 to 2"),
    _percent("ece", "ECE", "lower", "expected calibration error, 15 bins of equal width"),
    _percent("adaptive_ece", "Adaptive ECE", "lower", "calibration error, 15 bins of equally many samples"),
    _percent("auroc", "OOD AUROC", "higher", "by predictive entropy, mean over the OOD sets"),
    _percent("fpr95", "OOD FPR95", "lower", "OOD samples let in when 95 % of test samples are, by entropy"),
    _percent("aupr_out", "OOD AUPR-out", "higher", "average precision, OOD samples as positives, by entropy"),
    _percent("aupr_in", "OOD AUPR-in", "higher", "average precision, test samples as positives, by entropy"),
    Column("aurc", "AURC", "lower", "area under the risk-coverage curve, by confidence"),
    _percent("mean_corruption_error", "mCE", "lower", "mean error over 15 corruptions at 5 severities"),
    Column("mean_corruption_nll", "mC-NLL", "lower", "mean NLL over 15 corruptions at 5 severities, nats"),
)
COSTS = (
    Column("stored", "Parameters", "lower", "parameters and buffers stored", 3),
    Column("multiply_adds", "Multiply-adds", "lower", "for one sample, all members", 3),
    Column(
        "peak_bytes",
        "Peak memory",
        "lower",
        "bytes in tensors alive at once during an answer, members one after another",
        3,
    ),
    Column("latency", "Latency", "lower", "median milliseconds of a batch, measured", 3, 1000, "ms"),
    Column("training_seconds", "Training", "lower", "seconds of training", 1, 1, "s"),
)
COUNTS = frozenset(("stored", "multiply_adds", "peak_bytes"))
"""Costs that are counted, not measured, and large. They are the same for every seed as a rule."""


def shown(results: Results, columns: tuple[Column, ...]) -> list[Column]:
    """The columns that any method has."""
    return [column for column in columns if results.has(column.key)]


def best(results: Results, column: Column) -> MethodRuns | None:
    """The method of best mean."""
    top: MethodRuns | None = None
    record = 0.0
    for method in results.methods:
        value = method.summary(column.key)
        if value is None:
            continue
        gain = value.mean - record if column.better == "higher" else record - value.mean
        if top is None or gain > 0:
            top = method
            record = value.mean
    return top


def verdict(results: Results, method: MethodRuns, other: MethodRuns, column: Column) -> str:
    """How `method` compares with `other`: "better", "worse", "within noise", "not tested" or ""."""
    if method.name == other.name:
        return ""
    comparison = results.against(method, other, column.key)
    if comparison is None:
        return ""
    if comparison.verdict == column.better:
        return "better"
    if comparison.verdict in ("higher", "lower"):
        return "worse"
    return comparison.verdict


def number(column: Column, value: float) -> str:
    """A value as the table writes it, without its unit."""
    if column.key in COUNTS:
        unit = "B" if column.key == "peak_bytes" else ""
        return short(value) + unit
    if column.key == "latency":
        return f"{value * column.scale:.3g}"
    return f"{value * column.scale:.{column.digits}f}"


def written(column: Column, value: Summary) -> str:
    """Mean and, with several seeds, standard deviation."""
    text = number(column, value.mean)
    if value.std is None or (column.key in COUNTS and not value.std):
        return text
    if column.key == "latency":
        return f"{text} ± {value.std * column.scale:.2g}"
    return f"{text} ± {number(column, value.std)}"


PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float) -> str:
    """A large number with three digits and a prefix.

    >>> short(25_557_032), short(4.09e9), short(512)
    ('25.6 M', '4.09 G', '512')
    """
    for size, prefix in PREFIXES:
        if abs(value) < size:
            continue
        scaled = value / size
        before_point = len(str(int(abs(scaled))))
        digits = max(0, 3 - before_point)
        return f"{scaled:.{digits}f} {prefix}"
    return f"{value:g}"


def times(ratio: float) -> str:
    """A ratio such as 4.0x."""
    digits = 2 if ratio < 1.95 else 1
    return f"{ratio:.{digits}f}\u00d7"
