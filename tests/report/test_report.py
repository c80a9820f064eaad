from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parsed_page import Page

from covey.errors import EvaluationError
from covey.report import Run, write
from covey.report.answers import answers, seeds_needed
from covey.report.grids import grids
from covey.report.results import gather
from covey.report.style import COLOURS, looks
from covey.report.table import SCORES, short, verdict, written
from covey.scores import Cost, Record, score
from covey.scores.statistics import Comparison, Summary


def test_page_is_well_formed_and_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    parsed = Page(text)
    ids = Counter(a["id"] for _, a in parsed.elements if "id" in a)
    assert {k: n for k, n in ids.items() if n > 1} == {}
    for _, attributes in parsed.elements:
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            if target is None:
                continue
            assert target.startswith(("#", "data:")), target
            if target.startswith("#"):
                assert target[1:] in ids, f"nothing has the id {target}"
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    assert "@import" not in text
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
    assert "<b>" not in text, "settings must be escaped"
    assert "Deep &lt;ensemble&gt;" in text
    assert "<title>A &lt;report&gt; &amp; more</title>" in text


def test_page_can_be_read_without_seeing_it(page: Path) -> None:
    parsed = Page(page.read_text())
    drawings = parsed.of("svg")
    assert len(drawings) > 15
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert len(drawing["aria-label"] or "") > 20
    for picture in parsed.of("img"):
        assert picture["alt"]
    assert len(parsed.of("caption")) == len(parsed.of("table"))
    assert all(h.get("scope") in ("col", "row") for h in parsed.of("th"))
    assert parsed.of("html")[0]["lang"] == "en"
    assert any(a.get("class") == "skip" for a in parsed.of("a"))
    assert "text-anchor" in page.read_text(), "text in figures is text"


def test_every_part_is_there(page: Path) -> None:
    anchors = [a["id"] for a in Page(page.read_text()).of("section")]
    assert anchors == [
        "answer", "table", "cost", "classes", "calibration", "selective", "ood", "diversity", "robustness", "landscape",
        "training", "examples", "repeat",
    ]  # fmt: skip


def test_one_colour_for_a_method_everywhere(page: Path) -> None:
    names = ["Single", "Deep <ensemble>", "BatchEnsemble"]
    look = looks(names, "Single")
    assert len({(v.colour, v.marker) for v in look.values()}) == 3
    own = (page.parent / "figures" / "reliability-batchensemble.svg").read_text()
    assert look["BatchEnsemble"].colour in own
    assert look["Deep <ensemble>"].colour not in own
    shared = (page.parent / "figures" / "risk-coverage.svg").read_text()
    assert all(v.colour in shared for v in look.values())
    assert looks(["A", *names], "A")["Single"].colour == COLOURS[0]


def test_figures_are_files_of_their_own(page: Path, tmp_path: Path) -> None:
    files = sorted((page.parent / "figures").iterdir())
    assert len(files) > 15
    for file in files:
        ElementTree.fromstring(file.read_text())
        assert "var(--" not in file.read_text()
    write(regression_runs(), tmp_path, pdf=True)
    assert (tmp_path / "figures" / "intervals.pdf").read_bytes().startswith(b"%PDF")


def test_markdown_twin_has_the_same_numbers(page: Path) -> None:
    text = (page.parent / "report.md").read_text()
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / name).is_file()
    html = re.sub(r"<span class=\"mark[^>]*>[^<]*</span>", "", page.read_text())
    cells = re.findall(r"<td[^>]*data-value=\"[^\"]+\">([^<]+)<", html)
    assert len(cells) > 40
    for cell in cells:
        assert cell in text, cell
    for line in text.splitlines():
        assert not line.startswith("|") or line.count(" | ") > 1


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = regression_runs()
    first, second = (write(runs, tmp_path / name) for name in ("first", "second"))
    assert first.read_text() == second.read_text()


def regression_runs() -> list[Run]:
    targets = torch.randn(40, 1)
    runs = []
    for name, members in (("one", 1), ("five", 5)):
        means = targets + 0.3 * torch.randn(members, 40, 1)
        runs.append(
            Run(name, 0, score(Record(means, targets, task="regression", variance=0.1 + means.abs())))
        )
    return runs


PRICE = dict.fromkeys(("members", "trainable", "stored", "weight_bytes", "peak_bytes", "batch", "threads"), 1)
PRICE |= {"latency": 0.1, "spread": 0.01}  # type: ignore[dict-item]


def made_up(values: dict[str, list[float]], adds: dict[str, float]) -> list[Run]:
    """Runs whose accuracies are as given, by method and seed."""
    base = score(Record(torch.randn(1, 20, 3), torch.randint(3, (20,))))
    runs = []
    for name, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            scores = base.scores | {"ensemble": base.scores["ensemble"] | {"accuracy": accuracy}}
            about = base.about | {"members": 1 if name == "one" else 4}
            price = Cost(**PRICE | {"multiply_adds": int(1000 * adds[name])})
            runs.append(Run(name, seed, replace(base, scores=scores, about=about), price))
    return runs


