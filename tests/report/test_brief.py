# ruff: noqa: RUF001
"""What `covey compare` prints: the table, and an honest sentence below it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from covey.report import Run
from covey.report.brief import brief


def only(runs: Sequence[Run], *names: str) -> list[Run]:
    return [run for run in runs if run.method in names]


def test_the_table_says_what_was_tested_and_what_it_costs(make_runs: Callable) -> None:
    text = brief(make_runs((0, 1, 2)))
    assert text.startswith(
        "120 test samples; mean ± standard deviation over the seeds 0, 1, 2. + and -: better"
    )
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["BatchEnsemble"][-2:] == ["1.10×", "4.0×"]
    assert rows["Single"][-2:] == ["1.00×", "1.00×"]


def test_the_sentence_names_the_cheapest_gain_and_the_best(make_runs: Callable) -> None:
    runs = make_runs((0, 1, 2))
    nll = {}
    for name in ("Single", "BatchEnsemble", "Deep <ensemble>"):
        values = [run.evaluation.headline["nll"] for run in runs if run.method == name]
        nll[name] = sum(values) / len(values)
    assert nll["Deep <ensemble>"] < nll["BatchEnsemble"]
    sentence = brief(runs).splitlines()[-1]
    share = round(100 * (1 - nll["BatchEnsemble"] / nll["Single"]))
    assert re.match(rf"Gained: BatchEnsemble has an? {share} % lower NLL than Single", sentence)
    assert "for 1.10× the parameters and 4.0× the multiply-adds. Best: Deep <ensemble> has a" in sentence


def test_no_gain_is_said(make_runs: Callable) -> None:
    runs = only(make_runs((0, 1, 2)), "Single")
    # the same network under another name, its seeds in another order: no better and no worse
    again = [replace(run, method="again", seed=(run.seed + 1) % 3) for run in runs]
    assert brief([*runs, *again]).endswith(
        "No method is better than Single in NLL by more than the noise of 3 seeds."
    )
    assert brief(runs).endswith("Nothing was compared.")


def test_a_method_that_is_ahead_in_every_seed_is_named_with_the_seeds_that_would_tell(
    make_runs: Callable,
) -> None:
    runs = only(make_runs((0, 1, 2)), "Single")
    again = [
        _lower(replace(run, method="again"), gain)
        for run, gain in zip(runs, (0.001, 0.02, 0.08), strict=True)
    ]
    sentence = brief([*runs, *again]).splitlines()[-1]
    start = "No method is better than Single in NLL by more than the noise of 3 seeds. In each of them again has a"
    assert sentence.startswith(start)
    assert re.search(r"; about \d+ seeds would tell\.$", sentence)


def _lower(run: Run, gain: float) -> Run:
    scores = copy.deepcopy(run.evaluation.scores)
    scores["ensemble"]["nll"] -= gain
    return replace(run, evaluation=replace(run.evaluation, scores=scores))


def test_one_seed_decides_nothing(make_runs: Callable) -> None:
    text = brief(make_runs((0,)))
    assert "one seed (0)" in text
    assert text.endswith("One seed cannot tell a gain from chance: give --seeds 0 1 2 or more.")
