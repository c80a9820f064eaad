"""Writes the tables and figures of docs/ that come from results/, so that no number on a page is typed.

    python benchmarks/pages.py            # write
    python benchmarks/pages.py --check    # say what is not as results/ have it; 1 if anything

A page marks the place with `<!-- results: NAME -->` and `<!-- end of NAME -->`; what stands between is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from conclusions import budgets, confirmed, promised, verdicts
from deployed import deploy_aims, deployed, deployed_without_vnni
from fronts import FRONTS
from outliers import by_criterion, by_set
from regressions import regressions
from result_rows import RESULTS, ROOT, WORDS, Row, markdown, origin, read, rows, waiting
from table_ranks import tables

from covey.files import write_text
from covey.report import members
from covey.scores.subsets import Measured

DOCS = ROOT / "docs"
FIGURES: dict[Path, str] = {}  # drawn on the way, and written with the pages
PLACE = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


# --- the promise: score against cost on Fashion-MNIST ------------------------------------------------------

PROMISE = "promise-fashion-mnist"


def promise_table() -> str:
    """Every method with its scores and its costs over the single network's."""
    found = read(PROMISE)
    if found is None:
        return waiting(PROMISE)
    table = rows(found)
    single = table["single"]
    lines = []
    for row in sorted(table.values(), key=lambda each: each.mean("scores", "ensemble", "nll")):
        lines.append(
            [
                WORDS.get(row.label, row.label),
                row.cell("scores", "ensemble", "accuracy", digits=1, percent=True),
                row.cell("scores", "ensemble", "nll"),
                row.cell("scores", "ensemble", "ece"),
                row.cell("scores", "ood", "mean", "entropy", "auroc", digits=1, percent=True),
                row.cell("scores", "ood", "mean", "entropy", "fpr95", digits=1, percent=True),
                row.cell("scores", "robustness", "mean_corruption_error", digits=1, percent=True),
                _ratio(row, single, "stored"),
                _ratio(row, single, "multiply_adds"),
            ]
        )
    headings = (
        "method", "accuracy %", "NLL", "ECE", "OOD AUROC %", "OOD FPR95 %", "error, corrupted %", "stored",
        "multiply-adds",
    )  # fmt: skip
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def _ratio(row: Row, single: Row, cost: str) -> str:
    return f"{row.mean('cost', cost) / single.mean('cost', cost):.2f}"


def promise_time() -> str:
    """What training and answers take in time, over the single network's."""
    path = RESULTS / "promise-cost.json"
    if not path.exists():
        return "*Not run yet: `python benchmarks/promise_cost.py --write results/promise-cost.json`.*"
    found = json.loads(path.read_text(encoding="utf-8"))
    lines = []
    for label, row in sorted(found["rows"].items(), key=lambda each: each[1]["answers"]["onnx"]["32"]):
        trained = f"{row['training']:.2f}{' passes' * row['training_in_passes']}"
        answers = [row["answers"].get(form, {}) for form in ("eager", "onnx")]
        cells = [f"{form[batch]:.2f}" if batch in form else "-" for form in answers for batch in ("1", "32")]
        lines.append([WORDS.get(label, label), trained, *cells])
    headings = (
        "method",
        "training step",
        "eager, batch 1",
        "eager, batch 32",
        "ONNX, batch 1",
        "ONNX, batch 32",
    )
    told = f"`{found['command']}`, written {found['written']}, {found['threads']} threads."
    return f"{markdown(headings, lines)}\n\n{told}"


def promise_figure() -> str:
    """NLL and AUROC against multiply-adds, with single networks of three widths as a curve."""
    found = read(PROMISE)
    if found is None or len(rows(found)) < 3:  # a curve needs more than one point
        return waiting(PROMISE)
    paths = []
    for name, front in FRONTS.items():
        FIGURES[DOCS / "assets" / f"{name}.svg"] = front.drawn(rows(found))
        paths.append(f"![{front.words}, against multiply-adds over the single network's](assets/{name}.svg)")
    return "\n\n".join(paths)


# --- the papers -------------------------------------------------------------------------------------------