def first_answer(values: dict[str, list[float]], adds: dict[str, float]) -> tuple[str, str, str]:
    answer = answers(gather(made_up(values, adds)))[0]
    return answer.method, answer.evidence, answer.sure


def test_a_clear_winner_is_taken() -> None:
    method, evidence, sure = first_answer(
        {"one": [0.90, 0.91, 0.905], "many": [0.93, 0.942, 0.936]}, {"one": 1, "many": 4}
    )
    assert method == "many"
    assert "93.60 ± 0.60 %, against 90.50 ± 0.50 % for one" in evidence
    assert sure.startswith("many minus one: +3.10 %")
    assert sure.endswith("more than noise.")


def test_a_difference_within_noise_does_not_pay() -> None:
    method, evidence, sure = first_answer(
        {"one": [0.90, 0.93, 0.91], "many": [0.91, 0.91, 0.93]}, {"one": 1, "many": 4}
    )
    assert method == "one"
    assert "many has the best mean" in evidence
    assert sure.endswith("within noise.")


def test_the_cheaper_of_two_good_ones_is_taken() -> None:
    values = {"one": [0.90, 0.91, 0.905], "dear": [0.940, 0.941, 0.942], "cheap": [0.939, 0.942, 0.940]}
    method, evidence, _ = first_answer(values, {"one": 1, "dear": 4, "cheap": 2})
    assert method == "cheap"
    assert "dear has the best mean" in evidence


def test_a_sure_gain_is_taken_before_a_wide_guess() -> None:
    values = {"one": [0.84, 0.85, 0.845], "dear": [0.90, 0.86, 0.862], "cheap": [0.861, 0.871, 0.865]}
    method, evidence, sure = first_answer(values, {"one": 1, "dear": 4, "cheap": 2})
    assert method == "cheap"
    assert "dear has the best mean" in evidence
    assert sure.startswith("cheap minus one: +2.07 %")
    assert sure.endswith("more than noise.")


def test_two_seeds_cannot_tell_a_large_difference_from_noise() -> None:
    # differences of 7.4 and 3.8 %: their mean is 2.2 deviations, which 3 seeds show in 53 % of experiments and 4
    # in 82 %
    runs = made_up({"one": [0.90, 0.93], "many": [0.974, 0.968]}, {"one": 1, "many": 4})
    answer = answers(gather(runs))[0]
    assert not answer.decided
    assert answer.method == "Undecided: two seeds cannot tell"
    assert "97.10 ± 0.42 % for many, 91.50 ± 2.12 % for one" in answer.evidence
    assert "p = 0.198, 2 seeds): within noise" in answer.sure
    assert "About 4 seeds would tell" in answer.sure
    assert "a power of 80 %" in answer.sure


def test_two_seeds_never_decide_against_the_best_mean() -> None:
    runs = made_up({"one": [0.90, 0.93], "many": [0.931, 0.90]}, {"one": 1, "many": 4})
    answer = answers(gather(runs))[0]
    assert answer.method == "Undecided: two seeds cannot tell"
    assert "More than 20 seeds would tell" in answer.sure


@pytest.mark.parametrize("gain", [0.9, 1.6])
def test_so_many_seeds_would_tell_in_four_of_five_experiments(gain: float) -> None:
    from scipy import stats

    deviation, seen = 2.0, 3
    reach = stats.t.ppf(0.975, seen - 1) * deviation / math.sqrt(seen)
    mean = gain * deviation
    needed = seeds_needed(Comparison(mean, mean - reach, mean + reach, 0.5, "within noise", seen))
    assert needed is not None
    generator = np.random.default_rng(0)
    found = {}
    for seeds in (needed - 1, needed):
        differences = generator.normal(mean, deviation, (20_000, seeds))
        found[seeds] = np.mean(stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05)
    assert found[needed - 1] < 0.8 <= found[needed] + 0.01


def test_repetitions_that_are_splits_of_one_set_are_no_independent_evidence() -> None:
    def on(*tests: str) -> list[Run]:
        runs = made_up({"one": [0.90, 0.91, 0.92], "many": [0.91, 0.93, 0.922]}, {"one": 1, "many": 4})
        counts = {"train": 80, "validation": 10, "test": 10}
        found = []
        for run in runs:
            record = {"counts": counts, "indices_sha256": {"test": tests[run.seed]}}
            found.append(replace(run, settings={**run.settings, "record": record}))
        return found

    seeds, splits = gather(on("a", "a", "a")), gather(on("a", "b", "c"))
    assert (seeds.overlap, splits.overlap) == (0.0, 0.125)
    # a set's standard splits have the same rows of different files
    standard = [replace(r, settings={**r.settings, "dataset": {"split": r.seed}}) for r in on("a", "a", "a")]
    assert gather(standard).overlap == 0.125
    for damaged in ({"record": 3}, {"record": {"counts": {"train": "many", "test": 1}}}, {"dataset": []}):
        strange = [replace(r, settings={**r.settings, **damaged}) for r in on("a", "b", "c")]
        assert gather(strange).overlap in (0.0, 0.125)
    many, one = splits.methods[1], splits.methods[0]
    plain = seeds.against(many, one, "accuracy")
    enlarged = splits.against(many, one, "accuracy")
    assert plain.difference == enlarged.difference
    assert enlarged.p > plain.p
    assert (seeds_needed(enlarged) or 1000) > (seeds_needed(plain) or 1000)


