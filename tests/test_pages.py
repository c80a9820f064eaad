"""What pages say of results is what results/ hold."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def pages():
    return importlib.import_module("pages")


def test_no_number_on_a_page_differs_from_the_results() -> None:
    made = pages()
    marked = 0
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        page = path.read_text(encoding="utf-8")
        marked += len(made.PLACE.findall(page))
        assert made.written(page) == page, f"{path.name}: run python benchmarks/pages.py"
    assert marked >= 5


def test_a_page_with_another_number_is_found() -> None:
    made = pages()
    page = (ROOT / "docs" / "does-it-work.md").read_text(encoding="utf-8")
    place = made.PLACE.search(page)
    assert place is not None
    end = place.end(1)
    assert made.written(page[:end] + "| 99.9 |\n" + page[end:]) == page


def test_means_and_deviations_over_repetitions() -> None:
    made = pages()
    row = made.Row("packed", [{"scores": {"nll": 0.5}}, {"scores": {"nll": 0.7}}, {"scores": {}}])
    assert row.cell("scores", "nll", digits=2) == "0.60 ± 0.14"
    assert row.mean("scores", "nll") == pytest.approx(0.6)
    assert row.cell("scores", "ece") == "-"


def _run(label: str, repeat: int, cost: float, nll: float) -> dict:
    return {
        "label": label,
        "repeat": repeat,
        "cost": {"multiply_adds": cost, "stored": cost},
        "scores": {"ensemble": {"nll": nll, "accuracy": 0.5}},
    }


def _table(nlls: list[float]):
    made = importlib.import_module("conclusions")
    runs = [_run("single", k, 1.0, 0.5) for k in range(len(nlls))]
    runs += [_run("single width=2", k, 4.0, 0.3) for k in range(len(nlls))]
    runs += [_run("packed", k, 2.0, nll) for k, nll in enumerate(nlls)]
    return made, made.rows({"runs": runs})


def test_a_method_is_held_against_a_single_network_of_its_multiply_adds() -> None:
    made, table = _table([0.35, 0.38])
    # half way between 1 and 4 in powers of two a single network has 0.4
    assert made.gains(table["packed"], table, made.SCORES[0]) == pytest.approx([0.05, 0.02])


@pytest.mark.parametrize(
    ("found", "verdict"), [([0.05], 0), ([0.05, 0.0501], 1), ([-0.05, -0.0501], -1), ([0.05, -0.04], 0)]
)
def test_only_what_a_paired_test_tells_from_chance_is_sure(found: list[float], verdict: int) -> None:
    made = importlib.import_module("conclusions")
    assert made.sure(found) == verdict


def test_a_curve_without_one_of_its_widths_is_no_curve() -> None:
    made, table = _table([0.35, 0.38])
    table["single width=2"].runs.pop()
    assert made.gains(table["packed"], table, made.SCORES[0]) == pytest.approx([0.05])


def test_of_many_tests_only_those_count_that_withstand_holms_correction() -> None:
    made = importlib.import_module("conclusions")
    assert made.holm({"a": 0.02, "b": 0.012, "c": 0.9, "d": 0.03}) == ["b"]  # against 0.0125, 0.0167
    assert made.holm({"a": 0.016, "b": 0.012, "c": 0.04, "d": 0.024}) == ["b", "a", "d", "c"]
    assert made.holm({"a": 0.02, "b": 0.02, "c": 0.02}) == []


def test_a_question_asked_beforehand_is_answered_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = _table([0.35])
    runs = [_run("single", k, 1.0, 0.5 + 0.01 * k) for k in range(3)]
    runs += [_run("packed", k, 1.0, 0.4 + 0.02 * k) for k in range(3)]
    found = {"runs": runs, "planned": 6, "command": "c", "written": "today"}
    monkeypatch.setattr(made, "read", lambda name: {**found, "versions": {"covey": "0", "torch": "2"}})
    nll = made.confirmed("any", "packed").splitlines()[2]
    # differences -0.1, -0.09, -0.08: mean -0.09, deviation 0.01, t 4.303 on two degrees of freedom
    assert nll == "| NLL | 0.510 | 0.420 | -0.090 | -0.115 to -0.065 | 4.1e-03 | 3 |"


def test_what_does_not_fit_a_budget_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = _table([0.35])
    runs = [_run("single", 0, 1.0, 0.5), _run("packed", 0, 1.0, 0.4), _run("deep-ensemble", 0, 4.0, 0.3)]
    found = {
        "runs": runs,
        "planned": 3,
        "command": "c",
        "written": "today",
        "versions": {"covey": "0", "torch": "2"},
    }
    monkeypatch.setattr(made, "read", lambda name: found)
    lines = made.budgets("any").splitlines()
    assert "| packed (0.400, 50.0 %) |" in lines[2]
    assert "deep-ensemble" not in lines[2]
    assert "| deep-ensemble (0.300, 50.0 %) |" in lines[-3]


def _splits(rmses: list[float]):
    return importlib.import_module("result_rows").Row(
        "", [{"repeat": k, "scores": {"ensemble": {"rmse": rmse}}} for k, rmse in enumerate(rmses)]
    )


@pytest.mark.parametrize(("gain", "verdict"), [(0.3, 0), (0.6, 1), (-0.6, -1)])
def test_splits_that_share_rows_are_no_independent_evidence(gain: float, verdict: int) -> None:
    """Twenty paired differences that scatter by 0.5: a plain t-test is sure from 0.24 on, with overlap from 0.43 on."""
    made = importlib.import_module("table_ranks")
    noise = [0.5, -0.5] * 10
    single = _splits([3.0] * 20)
    method = _splits([3.0 - gain - each for each in noise])
    assert made._beyond_chance(method, single, "rmse") == verdict


def test_ranks_are_over_the_sets_that_all_methods_have() -> None:
    made = importlib.import_module("table_ranks")
    full = {"single": _splits([1.0, 1.0, 0.1]), "packed": _splits([0.5, 0.5])}  # split 2 is single's alone
    sets = {"yacht": full, "energy": {"single": _splits([1.0])}}
    lines = made._table(sets, {"yacht": "rmse", "energy": "rmse"}).splitlines()
    assert lines[4] == "| **mean rank, 1 set (± standard error)** | **2.0 ± 0.0** | **1.0 ± 0.0** |"
    assert lines[5].endswith("| 1, 0 of 1 |")


def test_regressions_tell_sure_differences_and_runs_that_are_far_off() -> None:
    made = importlib.import_module("regressions")

    def row(label: str, rmses: list[float]):
        runs = [
            {"repeat": k, "scores": {"ensemble": {"rmse": e, "gaussian_nll": 1.0}}}
            for k, e in enumerate(rmses)
        ]
        return importlib.import_module("result_rows").Row(label, runs)

    sets = {
        "yacht": {
            made.PACKED: row("packed", [1.0, 1.1, 1.0, 1.1, 1.0]),
            made.DEEP: row("deep-ensemble", [2.0, 2.2, 2.1, 2.2, 2.0]),
        },
        "wine": {
            made.PACKED: row("packed", [1.0, 1.1, 1.0, 1.1, 4.0]),
            made.DEEP: row("deep-ensemble", [1.1, 1.0, 1.1, 1.0, 1.0]),
        },
    }
    told = made._told(sets)
    assert (
        "In RMSE, packed is better than the deep ensemble by more than chance on yacht, worse on none."
        in told
    )
    assert (
        "In NLL, packed is better than the deep ensemble by more than chance on none, worse on none." in told
    )
    assert "3 times the median of their splits: 1 of wine, packed (median 1.1, worst 4)." in told
