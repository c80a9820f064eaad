"""How the two runs compare, and what `auto` makes of it: ratios in one run, best of several.

    python benchmarks/run.py

For each network and mode: the loop's, the batched run's and auto's time over the faster of the two.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
from torch import nn

import covey
from covey import zoo


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "mlp": (zoo.create("mlp", classes=10, features=64), torch.randn(128, 64)),
        "convnet": (zoo.create("convnet", classes=10, channels=3, image_size=32), torch.randn(64, 3, 32, 32)),
        "cifar-resnet-18": (zoo.create("cifar-resnet-18", classes=10, channels=3), torch.randn(8, 3, 32, 32)),
    }


def best(calls: dict[str, Callable[[], object]], repeats: int, seconds: float) -> dict[str, float]:
    """The least time of each call, taken in turns so that all meet the same disturbances."""
    times = {name: float("inf") for name in calls}
    end = time.perf_counter() + seconds
    while repeats > 0 or time.perf_counter() < end:
        repeats -= 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def step(ensemble: covey.Ensemble, x: torch.Tensor) -> None:
    if ensemble.training:
        ensemble.zero_grad()
        ensemble(x).square().mean().backward()
    else:
        with torch.no_grad():
            ensemble(x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15, help="rounds at least")
    parser.add_argument("--seconds", type=float, default=6, help="go on with rounds for so long")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.members} members")
    print(f"{'network':17s}{'method':16s}{'mode':7s}{'loop':>7s}{'batched':>9s}{'auto':>7s}  choice")
    for name, (network, x) in networks().items():
        for method in (
            covey.DeepEnsemble(members=options.members),
            covey.BatchEnsemble(members=options.members),
        ):
            for mode in ("train", "eval"):
                made = {}
                for run in ("loop", "batched", "auto"):
                    made[run] = covey.convert(network, method, example=x).train(mode == "train")
                    made[run].run = run
                    step(made[run], x)  # warm up; auto measures here
                calls = {run: functools.partial(step, ensemble, x) for run, ensemble in made.items()}
                times = best(calls, options.repeats, options.seconds)
                least = min(times["loop"], times["batched"])
                ratios = [times[run] / least for run in ("loop", "batched", "auto")]
                cells = "".join(f"{r:{w}.2f}" for r, w in zip(ratios, (7, 9, 7), strict=True))
                print(
                    f"{name:17s}{type(method).__name__:16s}{mode:7s}{cells}  {made['auto'].run}", flush=True
                )


if __name__ == "__main__":
    main()
