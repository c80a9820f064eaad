"""Speed and memory of weights made of templates, as ratios in one run.

    python benchmarks/templates.py [--networks convnet wrn-16-4] [--rounds 7]

For each network and method, with 4 members and batches of 64: a training step and an inference call over those of the
same members with weights of their own (a deep ensemble in a loop run), the stored bytes over those of the tensors, and
the most memory alive in a loop run at inference with nothing kept, over one member's weights and largest activations.
One thread and its processor time, both taken in turn, best of each: a busy machine disturbs that least.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import covey
from covey import zoo
from covey.scores.cost import peak_bytes

MEMBERS, BATCH = 4, 64


def methods() -> dict[str, covey.Method]:
    return {
        "hypernetwork": covey.Hypernetwork(members=MEMBERS, linear=True, sizes=(3, 2, 4), budget=None),
        "mixture": covey.Mixture(members=MEMBERS, budget=1.2, linear=True, singles="bank"),
        "superweights": covey.SuperWeights(members=MEMBERS, budget=1.5, linear=True),
        "shapeshifter": covey.ShapeShifter(members=MEMBERS, budget=1.5, linear=True),
    }


def seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(ours, theirs, rounds: int) -> float:
    """Best time of one over the other's, taken in turn: what the machine can do undisturbed."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def step(ensemble: covey.Ensemble, x: torch.Tensor, y: torch.Tensor):
    optimiser = torch.optim.SGD(ensemble.param_groups(0.01, 5e-4), momentum=0.9, nesterov=True)

    def work() -> None:
        optimiser.zero_grad()
        ensemble.loss(x, y).backward()
        optimiser.step()

    return work


def call(ensemble: covey.Ensemble, x: torch.Tensor):
    @torch.inference_mode()
    def work() -> None:
        ensemble(x)

    return work


def stored_ratio(ensemble: covey.Ensemble) -> float:
    tensors = sum(t.numel() * t.element_size() for t in [*ensemble.parameters(), *ensemble.buffers()])
    with tempfile.TemporaryDirectory() as folder:
        covey.save(ensemble, folder)
        return sum(path.stat().st_size for path in Path(folder).glob("*.safetensors")) / tensors


def peak_ratio(ensemble: covey.Ensemble, x: torch.Tensor) -> tuple[float, float]:
    """Bytes alive above the stored tensors, over what one member needs as a plain network; kept and not."""
    found = []
    member = ensemble.member(0).eval()
    with torch.inference_mode():
        alone = peak_bytes(member, x) - x.numel() * x.element_size()
        base = sum(t.numel() * t.element_size() for t in [*ensemble.parameters(), *ensemble.buffers()])
        for keep in (0.0, 256.0):
            for part in ensemble.parts.values():
                part.keep = keep
            ensemble.eval()
            found.append((peak_bytes(ensemble, x) - base - x.numel() * x.element_size()) / alone)
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["convnet", "wrn-16-4"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--untimed", action="store_true", help="bytes only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | method | training step | inference | stored bytes | peak, one at a time | peak, kept |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.networks:
        torch.manual_seed(0)
        network = zoo.create(name, classes=10)
        x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
        deep = covey.convert(network, covey.DeepEnsemble(members=MEMBERS), example=x[:2])
        deep.run = "loop"
        for label, method in methods().items():
            ensemble = covey.convert(network, method, example=x[:2])
            ensemble.run = "loop"
            train = infer = float("nan")
            if not arguments.untimed:
                train = ratio(step(ensemble.train(), x, y), step(deep.train(), x, y), arguments.rounds)
                infer = ratio(call(ensemble.eval(), x), call(deep.eval(), x), 3 * arguments.rounds)
            once, kept = peak_ratio(ensemble, x)
            numbers = f"{train:.3f} | {infer:.3f} | {stored_ratio(ensemble):.3f} | {once:.2f} | {kept:.2f}"
            print(f"| {name} | {label} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
