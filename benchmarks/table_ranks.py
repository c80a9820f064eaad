"""Tables of data: every method's score on every set, its mean rank, and on how many sets it beats the single network.

The splits of one set share most of their rows, so their scores are not independent, and a plain t-test would find
differences too easily. The variance is enlarged by the share of test to training rows (Nadeau and Bengio, 2003).
Methods are ranked on the splits that all of them were run on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from result_rows import Row, markdown, origin, read, rows, waiting
from scipy import stats

from covey.scores.statistics import compare
from covey.tables import counted

LIKELIHOOD = {
    "promise-tables-small": "gaussian_nll",
    "promise-tables-large": "gaussian_nll",
    "promise-tables-protein": "gaussian_nll",
    "promise-tables-classes": "nll",
}
ACCURACY = {"gaussian_nll": "rmse", "nll": "accuracy"}
OVERLAP = {
    "gaussian_nll": 0.1 / 0.81,
    "nll": 0.2 / 0.7,
}  # test over training rows; the rest is for validation
BOOSTING = "promise-tables-boosting"
WORDS = {"gaussian_nll": "NLL", "nll": "NLL", "rmse": "RMSE", "accuracy": "accuracy"}

Sets = dict[str, dict[str, Row]]
"""Rows by the name of the data and the method."""


def tables() -> str:
    """A table of scores per set for accuracy and one for likelihood, each with ranks."""
    sets: Sets = {}
    likelihoods: dict[str, str] = {}
    origins = []
    for name, likelihood in LIKELIHOOD.items():
        for data in _add(name, sets, origins):
            likelihoods[data] = likelihood
    _add(BOOSTING, sets, origins)
    compared = {data: sets[data] for data in likelihoods if "single" in sets[data] and len(sets[data]) > 2}
    if not compared:
        return "\n\n".join(origins)
    by_accuracy = {data: ACCURACY[likelihoods[data]] for data in compared}
    by_likelihood = {data: likelihoods[data] for data in compared}
    return "\n\n".join([_table(compared, by_accuracy), _table(compared, by_likelihood), *origins])


def _add(name: str, sets: Sets, origins: list[str]) -> list[str]:
    """Add a file's rows to the sets, and where they come from to the origins; returns the names of its sets."""
    found = read(name)
    if found is None:
        origins.append(waiting(name))
        return []
    origins.append(origin(found))
    names = []
    for label, row in rows(found).items():
        method, _, data = label.rpartition(" data=")
        sets.setdefault(data, {})[method.partition(" ")[0]] = row
        names.append(data)
    return names


def _table(sets: Sets, scores: Mapping[str, str]) -> str:
    methods = list(dict.fromkeys(method for by_method in sets.values() for method in by_method))
    lines = []
    for data, by_method in sets.items():
        score = scores[data]
        digits = _digits(by_method["single"], score)
        cells = [_cell(by_method.get(method), score, digits) for method in methods]
        lines.append([f"{data.removeprefix('uci/')}, {WORDS[score]}", *cells])
    whole = {data: by_method for data, by_method in sets.items() if len(by_method) == len(methods)}
    if whole:  # a rank among some of the methods says nothing beside one among all
        lines.append(
            [
                f"**mean rank, {counted(len(whole), 'set')} (± standard error)**",
                *_ranks(whole, scores, methods),
            ]
        )
    lines.append(["**better, worse than single**", *(_counted(sets, scores, method) for method in methods)])
    return markdown(["set and score", *methods], lines)


def _digits(single: Row, score: str) -> int:
    """How many a row of the table has: an error's depend on the unit of what is predicted."""
    if score == "rmse":
        mean = single.mean("scores", "ensemble", score)
        return max(2, 1 - math.floor(math.log10(mean)))
    return {"accuracy": 1, "gaussian_nll": 2, "nll": 3}[score]


def _cell(row: Row | None, score: str, digits: int) -> str:
    if row is None:
        return "-"
    return row.cell("scores", "ensemble", score, digits=digits, percent=score == "accuracy")


def _sign(score: str) -> float:
    """-1 where more is better: all are made to be lower the better."""
    return -1.0 if score == "accuracy" else 1.0


def _ranks(sets: Sets, scores: Mapping[str, str], methods: Sequence[str]) -> list[str]:
    """The mean over sets of every method's rank, 1 being best, with its standard error."""
    ranks: dict[str, list[float]] = {method: [] for method in methods}
    for data, by_method in sets.items():
        found = [_by_split(row, scores[data]) for row in by_method.values()]
        shared = set.intersection(*(set(each) for each in found))
        means = [fmean(each[split] for split in shared) for each in found]
        places = stats.rankdata(means)  # equal ones share a rank
        for method, place in zip(by_method, places, strict=True):
            ranks[method].append(float(place))
    cells = []
    for method in methods:
        each = ranks[method]
        error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
        cells.append(f"**{fmean(each):.1f} ± {error:.1f}**")
    return cells


def _counted(sets: Sets, scores: Mapping[str, str], method: str) -> str:
    """On how many sets a method is better and worse than the single network beyond chance, of how many."""
    if method == "single":
        return "-"
    verdicts = []
    for data, by_method in sets.items():
        if method in by_method:
            verdicts.append(_beyond_chance(by_method[method], by_method["single"], scores[data]))
    return f"{verdicts.count(1)}, {verdicts.count(-1)} of {len(verdicts)}"


def _beyond_chance(row: Row, single: Row, score: str) -> int:
    """1 or -1 where a corrected paired t-test over splits tells a method from the single network, else 0."""
    overlap = OVERLAP["nll" if score in ("accuracy", "nll") else "gaussian_nll"]
    found = compare(_by_split(row, score), _by_split(single, score), overlap=overlap)
    return {"lower": 1, "higher": -1}.get(found.verdict, 0)


def _by_split(row: Row, score: str) -> dict[int, float]:
    """A score by split, lower being better."""
    return {run["repeat"]: _sign(score) * run["scores"]["ensemble"][score] for run in row.runs}
