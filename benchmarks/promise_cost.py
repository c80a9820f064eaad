"""What the methods of "Does it work?" cost in time, on its network: a training step, and answers eager and deployed.

    python benchmarks/promise_cost.py --write results/promise-cost.json

Ratios to the single network in the same run, taken in turns, the fastest of several. Ways of training that end in an
ensemble train one network for most of the time, so that a step of their result says nothing about them: their training
is counted in passes of the network. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import covey
from covey.cli import recipes
from covey.cli.planned import PlannedRun, from_recipe, planned_runs
from covey.cli.settings import parse_options
from covey.deploy.benching import Form, forms, in_turns, measured, single
from covey.deploy.tracing import Example
from covey.files import write_text
from covey.method import Training
from covey.tables import text_table
from covey.train import Recipe
from covey.zoo.names import build

RECIPE = "promise-fashion-mnist"
SHAPE, CLASSES = (1, 28, 28), 10
REFERENCE = "single"
FORMS = ("eager", "onnx")


def arms() -> list[PlannedRun]:
    """Every method of the recipe once."""
    flags, base = from_recipe(recipes.read(RECIPE), "full")
    return planned_runs(base, replace(flags, seeds=(0,)))


def network_of(arm: PlannedRun) -> nn.Module:
    """The plain network of an arm."""
    named = arm.settings.network
    assert named.network is not None
    options = parse_options(named.network_option)
    return build(named.network, shape=SHAPE, outputs=CLASSES, options=options, tokens=None)


def ensemble_of(arm: PlannedRun, x: Tensor) -> covey.Ensemble:
    """What an arm ends with."""
    options, recipe = arm.settings.options, Recipe(epochs=arm.settings.recipe.epochs)
    method = options.result(recipe) if isinstance(options, Training) else options
    return covey.convert(network_of(arm), method, example=x[:4], check=False)


def step(ensemble: covey.Ensemble, x: Tensor, y: Tensor) -> None:
    """A training step without an optimiser's."""
    ensemble.zero_grad()
    ensemble.loss(x, y).backward()


def training(found: dict[str, covey.Ensemble], repeats: int) -> dict[str, float]:
    """Seconds of a training step of each ensemble."""
    x, y = torch.randn(64, *SHAPE), torch.randint(0, CLASSES, (64,))
    calls: dict[str, Callable[[], Any]] = {}
    for label, ensemble in found.items():
        calls[label] = partial(step, ensemble.train(), x, y)
    return in_turns(calls, repeats=repeats)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", type=Path, help="a JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(max(options.batches), *SHAPE)
    found = {arm.label: ensemble_of(arm, x) for arm in arms()}
    ways = {arm.label: arm.settings.options for arm in arms()}
    seconds = training(found, options.repeats)
    rows: dict[str, dict[str, Any]] = {}
    for label, way in ways.items():
        by_passes = isinstance(way, Training)
        ratio = way.training_passes if by_passes else seconds[label] / seconds[REFERENCE]
        rows[label] = {"training": ratio, "training_in_passes": by_passes, "answers": {}}
    with tempfile.TemporaryDirectory() as place:
        example = Example.of(network_of(arms()[0]), x)
        calls: dict[str, Form] = {REFERENCE: single(network_of(arms()[0]).eval(), example)}
        for number, (label, ensemble) in enumerate(found.items()):
            folder = Path(place) / str(number)
            folder.mkdir()
            own, missing = forms(ensemble.eval(), example, folder, threads=options.threads)
            calls |= {f"{label}: {form}": own[form] for form in FORMS if form in own}
            rows[label]["missing"] = {form: why for form, why in missing.items() if form in FORMS}
        for row in measured(
            calls, example, batches=options.batches, repeats=options.repeats, reference=REFERENCE
        ):
            label, _, form = row.form.rpartition(": ")
            if label:
                rows[label]["answers"].setdefault(form, {})[str(row.batch)] = row.ratio
    print(table(rows, options.batches))
    if options.write:
        about = {
            "command": "python benchmarks/promise_cost.py",
            "written": time.strftime("%Y-%m-%d"),
            "threads": options.threads,
            "torch": torch.__version__,
        }
        write_text(options.write, json.dumps({**about, "rows": rows}, indent=1) + "\n")


def table(rows: dict[str, dict[str, Any]], batches: list[int]) -> str:
    """All ratios, aligned; ~ marks passes."""
    headings = ["method", "training", *(f"{form}, batch {batch}" for form in FORMS for batch in batches)]
    cells = []
    for label, row in rows.items():
        trained = f"{'~' if row['training_in_passes'] else ''}{row['training']:.2f}"
        answers = [row["answers"].get(form, {}).get(str(batch)) for form in FORMS for batch in batches]
        cells.append((label, trained, *("-" if value is None else f"{value:.2f}" for value in answers)))
    return text_table(headings, cells, right=headings[1:])


if __name__ == "__main__":
    main()
