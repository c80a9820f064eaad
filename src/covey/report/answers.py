"""The report's opening: which method to take for which purpose, at which cost, and how sure that is.

A method is taken if no cheaper one is within noise of the best. Noise is judged by a paired t-test over seeds.
Few seeds let large differences pass for noise, so then the answer is that nothing is decided, and how many seeds would
decide: the least number at which the paired t-test at 5 % has a power of 80 %, if the differences between seeds go on
with the mean and the deviation that they have so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.extras import load
from covey.scores.cost import Cost
from covey.scores.statistics import ROUNDING, Comparison, Summary

from .results import MethodRuns, Results
from .table import COSTS, SCORES, Column, best, times, verdict, written

GOALS = (
    ("For accuracy", ("miou", "mean_ap", "accuracy", "rmse", "bits_per_character")),
    ("For calibration", ("nll", "gaussian_nll", "pinball")),
    ("For detecting out-of-distribution inputs", ("auroc",)),
    ("For robustness to corruption", ("mean_corruption_error",)),
)
"""Purposes, each with the scores that speak for it; the first that the runs have is used."""

PRICES = (("stored", "parameters"), ("multiply_adds", "multiply-adds"), ("latency", "latency"))
"""The costs that a card names."""

ENOUGH_SEEDS = 5
"""From so many on, a difference within noise is taken for none."""

TOO_FEW_SEEDS = 2
"""So few never decide against the best mean, however small the difference is."""

MOST_SEEDS = 20
"""A difference that needs more seeds than this to show is too small to wait for."""

POWER = 0.8
"""The chance of finding a difference that is there, at which seeds are enough."""

NUMBERS = {2: "two", 3: "three", 4: "four"}

UNSTEADY = 0.3
"""Above this share of the median between quartiles, times say more of the machine than of the method."""


@dataclass(frozen=True)
class Answer:
    """One purpose: the method to take, the evidence, the cost and how sure it is.

    Where the seeds are too few to choose, `decided` is False and `method` says "Undecided: ...".
    """

    purpose: str
    method: str
    evidence: str
    cost: str
    sure: str
    decided: bool = True


def answers(results: Results) -> list[Answer]:
    """An answer for each purpose that the runs have scores for."""
    found = []
    for purpose, keys in GOALS:
        column = _column(results, keys)
        if column is not None:
            found.append(_answer(results, purpose, column))
    if results.has("latency"):
        found.append(_fastest(results))
    return found


def _column(results: Results, keys: Sequence[str]) -> Column | None:
    for column in SCORES:
        if column.key in keys and results.has(column.key):
            return column
    return None


def _answer(results: Results, purpose: str, column: Column) -> Answer:
    top = best(results, column)
    assert top is not None
    close = []
    for method in results.methods:
        if verdict(results, method, top, column) == "within noise":
            close.append(method)
    taken = _cheapest(results, top, close, column)
    comparison = None if taken is top else results.against(top, taken, column.key)
    if comparison is not None and _too_early(comparison):
        return _undecided(results, purpose, top, taken, column, comparison)
    evidence = [_evidence(results, taken, column)]
    if taken is not top:
        mean = _value(top, column)
        evidence.append(f"{top.name} has the best mean ({mean}), but within noise of this")
    rivals = [method.name for method in close if method is not taken]
    if rivals:
        evidence.append(f"Also within noise of the best: {', '.join(rivals)}")
    return Answer(
        purpose,
        taken.name,
        ". ".join(evidence),
        _cost(results, taken),
        _sure(results, taken, top, column),
    )


def _cheapest(results: Results, top: MethodRuns, close: Sequence[MethodRuns], column: Column) -> MethodRuns:
    """The cheapest of the best method and those within noise of it.

    Where some of these are better than the baseline by more than noise, one of them: the best mean may be a wide guess,
    and a cheaper method that is hardly behind it a sure gain.
    """
    contenders = [top, *close]
    sure = [each for each in contenders if verdict(results, each, results.baseline, column) == "better"]
    return min(sure or contenders, key=_price)


def _too_early(comparison: Comparison) -> bool:
    """Whether there are too few seeds to take the cheaper of two methods that are within noise of each other."""
    if comparison.p is None or not comparison.difference or comparison.seeds >= ENOUGH_SEEDS:
        return False
    return comparison.seeds <= TOO_FEW_SEEDS or seeds_needed(comparison) is not None


def seeds_needed(comparison: Comparison, most: int = MOST_SEEDS) -> int | None:
    """How many seeds would show a difference, None if more than `most`.

    That is the least number of pairs at which a two-sided paired t-test at 5 % has a power of 80 %, if the mean and the
    standard deviation of the pairs' differences are those seen so far.
    """
    if comparison.low is None or comparison.high is None or not comparison.difference:
        return None
    stats = load("scipy.stats")
    seen, overlap = comparison.seeds, comparison.overlap
    reach = (comparison.high - comparison.low) / 2
    deviation = reach / Comparison.shrinking(seen, overlap) / stats.t.ppf(0.975, seen - 1)
    for seeds in range(2, most + 1):
        if _power(stats, abs(comparison.difference), deviation, seeds, overlap) >= POWER:
            return seeds
    return None


def _power(stats: Any, difference: float, deviation: float, seeds: int, overlap: float) -> float:
    """The chance that a paired t-test at 5 % finds a true difference with so many seeds."""
    if deviation <= ROUNDING * difference:
        return 1.0
    freedom = seeds - 1
    threshold = stats.t.ppf(0.975, freedom)
    shift = difference / deviation / Comparison.shrinking(seeds, overlap)
    # The share of the noncentral t distribution outside the threshold, on the side of the difference: the other side
    # has next to none of it.
    return float(stats.nct.sf(threshold, freedom, shift))


def _undecided(
    results: Results,
    purpose: str,
    top: MethodRuns,
    cheap: MethodRuns,
    column: Column,
    comparison: Comparison,
) -> Answer:
    """The best mean is ahead of a cheaper method, but with so few seeds that may be chance."""
    evidence = (
        f"{column.title} {_value(top, column)} for {top.name}, {_value(cheap, column)} for {cheap.name}"
    )
    needed = seeds_needed(comparison)
    many = f"more than {MOST_SEEDS}" if needed is None else f"about {needed}"
    return Answer(
        purpose,
        f"Undecided: {NUMBERS[comparison.seeds]} seeds cannot tell",
        evidence,
        f"{top.name}: {_cost(results, top)}",
        f"{top.name} minus {cheap.name}: {_difference(comparison, column)}. {many.capitalize()} seeds would tell: so "
        f"many give a paired t-test at 5 % a power of {100 * POWER:.0f} %, if mean and deviation of the differences "
        "stay as they are.",
        decided=False,
    )


def _price(method: MethodRuns) -> tuple[float, float]:
    """Methods ordered by multiply-adds to two digits, then by parameters; members stand in for both."""
    adds = method.summary("multiply_adds")
    stored = method.summary("stored")
    work = float(method.members)
    if adds is not None:
        work = float(f"{adds.mean:.1e}")
    size = float(method.members)
    if stored is not None:
        size = stored.mean
    return work, size


def _evidence(results: Results, method: MethodRuns, column: Column) -> str:
    base = results.baseline
    text = f"{column.title} {_value(method, column)}"
    if base.summary(column.key) is None or method.name == base.name:
        return text
    return f"{text}, against {_value(base, column)} for {base.name}"


def _value(method: MethodRuns, column: Column) -> str:
    """A method's mean with its unit."""
    return f"{written(column, _known(method, column.key))} {column.unit}".strip()


