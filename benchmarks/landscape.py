"""The weights between members: a plane through three members' embeddings, and the line between two members.

    python benchmarks/landscape.py [--epochs 12] [--folder docs/methods/figures]

Trains a Hypernetwork of three members and a SuperWeights ensemble of two on the bundled digits, with WRN-10-1, and
draws accuracy and NLL of the test images. Between members, norms use the statistics of the test batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

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
    recipe = covey.Recipe(epochs=options.epochs, batch=64, lr=0.1)
    machine = covey.Machine(accelerator="cpu", progress=False)

    def train(method: covey.Method) -> covey.Ensemble:
        torch.manual_seed(0)
        network = zoo.create("wrn-10-1", classes=10, channels=1)
        ensemble = covey.fit(network, digits, recipe, method=method, machine=machine).ensemble
        accuracy = (ensemble.predict(x).probs.argmax(-1) == y).double().mean()
        print(f"{type(method).__name__}: accuracy {100 * accuracy:.2f} %")
        return ensemble

    hyper = train(covey.Hypernetwork(members=3, budget=None))
    three = [hyper.member(k) for k in range(3)]
    vectors = embeddings(hyper)
    found = plane(three, x, y, points=options.points, embeddings=vectors, batch_statistics=True)
    drawn = {"hypernetwork-plane": figures.plane("Hypernetwork", found)}
    pair = train(covey.SuperWeights(members=2, budget=1.5))
    drawn["superweights-between"] = members.between(pair.member(0), pair.member(1), x, y)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        (options.folder / f"{name}.svg").write_text(figure.file)
        print(f"{name}: {figure.alt}")


if __name__ == "__main__":
    main()
