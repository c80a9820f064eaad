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


def _percent(key: str, title: str, better: Literal["higher", "lower"], meaning: str) -> Column:
    return Column(key, title, better, meaning, 2, 100, "%")


SCORES = (
    _percent("accuracy", "Accuracy", "higher", "share of test samples answered correctly"),
    _percent("top5", "Top-5", "higher", "share of test samples whose label is among the five most probable"),
    Column("rmse", "RMSE", "lower", "root of the mean squared error, in the target's unit"),
    Column("mae", "MAE", "lower", "mean absolute error, in the target's unit"),
    Column("gaussian_nll", "NLL", "lower", "negative log-density of the targets, nats"),
    Column("interval_error", "Interval error", "lower", "mean |expected - observed| coverage of intervals"),
    Column(
        "bits_per_character", "Bits per character", "lower", "negative log2-likelihood of the next symbol"
    ),
    Column("nll", "NLL", "lower", "negative log-likelihood of the labels, nats"),
    Column("brier", "Brier", "lower", "squared distance of probabilities to the one-hot label, 0 to 2"),
    _percent("ece", "ECE", "lower", "expected calibration error, 15 bins of equal width"),
    _percent("adaptive_ece", "Adaptive ECE", "lower", "calibration error, 15 bins of equally many samples"),
    _percent("auroc", "OOD AUROC", "higher", "by predictive entropy, mean over the OOD sets"),
    _percent("fpr95", "OOD FPR95", "lower", "OOD samples let in when 95 % of test samples are, by entropy"),
    Column("aurc", "AURC", "lower", "area under the risk-coverage curve, by confidence"),
    _percent("mean_corruption_error", "mCE", "lower", "mean error over 15 corruptions at 5 severities"),
)
COSTS = (
    Column("stored", "Parameters", "lower", "numbers stored, buffers included", 3),
    Column("multiply_adds", "Multiply-adds", "lower", "for one sample, all members", 3),
    Column("peak_bytes", "Peak memory", "lower", "bytes in tensors alive at once during an answer", 3),
    Column("latency", "Latency", "lower", "median milliseconds of a batch, measured", 3, 1000, "ms"),
    Column("training_seconds", "Training", "lower", "seconds of training", 1, 1, "s"),
)


def shown(results: Results, columns: tuple[Column, ...]) -> list[Column]:
    """The columns that any method has."""
    return [column for column in columns if results.has(column.key)]


def best(results: Results, column: Column) -> MethodRuns | None:
    """The method of best mean."""
    found = [(method, s.mean) for method in results.methods if (s := method.summary(column.key))]
    if not found:
        return None
    pick = max if column.better == "higher" else min
    return pick(found, key=lambda pair: pair[1])[0]


def verdict(results: Results, method: MethodRuns, other: MethodRuns, column: Column) -> str:
    """How `method` compares with `other`: "better", "worse", "within noise", "not tested" or ""."""
    if method.name == other.name:
        return ""
    comparison = results.against(method, other, column.key)
    if comparison is None:
        return ""
    if comparison.verdict in ("higher", "lower"):
        return "better" if comparison.verdict == column.better else "worse"
    return comparison.verdict


def number(column: Column, value: float) -> str:
    """A value as the table writes it, without its unit."""
    if column.key in ("stored", "multiply_adds", "peak_bytes"):
        return short(value) + ("B" if column.key == "peak_bytes" else "")
    if column.key == "latency":
        return f"{value * column.scale:.3g}"
    return f"{value * column.scale:.{column.digits}f}"


def written(column: Column, value: Summary) -> str:
    """Mean and, with several seeds, standard deviation."""
    text = number(column, value.mean)
    if value.std is None or column.key in ("stored", "multiply_adds", "peak_bytes"):
        return text
    if column.key == "latency":
        return f"{text} ± {value.std * column.scale:.2g}"
    return f"{text} ± {number(column, value.std)}"


def short(value: float) -> str:
    """A large number with three digits and a prefix.

    >>> short(25_557_032), short(4.09e9), short(512)
    ('25.6 M', '4.09 G', '512')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {prefix}"
    return f"{value:g}"


def times(ratio: float) -> str:
    """A ratio such as 4.0x."""
    return f"{ratio:.2f}\u00d7" if ratio < 1.95 else f"{ratio:.1f}\u00d7"