def test_a_run_of_four_members_is_no_baseline() -> None:
    runs = made_up({"many": [0.9], "more": [0.95]}, {"many": 4, "more": 8})
    for run in (runs[:1], runs):
        for answer in answers(gather(run)):
            assert "baseline" not in answer.cost
            assert "single" not in answer.cost


def test_all_costs_are_compared_with_the_single_network() -> None:
    runs = made_up({"many": [0.9, 0.9], "one": [0.8, 0.8]}, {"one": 1, "many": 3})
    runs[0] = replace(runs[0], cost=replace(runs[0].cost, latency=0.3))
    results = gather(runs, baseline="many")
    assert results.reference.name == "one"
    many, one = results.methods
    assert results.ratio(many, "latency") == pytest.approx((0.3 + 0.1) / (0.1 + 0.1))
    assert results.ratio(one, "latency") == 1
    speed = answers(results)[-1]
    prices = (
        "1.00\u00d7 the parameters",
        "3.0\u00d7 the multiply-adds",
        "2.0\u00d7 the latency of one in the same comparison.",
    )
    assert speed.cost == ", ".join(prices)
    assert "ratio to that of one" in grids(results)[1].caption


def test_enough_seeds_decide_for_the_cheaper_one() -> None:
    one = [0.90, 0.93, 0.90, 0.93, 0.90]
    many = [0.93, 0.91, 0.92, 0.94, 0.91]
    answer = answers(gather(made_up({"one": one, "many": many}, {"one": 1, "many": 4})))[0]
    assert answer.decided
    assert answer.method == "one"


def test_one_seed_is_a_hint() -> None:
    method, _, sure = first_answer({"one": [0.9], "many": [0.95]}, {"one": 1, "many": 4})
    assert method == "many"
    assert "One seed: the difference was not tested" in sure


def test_unsteady_times_are_said_to_be() -> None:
    runs = made_up({"one": [0.9], "many": [0.95]}, {"one": 1, "many": 4})
    assert "busy" not in answers(gather(runs))[-1].sure
    assert runs[1].cost is not None
    runs[1] = replace(runs[1], cost=replace(runs[1].cost, spread=0.05))
    assert "varied by up to 50 %: the machine was busy" in answers(gather(runs))[-1].sure


def test_verdicts_know_which_way_is_better() -> None:
    results = gather(
        made_up({"one": [0.90, 0.91, 0.905], "many": [0.93, 0.942, 0.936]}, {"one": 1, "many": 4})
    )
    accuracy = next(column for column in SCORES if column.key == "accuracy")
    one, many = results.methods
    assert verdict(results, many, one, accuracy) == "better"
    assert verdict(results, one, many, accuracy) == "worse"
    assert verdict(results, many, one, replace(accuracy, better="lower")) == "worse"
    assert verdict(results, one, one, accuracy) == ""


def test_numbers_are_written_like_this() -> None:
    assert written(SCORES[0], Summary(0.97123, 0.0031, 3)) == "97.12 ± 0.31"
    assert written(SCORES[0], Summary(0.97123, None, 1)) == "97.12"
    assert [short(v) for v in (12, 1234, 25_557_032, 4.09e9)] == ["12", "1.23 k", "25.6 M", "4.09 G"]


def test_a_report_of_regression(tmp_path: Path) -> None:
    page = write(regression_runs(), tmp_path)
    anchors = [a["id"] for a in Page(page.read_text()).of("section")]
    assert anchors == ["answer", "table", "intervals", "repeat"]
    assert "RMSE" in page.read_text()


def test_a_report_of_one_run(make_runs: Callable, tmp_path: Path) -> None:
    text = write(make_runs((0, 1, 2))[:1], tmp_path).read_text()
    assert "Only one method was run" in text
    for words in ("The baseline itself", "Compared with", "fastest of", "1.00\u00d7", 'class="best"'):
        assert words not in text
    assert "Parameters 1.00 k, multiply-adds 5.00 k, latency 2 ms" in text


def test_bad_runs(make_runs: Callable, tmp_path: Path) -> None:
    runs = make_runs((0, 1, 2))[::3]
    with pytest.raises(EvaluationError, match="one run or more, got none"):
        write([], tmp_path)
    with pytest.raises(EvaluationError, match="'Single' has two runs with seed 0"):
        write([*runs, runs[0]], tmp_path)
    with pytest.raises(EvaluationError, match="no method 'Singel'; the nearest names are 'Single'"):
        write(runs, tmp_path, baseline="Singel")
    other = replace(
        runs[1], evaluation=replace(runs[1].evaluation, about=runs[1].evaluation.about | {"samples": 7})
    )
    with pytest.raises(EvaluationError, match=r"differ in samples: 120 .*, 7 "):
        write([runs[0], other], tmp_path)
