"""Several seeds: mean, standard deviation, and whether a difference is more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from covey.errors import EvaluationError

SIGNIFICANCE = 0.05
Verdict = Literal["higher", "lower", "within noise", "not tested"]


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (n - 1) of a score over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """A paired t-test over the seeds that two methods share.

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
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


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
    from scipy.stats import t

    error = stdev(differences) / math.sqrt(count)
    # Differences equal up to rounding: t is undefined at 0 / 0 and infinite elsewhere.
    if error <= 1e-12 * max(1e-300, *(abs(d) for d in differences)):
        p = 1.0 if mean == 0 else 0.0
    else:
        p = float(2 * t.sf(abs(mean) / error, count - 1))
    reach = float(t.ppf(1 - SIGNIFICANCE / 2, count - 1)) * error
    verdict: Verdict = "within noise" if p >= SIGNIFICANCE else ("higher" if mean > 0 else "lower")
    return Comparison(mean, mean - reach, mean + reach, p, verdict, count)
