"""Paper 5, Table 11: what the paper prints, and what its networks score here, on test and on training rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median

from result_rows import RESULTS, Row, markdown, read, rows, waiting

from covey.scores.statistics import compare

SETS = (
    "bostonhousing", "concrete", "energy", "kin8nm", "naval-propulsion-plant", "power-plant",
    "protein-tertiary-structure", "wine-quality-red", "yacht",
)  # fmt: skip


def regressions() -> str:
    """Paper 5, Table 11: what the paper prints, and RMSE, MAE and NLL of packed and deep ensembles here."""
    lines, origins = [], []
    tables: dict[str, Mapping[str, Row]] = {}
    training, training_origin = _training_errors()
    for each in SETS:
        name = f"paper5-table11-{each}"
        found = read(name)
        if found is None:
            origins.append(waiting(name))
            continue
        printed = found["about"]["reports"].partition(":")[2].strip()
        tables[each] = rows(found)
        for label, row in tables[each].items():
            scores = [
                row.cell("scores", "ensemble", key, digits=3) for key in ("rmse", "mae", "gaussian_nll")
            ]
            learnt = training.get((each, label))
            scores.append("-" if learnt is None else learnt.cell("rmse"))
            lines.append([f"{each}, {label}", str(len(row.runs)), *scores, printed])
    headings = (
        "set and method",
        "splits",
        "RMSE",
        "MAE",
        "NLL",
        "RMSE on training rows",
        "paper: RMSE packed, deep; NLL packed, deep",
    )
    if not lines:
        return "\n\n".join(origins)
    return "\n\n".join([markdown(headings, lines), _told(tables), *origins, training_origin])


def _training_errors() -> tuple[dict[tuple[str, str], Row], str]:
    """Errors on training rows by set and method, and where they come from."""
    path = RESULTS / "uci-training.json"
    if not path.exists():
        return {}, "*Errors on training rows: not run yet, `python benchmarks/uci_training.py`.*"
    found = json.loads(path.read_text(encoding="utf-8"))
    table: dict[tuple[str, str], Row] = {}
    for run in found["runs"]:
        key = (run["set"].lower(), run["method"])
        table.setdefault(key, Row(run["method"])).runs.append(run)
    return table, f"Errors on training rows: `{found['command']}`, written {found['written']}."


PACKED, DEEP = "packed", "deep-ensemble members=3"
OVERLAP = 0.1 / 0.9  # test over training rows: nothing is held back
SCORES = {"rmse": "RMSE", "gaussian_nll": "NLL"}
FAR = 3.0  # times the median of its splits, a run's error is an outlier


def _told(tables: Mapping[str, Mapping[str, Row]]) -> str:
    """Where packed and deep ensembles differ by more than chance, and runs that are far off."""
    sentences = []
    for score, words in SCORES.items():
        better, worse = [], []
        for name, table in tables.items():
            if {PACKED, DEEP} <= table.keys():
                verdict = compare(
                    *(_by_split(table[label], score) for label in (PACKED, DEEP)), overlap=OVERLAP
                ).verdict
                if verdict == "lower":
                    better.append(name)
                if verdict == "higher":
                    worse.append(name)
        sentences.append(
            f"In {words}, packed is better than the deep ensemble by more than chance on {_listed(better)}, worse on "
            f"{_listed(worse)}."
        )
    far = [line for name, table in tables.items() for row in table.values() if (line := _far_off(name, row))]
    how = "paired t-test over splits at 5 %, its variance enlarged because splits share rows"
    outliers = f"Runs whose RMSE is more than {FAR:g} times the median of their splits: {_listed(far)}."
    return f"{' '.join(sentences)} ({how}.) {outliers}"


def _by_split(row: Row, score: str) -> dict[int, float]:
    return {run["repeat"]: run["scores"]["ensemble"][score] for run in row.runs}


def _far_off(name: str, row: Row) -> str:
    errors = list(_by_split(row, "rmse").values())
    middle = median(errors)
    count = sum(error > FAR * middle for error in errors)
    return f"{count} of {name}, {row.label} (median {middle:.3g}, worst {max(errors):.3g})" if count else ""


def _listed(names: list[str]) -> str:
    return "; ".join(names) if names else "none"
