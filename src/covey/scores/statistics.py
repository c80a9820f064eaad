"""Several seeds: mean, standard deviation, and whether a difference is more than noise."""

from __future__ import annotations

import math
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

    Where repetitions are random splits of one set, their training rows overlap, so their scores are not independent and
    vary less than they should. Then the variance is enlarged as Nadeau and Bengio (2003) propose.

    Args:
        difference: mean of (this - other).
        low, high: its 95 % confidence interval, None if not tested.
        p: the two-sided p-value, None if not tested. Not corrected for the number of comparisons.
        verdict: "higher" or "lower" where p < 0.05, else "within noise"; "not tested" below two shared seeds.
        seeds: how many seeds both have.
        overlap: test over training samples where repetitions are splits of one set, else 0.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    seeds: int
    overlap: float = 0.0

    @staticmethod
    def shrinking(seeds: int, overlap: float) -> float:
        """The deviation of a mean over the deviation of what it is the mean of."""
        return math.sqrt(1 / seeds + overlap)


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation over seeds."""
    if not values:
        raise EvaluationError("summary: expected one value or more, got none")
    deviation = stdev(values) if len(values) > 1 else None
    return Summary(fmean(values), deviation, len(values))


def compare(this: dict[int, float], other: dict[int, float], *, overlap: float = 0.0) -> Comparison:
    """Paired comparison of one score by seed, {seed: value}, over the seeds in both.

    Args:
        this: of one method.
        other: of the other.
        overlap: test over training samples where a seed is a random split of one set; see `Comparison`.
    """
    shared = sorted(this.keys() & other.keys())
    if not shared:
        raise EvaluationError(
            f"compare: no seed in common, {sorted(this)} and {sorted(other)}: run both methods with the same "
            "seeds"
        )
    differences = [this[seed] - other[seed] for seed in shared]
    if not all(map(math.isfinite, differences)):
        seed = next(s for s, d in zip(shared, differences, strict=True) if not math.isfinite(d))
        raise EvaluationError(
            f"compare: scores are finite numbers; seed {seed} has {this[seed]} and {other[seed]}"
        )
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return Comparison(mean, None, None, None, "not tested", count, overlap)
    deviation = stdev(differences)
    if deviation <= ROUNDING * abs(mean):
        # All differences are equal: t is undefined at 0 / 0 and infinite elsewhere.
        p = 1.0 if mean == 0 else 0.0
        return Comparison(mean, mean, mean, p, _verdict(p, mean), count, overlap)
    t = load("scipy.stats").t
    freedom = count - 1
    error = deviation * Comparison.shrinking(count, overlap)
    reach = error * float(t.ppf(1 - SIGNIFICANCE / 2, freedom))
    p = 2 * float(t.sf(abs(mean) / error, freedom))
    return Comparison(mean, mean - reach, mean + reach, p, _verdict(p, mean), count, overlap)


def _verdict(p: float, difference: float) -> Verdict:
    if p >= SIGNIFICANCE:
        return "within noise"
    return "higher" if difference > 0 else "lower"
