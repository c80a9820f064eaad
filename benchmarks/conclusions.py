"""What follows from the scores of "Does it work?": which method is worth its cost, and which to take for a budget.

A method is held against a single network of the *same* multiply-adds, read off the curve of single networks of three
widths, seed by seed. A gain counts if a paired t-test over seeds tells it from chance; one seed cannot tell anything.
Of many tests some find a difference by chance alone, so the page says how many would, and what withstands Holm's
correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, nan
from statistics import fmean, stdev

import numpy as np
from result_rows import WORDS, Row, markdown, origin, read, rows, waiting

from covey.scores.statistics import SIGNIFICANCE, Comparison, compare

BEYOND = 1.05  # times the widest single network's multiply-adds, a method is off the curve
MARK = " †"
AUROC = ("scores", "ood", "mean", "entropy", "auroc")


@dataclass(frozen=True)
class Score:
    """A score by which methods are judged.

    Args:
        words: its name on the page.
        path: where a run has it.
        sign: 1 if more is better, -1 if less.
        scale: what it is multiplied with on the page.
        digits: how many are printed.
    """

    words: str
    path: tuple[str, ...]
    sign: int = 1
    scale: float = 1.0
    digits: int = 1


SCORES = (
    Score("NLL", ("scores", "ensemble", "nll"), sign=-1, digits=3),
    Score("accuracy", ("scores", "ensemble", "accuracy"), scale=100),
    Score("OOD AUROC", AUROC, scale=100),
)


def verdicts(name: str) -> str:
    """Every method's gain over a single network of the same multiply-adds, and what of it is more than chance."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = rows(found)
    if len(_widths(table)) < 2:
        return waiting(name)
    judged = [row for label, row in table.items() if not label.startswith("single")]
    judged.sort(key=lambda row: -_mean(gains(row, table, SCORES[0])))
    widest = _widths(table)[-1].mean("cost", "multiply_adds")
    lines = []
    tests: dict[str, Comparison] = {}
    for row in judged:
        called = WORDS.get(row.label, row.label)
        each = {score.words: gains(row, table, score) for score in SCORES}
        for words, gained in each.items():
            if len(gained) > 1:
                tests[f"{called} ({words})"] = tested(gained)
        cells = [_gain(each[score.words], score) for score in SCORES]
        mark = MARK if row.mean("cost", "multiply_adds") > BEYOND * widest else ""
        lines.append([called + mark, str(len(row.runs)), *cells, _verdict(each)])
    headings = ["method", "seeds", *(f"{score.words} gained" for score in SCORES), "beyond chance"]
    off = f"{MARK.strip()} needs more multiply-adds than the widest single network, which it is held against."
    return "\n\n".join([markdown(headings, lines), f"{off} {_many(tests)}", origin(found)])


def tested(gained: list[float]) -> Comparison:
    """A paired t-test of gains over seeds against none."""
    return compare(dict(enumerate(gained)), dict.fromkeys(range(len(gained)), 0.0))


def _many(tests: Mapping[str, Comparison]) -> str:
    """How many tests there were, how many found something, and what is left if all are to be right at once."""
    count = len(tests)
    found = sum((test.p or 0.0) < SIGNIFICANCE for test in tests.values())
    left = holm({name: test.p or 0.0 for name, test in tests.items()})
    words = {"higher": "better", "lower": "worse"}
    kept = ", ".join(f"{name}, {words.get(tests[name].verdict, '')}" for name in left) or "nothing"
    return (
        f"Of {count} tests at {100 * SIGNIFICANCE:.0f} %, {found} tell a difference; chance alone would let "
        f"{count * SIGNIFICANCE:.0f} do so. Corrected for their number (Holm), so that all at once are right: {kept}."
    )


def holm(p_values: Mapping[str, float]) -> list[str]:
    """The tests that withstand Holm's correction: the least p of n against 5 % / n, the next against 5 % / (n - 1)."""
    kept = []
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] >= SIGNIFICANCE / (len(p_values) - rank):
            break
        kept.append(name)
    return kept


def gains(row: Row, table: Mapping[str, Row], score: Score) -> list[float]:
    """By how much a method beats a single network of its multiply-adds, seed by seed; positive is better."""
    cost = row.mean("cost", "multiply_adds")
    found = []
    for run in row.runs:
        own = Row("", [run]).mean(*score.path)
        base = _on_the_curve(table, score, cost, run["repeat"])
        if own == own and base == base:  # both are known
            found.append(score.sign * score.scale * (own - base))
    return found


def _widths(table: Mapping[str, Row]) -> list[Row]:
    singles = [row for label, row in table.items() if label.startswith("single")]
    return sorted(singles, key=lambda row: row.mean("cost", "multiply_adds"))


def _on_the_curve(table: Mapping[str, Row], score: Score, cost: float, repeat: int) -> float:
    """What a single network of this many multiply-adds would score; the widest stands for all that is wider.

    A curve of which a width is missing for this seed would be another one: then it is not known.
    """
    costs, scores = [], []
    for row in _widths(table):
        same = [run for run in row.runs if run["repeat"] == repeat]
        if not same:
            return nan
        costs.append(log2(row.mean("cost", "multiply_adds")))
        scores.append(Row("", same).mean(*score.path))
    return float(np.interp(log2(cost), costs, scores)) if costs else nan


def _mean(found: list[float]) -> float:
    return fmean(found) if found else nan


