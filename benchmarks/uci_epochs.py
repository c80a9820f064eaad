"""How many epochs the UCI regressions need, chosen once for all sets on validation folds.

The paper of Packed-Ensembles says neither optimiser nor epochs for its Table 11. Adam at 0.01 with batches of 100 is
taken, as in the classic deep-ensemble table; the number of epochs is the one whose validation NLL ranks best on average
over sets, folds and both methods. A tenth of the training rows of the first three splits is held out for that; no
split's own test rows are looked at.

Run: python benchmarks/uci_epochs.py --root DATA --folder runs/uci-epochs (resumes, also from the results of some
sets; about an hour on one core)
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from covey.cli import reading, recipes, run
from covey.cli.planned import from_recipe, planned_runs
from covey.errors import StoreError
from covey.files import write_text
from covey.version import __version__

SETS = (
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
)
CANDIDATES = (10, 20, 40, 80, 160)
FOLDS = 3
HELD_OUT = 0.1


def curves(name: str, root: str, folder: Path) -> list[dict[str, object]]:
    """Validation scores after each number of epochs, for the recipe's methods and the first folds."""
    flags, base = from_recipe(recipes.read(f"paper5-table11-{name.lower()}"), "full")
    dataset = replace(base.dataset, root=root, validation=HELD_OUT)
    base = replace(base, dataset=dataset, recipe=replace(base.recipe, epochs=max(CANDIDATES)))
    folds = ",".join(map(str, range(FOLDS)))
    flags = replace(flags, vary=(f"split={folds}",), folder=str(folder / name))
    rows = []
    for one in planned_runs(base, flags):
        if not _is_done(one.folder):
            run.train(one.settings, one.folder, resume=True)
        history = [json.loads(line) for line in (one.folder / "history.jsonl").read_text().splitlines()]
        by_epoch = {row["epoch"]: row for row in history}
        scores = {epoch: {k: by_epoch[epoch][k] for k in ("nll", "rmse")} for epoch in CANDIDATES}
        rows.append({"set": name, "method": one.label, "fold": one.repeat, "validation": scores})
        print(name, one.label, one.repeat, {e: round(s["nll"], 3) for e, s in scores.items()}, flush=True)
    return rows


def _is_done(folder: Path) -> bool:
    try:
        return reading.read_settings(folder)["seconds"] is not None
    except StoreError:
        return False


def mean_ranks(rows: list[dict[str, object]], score: str) -> dict[int, float]:
    """The rank of each number of epochs, 1 the best, averaged over sets first and then over all."""
    by_set: dict[object, list[np.ndarray]] = {}
    for row in rows:
        values = np.array([row["validation"][epoch][score] for epoch in CANDIDATES])  # type: ignore[index]
        by_set.setdefault(row["set"], []).append(values.argsort().argsort() + 1)
    means = np.mean([np.mean(ranks, 0) for ranks in by_set.values()], 0)
    return dict(zip(CANDIDATES, means.round(3).tolist(), strict=True))


def main() -> None:
    """Train what is not trained yet, and write the choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=None, help="folder of the known data sets")
    parser.add_argument("--folder", default="runs/uci-epochs")
    parser.add_argument("--results", default="results/uci-epochs.json")
    given = parser.parse_args()
    place = Path(given.results)
    rows = _known(place)
    for name in SETS:
        if all(row["set"] != name for row in rows):
            rows += curves(name, given.root, Path(given.folder))
            write(place, rows)


def _known(place: Path) -> list[dict[str, object]]:
    """What was found before, perhaps on another machine."""
    if not place.exists():
        return []
    rows = json.loads(place.read_text(encoding="utf-8"))["runs"]
    for row in rows:
        row["validation"] = {int(epoch): scores for epoch, scores in row["validation"].items()}
    return rows


def write(place: Path, rows: list[dict[str, object]]) -> None:
    """What was found so far, and the choice that follows from it."""
    ranks = {score: mean_ranks(rows, score) for score in ("nll", "rmse")}
    chosen = min(CANDIDATES, key=ranks["nll"].__getitem__)
    head = {"covey": __version__, "held_out": HELD_OUT, "epochs": chosen, "mean_ranks": ranks}
    lines = ",\n".join(json.dumps(row) for row in rows)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n')
    print(f"mean ranks {ranks}: {chosen} epochs; wrote {place}", flush=True)


if __name__ == "__main__":
    main()
