"""A comparison in a terminal's width: the main scores and costs as a table, and what was gained at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from covey.tables import text_table

from .answers import seeds_needed
from .results import MethodRuns, Results, Run, gather
from .table import SCORES, Column, shown, times, verdict, written

MAIN = (
    "miou", "mean_ap", "accuracy", "pinball", "level_error", "rmse", "gaussian_nll", "bits_per_character", "nll", "ece",
    "auroc",
)  # fmt: skip
"""The scores that are shown; the report has them all."""

GAINS = ("nll", "gaussian_nll", "bits_per_character", "pinball")
"""What a gain is judged by: a proper score, which accuracy and calibration both enter. The first that the runs have."""

SIGNS = {"better": " +", "worse": " -"}


def brief(runs: Sequence[Run], *, baseline: str | None = None) -> str:
    """The main scores and costs of all runs as a table, and below it one sentence on what was gained at what cost."""
    results = gather(runs, baseline)
    return f"{_caption(results)}\n\n{_table(results)}\n\n{_gained(results)}"


def _caption(results: Results) -> str:
    first = results.methods[0]
    seeds = ", ".join(str(run.seed) for run in first.runs)
    samples = first.runs[0].evaluation.about["samples"]
    text = f"{samples:,} test samples; mean ± standard deviation over the seeds {seeds}"
    if len(first.runs) == 1:
        text = f"{samples:,} test samples; one seed ({seeds})"
    if results.alone:
        return f"{text}."
    return f"{text}. + and -: better or worse than {results.baseline.name} by more than noise."


def _table(results: Results) -> str:
    columns = [column for column in shown(results, SCORES) if column.key in MAIN]
    costs = [(key, head) for key, head in (("stored", "size"), ("multiply_adds", "work")) if results.has(key)]
    headings = ["method", "members", *(column.head for column in columns), *(head for _, head in costs)]
    rows = []
    for method in results.methods:
        row = [method.name, str(method.members)]
        for column in columns:
            row.append(_score(results, method, column))
        for key, _ in costs:
            ratio = 1.0 if method.name == results.reference.name else results.ratio(method, key)
            row.append("" if ratio is None else times(ratio))
        rows.append(row)
    table = text_table(headings, rows, right=headings[1:])
    if costs and not results.alone:
        base = results.reference.name
        table += (
            f"\nsize: parameters and buffers stored, work: multiply-adds of an answer, both over {base}'s"
        )
    return table


def _score(results: Results, method: MethodRuns, column: Column) -> str:
    value = method.summary(column.key)
    if value is None:
        return ""
    sign = SIGNS.get(verdict(results, method, results.baseline, column), "  ")
    return written(column, value) + sign


def _gained(results: Results) -> str:
    """What the cheapest method gains that is better than the baseline, and what the best one does."""
    base = results.baseline
    column = next((column for column in shown(results, SCORES) if column.key in GAINS), None)
    if results.alone or column is None:
        return "Nothing was compared."
    if results.seeds < 2:
        return "One seed cannot tell a gain from chance: give --seeds 0 1 2 or more."
    better = []
    for method in results.methods:
        if verdict(results, method, base, column) == "better":
            better.append(method)
    if not better:
        return _undecided(results, column)
    cheapest = min(better, key=lambda method: results.ratio(method, "stored") or float(method.members))
    sentence = f"Gained: {_gain(results, cheapest, column)}."
    best = min(better, key=lambda method: _mean(method, column))  # lower is better for all of GAINS
    if best is not cheapest:
        sentence += f" Best: {_gain(results, best, column)}."
    return sentence


def _undecided(results: Results, column: Column) -> str:
    """That nothing is more than noise; and where a method is ahead in every seed, how many seeds would tell."""
    base, noise = results.baseline, f"the noise of {results.seeds} seeds"
    sentence = f"No method is better than {base.name} in {column.title} by more than {noise}."
    ahead = [
        method
        for method in results.methods
        if method.name != base.name and _always_lower(method, base, column)
    ]
    if not ahead:
        return sentence
    cheapest = min(ahead, key=lambda method: results.ratio(method, "stored") or float(method.members))
    comparison = results.against(cheapest, base, column.key)
    needed = None if comparison is None else seeds_needed(comparison)
    many = "more" if needed is None or needed <= results.seeds else f"about {needed}"
    return f"{sentence} In each of them {_gain(results, cheapest, column)}; {many} seeds would tell."


def _always_lower(method: MethodRuns, base: MethodRuns, column: Column) -> bool:
    """Whether a method has the lower score in every seed that both have."""
    own, others = method.values(column.key), base.values(column.key)
    shared = own.keys() & others.keys()
    return bool(shared) and all(own[seed] < others[seed] for seed in shared)


def _gain(results: Results, method: MethodRuns, column: Column) -> str:
    base = results.baseline
    share = 1 - _mean(method, column) / _mean(base, column)
    percent = f"{100 * share:.0f}"
    article = "an" if percent.startswith("8") or percent in ("11", "18") else "a"
    text = f"{method.name} has {article} {percent} % lower {column.title} than {base.name}"
    if _mean(base, column) <= 0:  # a share of a density's logarithm means nothing
        text = f"{method.name} has {column.title} {_mean(method, column):.3f}, {base.name} {_mean(base, column):.3f}"
    accuracy = next((one for one in SCORES if one.key == "accuracy"), None)
    if accuracy is not None and results.has("accuracy"):
        points = 100 * (_mean(method, accuracy) - _mean(base, accuracy))
        sure = (
            "" if verdict(results, method, base, accuracy) in ("better", "worse") else ", which may be chance"
        )
        text += f" and {abs(points):.1f} points {'more' if points >= 0 else 'less'} accuracy{sure}"
    prices = []
    for key, word in (("stored", "parameters"), ("multiply_adds", "multiply-adds")):
        ratio = results.ratio(method, key)
        if ratio is not None:
            prices.append(f"{times(ratio)} the {word}")
    if not prices:
        return text
    reference = results.reference.name
    of_what = "" if reference == base.name else f" of {reference}"
    return f"{text}, for {' and '.join(prices)}{of_what}"


def _mean(method: MethodRuns, column: Column) -> float:
    found = method.summary(column.key)
    assert found is not None
    return found.mean
