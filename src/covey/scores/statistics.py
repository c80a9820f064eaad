"""Several seeds: mean, standard deviation, and whether a difference is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from covey.errors import EvaluationError
from covey.extras import load

SIGNIFICANCE = 0.05
ROUNDING = 1e-12
"""Differences over seeds that spread by less than this share of their mean are all the same."""

Verdict = Literal["higher", "lower", "within noise", "not tested"]


@dataclass(frozen=True)
class Summary:
    """A score over seeds: its mean and sample standard deviation (n - 1); one seed has no deviation."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """Whether two methods differ by more than noise: a paired t-test over the seeds that both have.

    Args:
        difference: mean of (this - other).
        low, high: its 95 % confidence interval, None if not tested.
        p: the two-sided p-value, None if not tested. Not corrected for the number of comparisons.
        verdict: "higher" or "lower" where p < 0.05, else "within noise"; "not tested" below two shared seeds.
        seeds: how many seeds both have.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    seeds: int


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation over seeds."""
    if not values:
        raise EvaluationError("summary: expected one value or more, got none")
    deviation = stdev(values) if len(values) > 1 else None
    return Summary(fmean(values), deviation, len(values))


def compare(this: dict[int, float], other: dict[int, float]) -> Comparison:
    """Paired comparison of one score by seed, {seed: value}, over the seeds in both."""
    shared = sorted(this.keys() & other.keys())
    if not shared:
        raise EvaluationError(
            f"compare: no seed in common, {sorted(this)} and {sorted(other)}: run both methods with the same "
            "seeds"
        )
    differences = [this[seed] - other[seed] for seed in shared]
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return Comparison(mean, None, None, None, "not tested", count)
    if stdev(differences) <= ROUNDING * abs(mean):
        # All differences are equal: t is undefined at 0 / 0 and infinite elsewhere.
        p = 1.0 if mean == 0 else 0.0
        return Comparison(mean, mean, mean, p, _verdict(p, mean), count)
    ttest_rel = load("scipy.stats").ttest_rel

    test = ttest_rel([this[seed] for seed in shared], [other[seed] for seed in shared])
    interval = test.confidence_interval(1 - SIGNIFICANCE)
    p = float(test.pvalue)
    return Comparison(mean, float(interval.low), float(interval.high), p, _verdict(p, mean), count)


def _verdict(p: float, difference: float) -> Verdict:
    if p >= SIGNIFICANCE:
        return "within noise"
    return "higher" if difference > 0 else "lower"