def convnet() -> str:
    """Paper 2, Table 3: plain, late-phase under every rule of collapsing, and accumulated gradients alone."""
    name = "paper2-table3-convnet"
    found = read(name)
    if found is None:
        return waiting(name)
    lines = []
    for label, row in rows(found).items():
        accuracies = ", ".join(f"{100 * v:.2f}" for v in row.values("scores", "ensemble", "accuracy"))
        lines.append([label, accuracies, row.cell("scores", "ensemble", "accuracy", digits=2, percent=True)])
        for rule in ("exact", "mean", "mean, new statistics"):
            if row.values("collapsed", rule, "accuracy"):
                each = ", ".join(f"{100 * v:.2f}" for v in row.values("collapsed", rule, "accuracy"))
                cell = row.cell("collapsed", rule, "accuracy", digits=2, percent=True)
                lines.append([f"{label}, one network ({rule})", each, cell])
    return f"{markdown(['arm', 'accuracy % by seed', 'mean ± sd'], lines)}\n\n{origin(found)}"


SMALL_COLUMNS: dict[str, tuple[tuple[str, ...], int, bool]] = {
    "accuracy %": (("scores", "ensemble", "accuracy"), 1, True),
    "a member's %": (("scores", "member_mean", "accuracy"), 1, True),
    "NLL": (("scores", "ensemble", "nll"), 3, False),
    "ECE": (("scores", "ensemble", "ece"), 3, False),
    "OOD AUROC %": (("scores", "ood", "mean", "entropy", "auroc"), 1, True),
    "disagreement": (("scores", "diversity", "disagreement"), 3, False),
    "error, corrupted %": (("scores", "robustness", "mean_corruption_error"), 1, True),
}
COSTS = {"stored": "stored", "multiply_adds": "multiply-adds"}


