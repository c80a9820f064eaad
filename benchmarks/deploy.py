"""What deployed ensembles cost: latency of each form over the eager single network's, in one run and in turns.

    python benchmarks/deploy.py                                   # ResNet-18 with the CIFAR stem, four members
    python benchmarks/deploy.py --methods packed --batches 32     # part of it

Forms: the eager ensemble, fused in torch, ONNX Runtime in float and in int8 (calibrated on noise: for speed alone), and
with --compiled the fused module compiled by inductor, which takes a minute or more per method. A collapsed late-phase
network is a network like any other: its row is "single". Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import covey
from covey import zoo
from covey.deploy import DeployedEnsemble
from covey.deploy.int8 import processor_has_vnni

METHODS: dict[str, Any] = {
    "single": covey.Replicate(members=1),
    "packed": covey.Packed(members=4, alpha=2.0),
    "batch-ensemble": covey.BatchEnsemble(members=4),
    "hypernetwork": covey.Hypernetwork(members=4),
    "mixture": covey.Mixture(members=4),
    "masksembles": covey.Masksembles(members=4, scale=2.0),
    "deep-ensemble": covey.DeepEnsemble(members=4),
}


def forms(
    ensemble: covey.Ensemble, x: torch.Tensor, folder: Path, threads: int, compiled: bool
) -> dict[str, Callable]:
    """Ways to answer, each a function of a batch."""
    example = x[:2]
    fused = covey.fuse(ensemble, x)
    covey.export(ensemble, folder / "a.onnx", example)
    covey.export(ensemble, folder / "b.onnx", example, int8=x, int8_limit=1.0)
    plain, small = (DeployedEnsemble(folder / name, threads=threads) for name in ("a.onnx", "b.onnx"))
    found: dict[str, Callable] = {
        "eager": ensemble.predict,
        "fused": fused,
        "onnx": lambda batch: plain(batch.numpy()),
        "int8": lambda batch: small(batch.numpy()),
    }
    if compiled:
        found["compiled"] = torch.compile(fused)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--network", default="cifar-resnet-18")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--compiled", action="store_true", help="compile the fused module too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    network = zoo.create(options.network, classes=10, channels=3).eval()
    x = torch.randn(max(options.batches), 3, 32, 32)
    calls: dict[tuple[str, str], Callable] = {("network", "eager"): network}
    with tempfile.TemporaryDirectory() as place:
        for name in options.methods:
            folder = Path(place) / name
            folder.mkdir()
            ensemble = covey.convert(network, METHODS[name], example=x[:2], check=False).eval()
            for form, call in forms(ensemble, x, folder, options.threads, options.compiled).items():
                calls[name, form] = call
        print(f"VNNI: {processor_has_vnni()}; times over the eager network's, best of {options.repeats}")
        for batch in options.batches:
            best: dict[tuple[str, str], float] = {}
            for turn in range(options.repeats + 1):
                for key, call in calls.items():
                    start = time.perf_counter()
                    with torch.inference_mode():
                        call(x[:batch])
                    if turn:  # the first turn warms up
                        best[key] = min(best.get(key, float("inf")), time.perf_counter() - start)
            for (name, form), seconds in best.items():
                ratio = seconds / best["network", "eager"]
                rate = batch / seconds
                print(
                    f"batch {batch:3d}  {name:16s}{form:8s}{ratio:8.2f}{1000 * seconds:9.1f} ms{rate:9.0f}/s"
                )


if __name__ == "__main__":
    main()
