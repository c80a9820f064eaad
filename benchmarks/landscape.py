"""The weights between members: planes through three members' embeddings, and the line between two members.

    python benchmarks/landscape.py [--epochs 12] [--folder docs/methods/figures]

Trains a Hypernetwork of three members that starts late, as paper 1 does, another whose members learn from the onset,
and a SuperWeights ensemble of two on the bundled digits, with WRN-10-1, and draws accuracy and NLL of the test images.
Between members, norms use the statistics of the test batch.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import covey
from covey import data, zoo
from covey.methods.hypernetwork import embeddings
from covey.report import figures, members
from covey.scores.landscape import plane


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--points", type=int, default=21, help="along each side of the plane")
    parser.add_argument("--folder", type=Path, default=Path("docs/methods/figures"))
    options = parser.parse_args()
    digits = data.load("digits")
    x, y = digits.prepare(digits.test.inputs), digits.test.targets
    recipe = covey.Recipe(epochs=options.epochs, batch=64, lr=0.1, run="loop")  # the same numbers every time
    machine = covey.Machine(accelerator="cpu", progress=False)

    def train(method: covey.Method | covey.Training) -> covey.Ensemble:
        torch.manual_seed(0)
        network = zoo.create("wrn-10-1", classes=10, channels=1)
        ensemble = covey.fit(network, digits, recipe, method=method, machine=machine).ensemble
        accuracy = (ensemble.predict(x).probs.argmax(-1) == y).double().mean()
        print(f"{type(method).__name__}: accuracy {100 * accuracy:.2f} %")
        return ensemble

    drawn = {}
    planes = {
        "hypernetwork-plane-late": covey.Economical(members=3, noise=0.5, norms="single", nested=False),
        "hypernetwork-plane": covey.Hypernetwork(members=3, budget=None),
    }
    for name, method in planes.items():
        hyper = train(method)
        three = [hyper.member(k) for k in range(3)]
        found = plane(three, x, y, points=options.points, embeddings=embeddings(hyper), batch_statistics=True)
        drawn[name] = figures.plane(type(method).__name__, found)
        _say(name, three, x, y)
    pair = train(covey.SuperWeights(members=2, budget=1.5))
    drawn["superweights-between"] = members.between(pair.member(0), pair.member(1), x, y)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        (options.folder / f"{name}.svg").write_text(figure.file)
        print(f"{name}: {figure.alt}")


def _say(name: str, three: Sequence[nn.Module], x: torch.Tensor, y: torch.Tensor) -> None:
    """Print accuracies at the members, half way between them, and in the middle of all three."""
    tensors = [dict(network.named_parameters()) for network in three]
    network = copy.deepcopy(three[0]).train()  # norms use the batch's statistics
    parts = {"members": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "middle": [[1 / 3, 1 / 3, 1 / 3]]}
    parts["half way"] = [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
    for where, mixes in parts.items():
        found = []
        for mix in mixes:
            with torch.no_grad():
                for key, parameter in network.named_parameters():
                    parameter.copy_(sum(w * each[key] for w, each in zip(mix, tensors, strict=True)))
                found.append(f"{100 * (network(x).argmax(-1) == y).double().mean():.1f}")
        print(f"{name}, {where}: {', '.join(found)} %")


if __name__ == "__main__":
    main()