def in_small(name: str, *, collapsed: bool = False) -> str:
    """Every arm of an experiment with its scores, and its size and work over the single network's."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = rows(found)
    single = next(row for label, row in table.items() if label.startswith("single"))
    columns = {
        words: column
        for words, column in SMALL_COLUMNS.items()
        if any(row.values(*column[0]) for row in table.values())
    }
    headings = ["arm", "seeds", *columns, *COSTS.values()]
    lines = []
    for label, row in table.items():
        cells = [
            row.cell(*path, digits=digits, percent=percent) for path, digits, percent in columns.values()
        ]
        costs = [_ratio(row, single, cost) for cost in COSTS]
        line = [WORDS.get(label, label), str(len(row.runs)), *cells, *costs]
        if collapsed:
            line.append(row.cell("collapsed", "exact", "accuracy", digits=1, percent=True))
        lines.append(line)
    if collapsed:
        headings.append("averaged into one network, accuracy %")
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def anytime() -> str:
    """Paper 3 in small: scores of all members, and what subsets of them score for their multiply-adds."""
    name = "promise-anytime"
    table = in_small(name)
    found = read(name)
    measured: dict[str, Measured] = {}
    for label, row in rows(found).items() if found is not None else ():
        subsets = row.runs[0].get("subsets")
        if subsets is not None:
            measured[WORDS.get(label, label)] = Measured.from_dict(subsets)
    if not measured:
        return table
    drawn = members.anytime(measured, "multiply_adds")
    FIGURES[DOCS / "assets" / f"{name}.svg"] = drawn.file
    return f"![{drawn.title}, first seed](assets/{name}.svg)\n\n{table}"


def lstm() -> str:
    """Paper 2, Table 6 in small: bits per character of the three arms, without and with averaged weights."""
    found = read("paper2-table6-small")
    if found is None:
        return "*Not run yet: `covey reproduce paper2-table6 --scale small --results results`.*"
    lines = []
    for label, row in rows(found).items():
        arm, _, average = label.rpartition(" average=")
        averaged = "no" if average == "None" else f"from {average} on"
        cell = row.cell("scores", "ensemble", "bits_per_character", digits=3)
        lines.append([arm, averaged, str(len(row.runs)), cell])
    headings = ("arm", "weights averaged (SWA)", "seeds", "bits per character")
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def peer() -> str:
    """The same ensembles trained by the closest peer and by covey, with the ratio of their times."""
    path = RESULTS / "peer.json"
    if not path.exists():
        return "*Not run yet: `python benchmarks/peer.py --write results/peer.json`.*"
    found = json.loads(path.read_text(encoding="utf-8"))
    table: dict[str, dict[str, Row]] = {}
    for run in found["runs"]:
        by_library = table.setdefault(run["method"], {})
        by_library.setdefault(run["library"], Row(run["library"])).runs.append(run)
    lines = []
    for method, by_library in table.items():
        for library, row in by_library.items():
            base = by_library["torch-uncertainty"].mean("epoch_seconds")
            lines.append(
                [
                    f"{method}, {library}",
                    str(len(row.runs)),
                    row.cell("accuracy", digits=1, percent=True),
                    row.cell("nll"),
                    row.cell("ece"),
                    f"{row.mean('parameters'):,.0f}",
                    f"{row.mean('epoch_seconds') / base:.2f}",
                ]
            )
    headings = (
        "method",
        "seeds",
        "accuracy %",
        "NLL",
        "ECE",
        "parameters",
        "time of an epoch over the peer's",
    )
    versions = found["versions"]
    told = (
        f"`{found['command']}`, written {found['written']} with covey {versions['covey']}, torch-uncertainty "
        f"{versions['torch-uncertainty']} and torch {versions['torch'].partition('+')[0]}."
    )
    return f"{markdown(headings, lines)}\n\n{told}"


def uci_epochs() -> str:
    """How well each number of epochs ranks on validation folds of the regressions."""
    path = RESULTS / "uci-epochs.json"
    if not path.exists():
        return "*Not run yet: `python benchmarks/uci_epochs.py`.*"
    found = json.loads(path.read_text(encoding="utf-8"))
    tried = list(found["mean_ranks"]["nll"])
    lines = []
    for score, key in (("NLL", "nll"), ("RMSE", "rmse")):
        ranks = found["mean_ranks"][key]
        lines.append([score, *(f"{ranks[epochs]:.2f}" for epochs in tried)])
    sets = len({run["set"] for run in found["runs"]})
    told = (
        f"`python benchmarks/uci_epochs.py`, {sets} sets, {len(found['runs'])} runs, covey {found['covey']}: "
        f"{found['epochs']} epochs have the best rank in NLL."
    )
    return f"{markdown(['mean rank, 1 is best', *(f'{epochs} epochs' for epochs in tried)], lines)}\n\n{told}"


BLOCKS: dict[str, Callable[[], str]] = {
    "promise": promise_table,
    "promise-figure": promise_figure,
    "promise-time": promise_time,
    "promise-outliers": lambda: by_set(PROMISE),
    "promise-criteria": lambda: by_criterion(PROMISE),
    "verdicts": lambda: verdicts(PROMISE),
    "promised": lambda: promised("promise-packed", "packed"),
    "confirmed": lambda: confirmed("promise-packed", "packed"),
    "budgets": lambda: budgets(PROMISE),
    "tables": tables,
    "convnet": convnet,
    "regressions": regressions,
    "uci-epochs": uci_epochs,
    "late": lambda: in_small("promise-late", collapsed=True),
    "templates": lambda: in_small("promise-templates"),
    "anytime": anytime,
    "cifar10": lambda: in_small("promise-cifar10"),
    "cifar10-outliers": lambda: by_set("promise-cifar10"),
    "cifar10-criteria": lambda: by_criterion("promise-cifar10"),
    "lstm": lstm,
    "peer": peer,
    "deployed": deployed,
    "deploy-aims": deploy_aims,
    "deployed-without-vnni": deployed_without_vnni,
}


def written(page: str) -> str:
    """A page with everything between its marks made anew."""
    return PLACE.sub(lambda place: f"{place[1]}{BLOCKS[place['name']]()}\n{place[3]}", page)


def main() -> int:
    """Write all pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages would change")
    check = parser.parse_args().check
    stale = []
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        page = path.read_text(encoding="utf-8")
        new = written(page)
        if new != page:
            stale.append(path.relative_to(ROOT))
            if not check:
                write_text(path, new)
    if not check:
        for path, drawing in FIGURES.items():
            write_text(path, drawing)
    for path in stale:
        print(f"{path}: {'is not as results/ have it' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