def _known(method: MethodRuns, key: str) -> Summary:
    found = method.summary(key)
    assert found is not None
    return found


def _sure(results: Results, taken: MethodRuns, top: MethodRuns, column: Column) -> str:
    """How the method taken compares with the baseline, or the baseline with the best that it was preferred to."""
    base = results.baseline
    first = taken
    if taken.name == base.name and taken is not top:
        first = top
    if first.name == base.name:
        return _unrivalled(results)
    comparison = results.against(first, base, column.key)
    if comparison is None:
        return "No seed in common, so the difference was not tested."
    if comparison.p is None:
        return "One seed: the difference was not tested, so take it as a hint."
    return f"{first.name} minus {base.name}: {_difference(comparison, column)}."


def _unrivalled(results: Results) -> str:
    """The baseline is the best, so there is no other to compare it with."""
    count = len(results.methods)
    if count == 1:
        return "Only one method was run, so there is nothing to compare it with."
    if results.seeds < 2:
        return "One seed: not tested."
    return f"Best mean of {count} methods."


def _difference(comparison: Comparison, column: Column) -> str:
    """A tested difference with its interval, in the column's unit."""
    assert comparison.p is not None
    mean = _signed(comparison.difference, column)
    low = _signed(comparison.low or 0.0, column)
    high = _signed(comparison.high or 0.0, column)
    unit = f" {column.unit}" if column.unit else ""
    p = "p < 0.001" if comparison.p < 0.001 else f"p = {comparison.p:.3f}"
    told = "within noise" if comparison.verdict == "within noise" else "more than noise"
    return f"{mean}{unit} (95 % interval {low} to {high}, {p}, {comparison.seeds} seeds): {told}"