def _gain(found: list[float], score: Score) -> str:
    if not found:
        return "-"
    mean = f"{fmean(found):+.{score.digits}f}"
    return mean if len(found) == 1 else f"{mean} ± {stdev(found):.{score.digits}f}"


def _verdict(each: Mapping[str, list[float]]) -> str:
    if all(len(found) < 2 for found in each.values()):
        return "one seed cannot tell"
    better = [words for words, found in each.items() if sure(found) > 0]
    worse = [words for words, found in each.items() if sure(found) < 0]
    parts = [f"better in {', '.join(better)}"] if better else []
    parts += [f"worse in {', '.join(worse)}"] if worse else []
    return "; ".join(parts) or "nothing"


def sure(found: list[float]) -> int:
    """1 or -1 where a paired t-test tells a difference from chance; 0 where it does not, or cannot."""
    if len(found) < 2:
        return 0
    return {"higher": 1, "lower": -1}.get(tested(found).verdict, 0)


# --- one question, asked before the runs ------------------------------------------------------------------------

ASKED = (
    *SCORES,
    Score("ECE", ("scores", "ensemble", "ece"), sign=-1, digits=3),
    Score("error, corrupted", ("scores", "robustness", "mean_corruption_error"), sign=-1, scale=100),
)


def confirmed(name: str, method: str) -> str:
    """A method against the single network on seeds that nothing was chosen by: every score with its interval."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = rows(found)
    if not {"single", method} <= table.keys():
        return waiting(name)
    lines = []
    for score in ASKED:
        this, base = (_by_seed(table[label], score) for label in (method, "single"))
        if this.keys().isdisjoint(base):
            continue
        test = compare(this, base)
        interval = "-"
        if test.low is not None and test.high is not None:
            interval = f"{test.low:+.{score.digits}f} to {test.high:+.{score.digits}f}"
        p = "-" if test.p is None else f"{test.p:.1e}"
        means = [f"{fmean(each.values()):.{score.digits}f}" for each in (base, this)]
        lines.append(
            [score.words, *means, f"{test.difference:+.{score.digits}f}", interval, p, str(test.seeds)]
        )
    headings = ["score", "single network", method, "difference", "95 % interval", "p", "seeds"]
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def promised(name: str, method: str) -> str:
    """What the question asked beforehand came to, in two sentences."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = rows(found)
    single, own = table["single"], table[method]
    tests = {score.words: compare(_by_seed(own, score), _by_seed(single, score)) for score in ASKED}
    nll, ece = (("scores", "ensemble", score) for score in ("nll", "ece"))
    lower = 100 * (1 - own.mean(*nll) / single.mean(*nll))
    error, before = (100 * row.mean(*ece) for row in (own, single))
    accuracy, outliers = (tests[words].difference for words in ("accuracy", "OOD AUROC"))
    costs = [own.mean("cost", cost) / single.mean("cost", cost) for cost in ("stored", "multiply_adds")]
    chance = [words for words, test in tests.items() if test.verdict == "within noise"]
    gains = f"{accuracy:+.1f} points of accuracy and {outliers:+.1f} of AUROC against outliers"
    prices = f"{costs[0]:.2f} times its parameters and {costs[1]:.2f} times its multiply-adds"
    told = (
        f"Over {len(own.runs)} seeds {method} has a {lower:.0f} % lower NLL than the single network, a calibration "
        f"error of {error:.1f} % instead of {before:.1f} %, {gains}, with {prices}."
    )
    return (
        f"{told} Within chance: {', '.join(chance) or 'nothing'}. `{found['command']}`, {found['written']}."
    )


def _by_seed(row: Row, score: Score) -> dict[int, float]:
    """A score as the page prints it, by seed; runs that do not have it are left out."""
    found = {}
    for run in row.runs:
        for value in Row("", [run]).values(*score.path):
            found[run["repeat"]] = score.scale * value
    return found


# --- which to take ----------------------------------------------------------------------------------------------

ONE, FOUR = 1.1, 4.1  # networks, and a little for what members add
BUDGETS = {
    "one network's memory and multiply-adds": (ONE, ONE),
    "one network's memory, four networks' multiply-adds": (ONE, FOUR),
    "four networks' memory, one network's multiply-adds": (FOUR, ONE),
    "four networks' memory and multiply-adds": (FOUR, FOUR),
}


def budgets(name: str) -> str:
    """For each budget the methods with the best NLL in it, and the best single network that it can pay for."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = rows(found)
    lines = []
    for words, (stored, work) in BUDGETS.items():
        within = [row for row in table.values() if _fits(row, table["single"], stored, work)]
        within.sort(key=lambda row: row.mean(*SCORES[0].path))
        ensembles = [_named(row) for row in within if not row.label.startswith("single")]
        singles = [_named(row) for row in within if row.label.startswith("single")]
        lines.append([words, *(ensembles + ["-"] * 3)[:3], singles[0]])
    headings = ["what prediction may cost", "best NLL", "second", "third", "best single network"]
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def _fits(row: Row, single: Row, stored: float, work: float) -> bool:
    ratios = [row.mean("cost", cost) / single.mean("cost", cost) for cost in ("stored", "multiply_adds")]
    return ratios[0] <= stored and ratios[1] <= work


def _named(row: Row) -> str:
    scores = f"{row.mean(*SCORES[0].path):.3f}, {100 * row.mean(*SCORES[1].path):.1f} %"
    return f"{WORDS.get(row.label, row.label)} ({scores})"
