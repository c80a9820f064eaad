"""What the methods of "Does it work?" cost in time, on its network: a training step, and answers eager and deployed.

    python benchmarks/promise_cost.py --write results/promise-cost.json

Ratios to the single network, measured in turns with each method, the fastest of several. A file keeps the methods it
has: a run that was stopped goes on with those that are missing. Ways of training that end in an ensemble train one
network for most of the time, so that a step of their result says nothing about them: their training is counted in
passes of the network. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
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
from covey.deploy.benching import NETWORK, forms, in_turns, measured, single
from covey.deploy.tracing import Example
from covey.files import write_text
from covey.method import Training
from covey.tables import text_table
from covey.train import Recipe
from covey.zoo.names import build

RECIPE = "promise-fashion-mnist"
SHAPE, CLASSES = (1, 28, 28), 10
FORMS = ("eager", "onnx")
Stored = dict[str, Any]


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
    ensemble = covey.convert(network_of(arm), method, example=x[:4], check=False)
    with torch.no_grad():  # members that begin alike would be deployed as one
        for parameter in ensemble.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return ensemble


def step(ensemble: covey.Ensemble, x: Tensor, y: Tensor) -> None:
    """A training step without an optimiser's."""
    ensemble.zero_grad()
    ensemble.loss(x, y).backward()


def part(arm: PlannedRun, options: argparse.Namespace) -> Stored:
    """What one arm costs, over the single network measured in turns with it."""
    x = torch.randn(max(options.batches), *SHAPE)
    plain = network_of(arms()[0])
    ensemble = ensemble_of(arm, x)
    found: Stored = {"training": training(arm, ensemble, options.repeats), "answers": {}}
    found["training_in_passes"] = isinstance(arm.settings.options, Training) and not arm.label.startswith(
        "single"
    )
    example = Example.of(plain, x)
    with tempfile.TemporaryDirectory() as folder:
        ways, found["missing"] = forms(
            ensemble.eval(), example, Path(folder), threads=options.threads, among=FORMS
        )
        ways = {NETWORK: single(plain.eval(), example), **ways}
        rows = measured(ways, example, batches=options.batches, repeats=options.repeats, reference=NETWORK)
    for row in rows:
        if row.form != NETWORK:
            found["answers"].setdefault(row.form, {})[str(row.batch)] = row.ratio
    return found


def training(arm: PlannedRun, ensemble: covey.Ensemble, repeats: int) -> float:
    """A training step over the single network's; of ways of training, their passes of a step of their network."""
    way, first = arm.settings.options, arms()[0]
    passes = way.training_passes if isinstance(way, Training) else 1.0
    if isinstance(way, Training) and arm.settings.network == first.settings.network:
        return passes
    x, y = torch.randn(64, *SHAPE), torch.randint(0, CLASSES, (64,))
    own = _alone(arm, x) if isinstance(way, Training) else ensemble.train()
    calls = {"one": partial(step, _alone(first, x), x, y), "own": partial(step, own, x, y)}
    seconds = in_turns(calls, repeats=repeats)
    return passes * seconds["own"] / seconds["one"]


def _alone(arm: PlannedRun, x: Tensor) -> covey.Ensemble:
    """An arm's plain network, as an ensemble of one."""
    return covey.convert(network_of(arm), covey.Replicate(members=1), example=x[:4], check=False).train()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", type=Path, help="a JSON file, which keeps what it has")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = known(options.write)
    for arm in arms():
        if arm.label in rows:
            continue
        torch.manual_seed(0)
        rows[arm.label] = part(arm, options)
        print(table({arm.label: rows[arm.label]}, options.batches), flush=True)
        if options.write:
            write(options, rows)
    print(table(rows, options.batches))


def known(path: Path | None) -> Stored:
    """The rows that a file has."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def write(options: argparse.Namespace, rows: Stored) -> None:
    """Keep all rows."""
    about = {
        "command": "python benchmarks/promise_cost.py --write results/promise-cost.json",
        "written": time.strftime("%Y-%m-%d"),
        "threads": options.threads,
        "torch": torch.__version__,
    }
    write_text(options.write, json.dumps({**about, "rows": rows}, indent=1) + "\n")


def table(rows: Stored, batches: list[int]) -> str:
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
