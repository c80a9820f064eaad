"""Refinement end to end on two members of different depth, and the figures of the docs.

    python benchmarks/superweights.py [--samples 400] [--epochs 6] [--tau 0.3] [--folder docs/methods/figures]

Trains WRN-16-4 and WRN-10-4 as one SuperWeights ensemble on digits: explores, refines its clusters, starts again,
tells coefficients apart; then draws the clusters, and the score of every subset of members against its time.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import covey
from covey import data, zoo
from covey.report import members
from covey.scores import anytime

NETWORKS = ("wrn-16-4", "wrn-10-4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tau", type=float, default=0.3)
    parser.add_argument("--folder", type=Path, default=Path("docs/methods/figures"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits = data.load("digits")
    some = data.Split(digits.train.inputs[: arguments.samples], digits.train.targets[: arguments.samples])
    digits = replace(digits, train=some)
    method = covey.SuperWeights(budget=1.5, refine_at=2, decouple_at=1, tau=arguments.tau, beta=0.9)
    torch.manual_seed(0)
    networks = [zoo.create(name, classes=10, channels=1) for name in NETWORKS]
    ensemble = covey.convert(networks, method, example=digits.prepare(digits.train.inputs[:2]))
    before = len(ensemble.about.extra["superweights"]["clusters"])
    recipe = covey.Recipe(epochs=arguments.epochs, batch=64, lr=0.05)
    history = covey.fit(ensemble, digits, recipe, machine=covey.Machine(accelerator="cpu", progress=False))
    trained = history.ensemble
    plan = trained.about.extra["superweights"]
    rows = sum(max(each) + 1 for each in plan["rows"].values())
    print(f"clusters: {before} at first, {len(plan['clusters'])} refined with tau {plan['tau']}")
    print(f"rows of coefficients: {rows}")
    print(f"parameters: {trained.coverage.total:,}, {trained.coverage.ratio:.3f} of the networks' mean")
    x, y = digits.prepare(digits.test.inputs), digits.test.targets
    found = anytime(trained, x, y, batch=64)
    for subset in found.subsets:
        names = " + ".join(NETWORKS[k] for k in subset.members)
        print(f"{names}: {subset.multiply_adds:,} multiply-adds, accuracy {subset.score:.4f}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for figure in (
        members.clusters(trained, NETWORKS),
        members.anytime({"SuperWeights": found}, "multiply_adds"),
    ):
        (arguments.folder / f"superweights-{figure.name}.svg").write_text(figure.file)


if __name__ == "__main__":
    main()
