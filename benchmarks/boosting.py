"""What people use for tables instead: scikit-learn's histogram gradient boosting on the splits of the table recipes.

It stops early by the validation rows by which networks choose their epoch. A regression's likelihood is that of a
Gaussian around the prediction whose variance is the mean squared error on the same rows.

Run: python benchmarks/boosting.py --root DATA (a few minutes; writes results/promise-tables-boosting.json)
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from covey.cli import recipes
from covey.cli import results as stored
from covey.cli.planned import from_recipe, planned_runs
from covey.cli.settings import Dataset
from covey.data import Data

RECIPES = ("promise-tables-small", "promise-tables-large", "promise-tables-protein", "promise-tables-classes")
NAME = "promise-tables-boosting"


def main() -> None:
    """One run for each set and split of the recipes, written after each set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", help="folder of the data sets; $COVEY_DATA if not given")
    parser.add_argument("--results", default="results", help="folder to write to")
    options = parser.parse_args()
    about = {"title": "histogram gradient boosting on the splits of the table recipes"}
    planned = [dataset for name in RECIPES for dataset in _datasets(name, options.root)]
    runs: list[dict[str, Any]] = []
    for dataset in planned:
        runs.append(_run(dataset))
        last = runs[-1]
        print(last["label"], last["repeat"], last["scores"]["ensemble"], flush=True)
        path = Path(options.results) / f"{NAME}.json"
        stored.write(path, NAME, about, "python benchmarks/boosting.py", runs, len(planned))


def _datasets(name: str, root: str | None) -> list[Dataset]:
    """The sets and splits of a recipe, each once."""
    flags, base = from_recipe(recipes.read(name), "full")
    found: dict[tuple[str, int, int], Dataset] = {}
    for one in planned_runs(base, flags):
        dataset = one.settings.dataset
        found[dataset.data, dataset.split, dataset.data_seed] = dataset
    return [replace(dataset, root=root or dataset.root) for dataset in found.values()]


def _run(dataset: Dataset) -> dict[str, Any]:
    data = dataset.load()
    start = time.perf_counter()
    scores = _classified(data) if data.task == "classification" else _regressed(data)
    return {
        "label": f"boosting data={dataset.data}",
        "repeat": dataset.split + dataset.data_seed,
        "seconds": round(time.perf_counter() - start, 2),
        "ended": "early stopping",
        "settings": {
            "dataset": {"data": dataset.data, "split": dataset.split, "data_seed": dataset.data_seed}
        },
        "scores": {"ensemble": scores},
        "cost": {},
    }


def _rows(data: Data, part: str) -> tuple[np.ndarray, np.ndarray]:
    split = getattr(data, part)
    return data.prepare(split.inputs).flatten(1).double().numpy(), split.targets.numpy()


def _stopped_early(model: Any, data: Data) -> Any:
    """The model, fitted to the training rows until it gets no better on the validation rows."""
    x, y = _rows(data, "train")
    x_val, y_val = _rows(data, "validation")
    return model.fit(x, y, X_val=x_val, y_val=y_val)


def _classified(data: Data) -> dict[str, float]:
    model = _stopped_early(HistGradientBoostingClassifier(early_stopping=True, random_state=0), data)
    x, y = _rows(data, "test")
    probs = np.clip(model.predict_proba(x), 1e-12, 1.0)
    return {
        "accuracy": float((probs.argmax(1) == y).mean()),
        "nll": float(-np.log(probs[np.arange(len(y)), y]).mean()),
    }


def _regressed(data: Data) -> dict[str, float]:
    assert data.target_normalisation is not None
    unit = float(data.target_normalisation.std[0])
    model = _stopped_early(HistGradientBoostingRegressor(early_stopping=True, random_state=0), data)
    x, y = _rows(data, "validation")
    variance = float(((model.predict(x) - y) ** 2).mean()) * unit**2
    x, y = _rows(data, "test")
    errors = (model.predict(x) - y) * unit
    squared = float((errors**2).mean())
    return {
        "rmse": math.sqrt(squared),
        "mae": float(np.abs(errors).mean()),
        "gaussian_nll": 0.5 * (math.log(2 * math.pi * variance) + squared / variance),
    }


if __name__ == "__main__":
    main()
