"""The report's opening: which method to take for which purpose, at which cost, and how sure that is.

A method is taken if no cheaper one is within noise of the best. Noise is judged by a paired t-test over
seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .results import MethodRuns, Results
from .table import COSTS, SCORES, Column, best, times, verdict, written

GOALS = (
    ("For accuracy", ("accuracy", "rmse", "bits_per_character")),
    ("For calibration", ("nll", "gaussian_nll")),
    ("For detecting out-of-distribution inputs", ("auroc",)),
    ("For robustness to corruption", ("mean_corruption_error",)),
)


UNSTEADY = 0.3
"""Above this share of the median between quartiles, times say more of the machine than of the method."""


@dataclass(frozen=True)
class Answer:
    """One purpose: the method to take, the evidence, the cost and how sure it is."""

    purpose: str
    method: str
    evidence: str
    cost: str
    sure: str


def answers(results: Results) -> list[Answer]:
    """An answer for each purpose that the runs have scores for."""
    columns = {column.key: column for column in SCORES}
    found = []
    for purpose, keys in GOALS:
        key = next((k for k in keys if results.has(k)), None)
        if key is not None:
            found.append(_answer(results, purpose, columns[key]))
    if results.has("latency"):
        found.append(_fastest(results))
    return found


def _answer(results: Results, purpose: str, column: Column) -> Answer:
    top = best(results, column)
    assert top is not None
    close = [m for m in results.methods if verdict(results, m, top, column) == "within noise"]
    # A cheaper method must also do as well against the baseline as the best one does.
    gain = verdict(results, top, results.baseline, column)
    cheaper = [m for m in close if _price(m) < _price(top)]
    cheaper = [
        m for m in cheaper if gain != "better" or verdict(results, m, results.baseline, column) == gain
    ]
    taken = min(cheaper, key=_price) if cheaper else top
    evidence = _evidence(results, taken, column)
    if taken is not top:
        own = top.summary(column.key)
        assert own is not None
        evidence += f". {top.name} has the best mean ({_with_unit(column, own)}), but within noise of this"
    rivals = [m.name for m in close if m is not taken and m is not top]
    if rivals:
        evidence += f". Also within noise of the best: {', '.join(rivals)}"
    return Answer(purpose, taken.name, evidence, _cost(results, taken), _sure(results, taken, top, column))


def _evidence(results: Results, method: MethodRuns, column: Column) -> str:
    own, base = method.summary(column.key), results.baseline.summary(column.key)
    assert own is not None
    text = f"{column.title} {_with_unit(column, own)}"
    if base is None or method.name == results.baseline.name:
        return text
    return f"{text}, against {_with_unit(column, base)} for {results.baseline.name}"


def _with_unit(column: Column, value: object) -> str:
    text = written(column, value)  # type: ignore[arg-type]
    return f"{text} {column.unit}".strip()


def _sure(results: Results, taken: MethodRuns, top: MethodRuns, column: Column) -> str:
    base = results.baseline
    if taken.name == base.name and taken is not top:
        other, against = top, taken
    else:
        other, against = taken, base
    if other.name == against.name:
        rivals = [m for m in results.methods if m.name != taken.name]
        if not rivals:
            return "Only one method was run, so there is nothing to compare it with."
        seeds = results.seeds
        return "One seed: not tested." if seeds < 2 else f"Best mean of {len(results.methods)} methods."
    comparison = results.against(other, against, column.key)
    if comparison is None:
        return "No seed in common, so the difference was not tested."
    if comparison.p is None:
        return "One seed: the difference was not tested, so take it as a hint."
    low, high = (v * column.scale for v in (comparison.low or 0.0, comparison.high or 0.0))
    digits = column.digits
    unit = f" {column.unit}" if column.unit else ""
    words = {"within noise": "within noise", "higher": "more than noise", "lower": "more than noise"}
    return (
        f"{other.name} minus {against.name}: {comparison.difference * column.scale:+.{digits}f}{unit} "
        f"(95 % interval {low:+.{digits}f} to {high:+.{digits}f}, {_p(comparison.p)}, "
        f"{comparison.seeds} seeds): {words[comparison.verdict]}."
    )


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _fastest(results: Results) -> Answer:
    latency = next(column for column in COSTS if column.key == "latency")
    timed = [m for m in results.methods if m.values("latency")]
    ensembles = [m for m in timed if m.members > 1] or timed
    quick = min(ensembles, key=lambda m: m.summary("latency").mean)  # type: ignore[union-attr]
    own = quick.summary("latency")
    assert own is not None
    costs = [run.cost for method in timed for run in method.runs if run.cost is not None]
    first = next(run.cost for run in quick.runs if run.cost is not None)
    evidence = f"{written(latency, own)} ms for a batch of {first.batch}, the fastest "
    evidence += "of the ensembles" if quick.members > 1 else "of the methods"
    deep = results.deep_ratio(quick, "latency")
    if deep is not None:
        evidence += f", {times(deep)} the time of {quick.members} single networks"
    threads = f"{first.threads} thread{'s' if first.threads != 1 else ''}"
    sure = (
        f"Median {'CPU ' if first.clock == 'cpu' else ''}time of repeated calls on this machine, {threads}."
    )
    unsteady = max(cost.spread / cost.latency for cost in costs)
    if unsteady > UNSTEADY:
        sure += f" Calls varied by up to {100 * unsteady:.0f} %: the machine was busy, so measure again."
    return Answer("For speed", quick.name, evidence, _cost(results, quick), sure)


def _cost(results: Results, method: MethodRuns) -> str:
    if method.name == results.baseline.name:
        return "The baseline itself: nothing more to pay."
    parts = []
    for key, word in (("stored", "parameters"), ("multiply_adds", "multiply-adds"), ("latency", "latency")):
        ratio = results.ratio(method, key)
        if ratio is not None:
            parts.append(f"{times(ratio)} the {word}")
    return f"{', '.join(parts)} of {results.baseline.name}." if parts else "Cost was not measured."


def _price(method: MethodRuns) -> tuple[float, float]:
    """Methods ordered by multiply-adds to two digits, then by parameters; members stand in for both."""
    adds, stored = method.summary("multiply_adds"), method.summary("stored")
    work = float(f"{adds.mean:.1e}") if adds else float(method.members)
    return work, stored.mean if stored else float(method.members)