def _signed(value: float, column: Column) -> str:
    return f"{value * column.scale:+.{column.digits}f}"


def _fastest(results: Results) -> Answer:
    timed = [method for method in results.methods if method.values("latency")]
    ensembles = [method for method in timed if method.members > 1]
    quick = min(ensembles or timed, key=lambda method: _known(method, "latency").mean)
    batch = _costs(quick)[0].batch
    latency = next(column for column in COSTS if column.key == "latency")
    evidence = f"{_value(quick, latency)} for a batch of {batch}"
    if not results.alone:
        group = "ensembles" if ensembles else "methods"
        evidence += f", the fastest of the {group}"
    return Answer("For speed", quick.name, evidence, _cost(results, quick), _steadiness(quick, timed))


def _steadiness(quick: MethodRuns, timed: Sequence[MethodRuns]) -> str:
    """How times were taken, and whether the machine let them be taken."""
    first = _costs(quick)[0]
    clock = "CPU time" if first.clock == "cpu" else "time"
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    text = f"Median {clock} of repeated calls on this machine, {threads}."
    unsteady = 0.0
    for method in timed:
        for cost in _costs(method):
            unsteady = max(unsteady, cost.spread / cost.latency)
    if unsteady > UNSTEADY:
        text += f" Calls varied by up to {100 * unsteady:.0f} %: the machine was busy, so measure again."
    return text


def _costs(method: MethodRuns) -> list[Cost]:
    return [run.cost for run in method.runs if run.cost is not None]


def _cost(results: Results, method: MethodRuns) -> str:
    """What a method costs against the single network; what is itself compared with, on its own."""
    reference = results.reference
    if results.alone or method.name == reference.name:
        own = _own_cost(method)
        return f"That of a single network. {own}" if method.members == 1 else own
    parts = []
    for key, word in PRICES:
        ratio = results.ratio(method, key)
        if ratio is not None:
            parts.append(f"{times(ratio)} the {word}")
    if not parts:
        return "Cost was not measured."
    return f"{', '.join(parts)} of {reference.name} in the same comparison."


def _own_cost(method: MethodRuns) -> str:
    parts = []
    for key, word in PRICES:
        column = next(column for column in COSTS if column.key == key)
        if method.summary(key) is not None:
            parts.append(f"{word} {_value(method, column)}")
    if not parts:
        return "Cost was not measured."
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
