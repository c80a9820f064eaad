"""The error of Table 11's networks on their own training rows, which their test error should not be below.

    covey reproduce paper5-table11-NAME --results results     # for every set; leaves the runs in runs/
    python benchmarks/uci_training.py --runs runs --write results/uci-training.json

The data are found as `covey reproduce` finds them, in $COVEY_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from uci_epochs import SETS

import covey
from covey.cli import reading
from covey.cli.planned import from_recipe, planned_runs
from covey.cli.recipes import read
from covey.files import write_text


def errors(name: str, runs: Path) -> list[dict[str, Any]]:
    """RMSE and MAE on the training rows of every run of a set that is done."""
    recipe = f"paper5-table11-{name.lower()}"
    flags, base = from_recipe(read(recipe), "full")
    found = []
    for one in planned_runs(base, replace(flags, folder=str(runs / f"{recipe}-full"))):
        if not (one.folder / "ensemble").is_dir():
            continue
        data = reading.read_data(one.folder)
        ensemble = reading.read_ensemble(one.folder)
        scores = covey.evaluate(ensemble, replace(data, test=data.train)).scores["ensemble"]
        errors_here = {key: scores[key] for key in ("rmse", "mae")}
        found.append({"set": name, "method": one.label, "split": one.repeat, **errors_here})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where `covey reproduce` left the runs"
    )
    parser.add_argument("--write", type=Path, default=Path("results/uci-training.json"))
    options = parser.parse_args()
    rows = []
    for name in SETS:
        rows += errors(name, options.runs)
        print(f"{name}: {sum(row['set'] == name for row in rows)} runs", flush=True)
    about = {
        "command": "python benchmarks/uci_training.py",
        "written": time.strftime("%Y-%m-%d"),
        "covey": covey.__version__,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(options.write, json.dumps(about, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
