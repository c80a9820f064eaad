"""Packed-Ensembles: speed against a single network and the closest peer in one run, and the costs of Table 10.

    python benchmarks/packed.py            # speed
    python benchmarks/packed.py --costs    # parameters and multiply-adds of the paper's Table 10

Speed: ResNet-18 with the CIFAR stem, batch 32, four members, alpha 2, two threads; times over the single network's,
best of several, all taken in turns so that every row meets the same disturbances. The peer (torch-uncertainty) is timed
if it can be imported; it wants an environment of its own:

    pip install torch==2.13.0 && pip install --no-deps torchvision==0.28.0 timm torch-uncertainty
    pip install einops seaborn "lightning[pytorch-extra]<2.7" huggingface-hub safetensors pyyaml torchmetrics scipy
    pip install "scikit-learn<1.7" pillow
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import covey
from covey import zoo
from covey.scores.cost import multiply_adds
from covey.surgery import narrow

MEMBERS, BATCH, ALPHA = 4, 32, 2.0

# method, network, parameters (M), multiply-adds (G) as printed
TABLE_10 = {
    ("Single", "R50"): (25.6, 4.09),
    ("BatchEnsemble", "R50"): (25.7, 16.36),
    ("MIMO", "R50"): (31.7, 4.45),
    ("Masksembles", "R50"): (25.7, 16.36),
    ("Packed alpha 3", "R50"): (59.1, 9.29),
    ("Deep ensemble", "R50"): (102.4, 16.36),
    ("Single", "R50x4"): (383.6, 70.0),
    ("BatchEnsemble", "R50x4"): (384.4, 256.0),
    ("MIMO", "R50x4"): (408.3, 65.4),
    ("Masksembles", "R50x4"): (384.0, 256.0),
    ("Packed alpha 2", "R50x4"): (392.0, 64.47),
    ("Deep ensemble", "R50x4"): (1534.4, 280.0),
}


def import_peer() -> Any:
    """The peer's networks, or None. Its torchvision may lack two compiled operators that are never called."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # it has them
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_uncertainty.models.classification as peer
    except Exception as problem:
        print(f"the peer is left out: torch_uncertainty cannot be imported here ({problem})")
        return None
    peer.covey_library = library
    return peer


def candidates(x: torch.Tensor) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Every network that is timed, with the input in its memory format."""
    network = zoo.create("cifar-resnet-18", classes=10, channels=3)
    method = covey.Packed(members=MEMBERS, alpha=ALPHA)
    ensemble = covey.convert(network, method, example=x[:2])
    last = x.to(memory_format=torch.channels_last)
    found: dict[str, tuple[nn.Module, torch.Tensor]] = {"single": (network, x)}
    peer = import_peer()
    if peer is not None:
        shape = {"in_channels": 3, "num_classes": 10, "arch": 18, "style": "cifar"}
        found["peer single"] = (peer.resnet(**shape), x)
        packed = peer.packed_resnet(**shape, num_estimators=MEMBERS, alpha=int(ALPHA), gamma=1)
        found["peer packed"] = (packed, x)
        twin = copy.deepcopy(packed).to(memory_format=torch.channels_last)
        found["peer packed, channels_last"] = (twin, last)
    for run in ("loop", "batched"):
        for name, data in (("", x), (", channels_last", last)):
            twin = covey.convert(network, method, example=x[:2])
            twin.run = run
            if name:
                twin.to(memory_format=torch.channels_last)
            found[f"covey {run}{name}"] = (twin, data)
    found["covey packed"] = (ensemble.pack(x[:2]), x)
    found["covey packed, channels_last"] = (ensemble.pack(x[:2]).to(memory_format=torch.channels_last), last)
    return found


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times = {name: float("inf") for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:  # the first turn warms up
                times[name] = min(times[name], time.perf_counter() - start)
    return times


def speed(repeats: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    networks = candidates(torch.randn(BATCH, 3, 32, 32))
    results: dict[str, Any] = {}
    for mode in ("inference", "training step"):
        for network, _ in networks.values():
            network.train(mode != "inference")

        def call(network: nn.Module, x: torch.Tensor, training: bool = mode != "inference") -> None:
            if not training:
                with torch.inference_mode():
                    network(x)
                return
            network.zero_grad()
            network(x).square().mean().backward()

        results[mode] = best({n: lambda a=a: call(*a) for n, a in networks.items()}, repeats)
    print(f"torch {torch.__version__}, {threads} threads, batch {BATCH}; times over the single network's")
    print(f"{'':30s}{'parameters':>12s}{'inference':>12s}{'training step':>15s}")
    for name, (network, _) in networks.items():
        count = sum(p.numel() for p in network.parameters())
        ratios = [results[mode][name] / results[mode]["single"] for mode in results]
        print(f"{name:30s}{count / 1e6:11.2f}M{ratios[0]:12.2f}{ratios[1]:15.2f}")
    return results


def costs() -> dict[tuple[str, str], tuple[float, float]]:
    """Table 10 by counting, on networks without memory: parameters and inference multiply-adds."""
    with torch.device("meta"):
        base = zoo.create("resnet-50", classes=1000).eval()
        x = torch.zeros(1, 3, 224, 224)

    def size(network: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    def at(network: nn.Module, ratio: float) -> nn.Module:
        with torch.device("meta"):
            return narrow(network, ratio, torch.zeros(2, 3, 64, 64)).network

    rows: dict[tuple[str, str], tuple[float, float]] = {}
    for label, network, alpha in (("R50", base, 3.0), ("R50x4", at(base, 4), 2.0)):
        single, adds = size(network), multiply_adds(network, x)
        member = at(base, alpha / MEMBERS * (4 if label == "R50x4" else 1))
        convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        head = next(m for m in network.modules() if isinstance(m, nn.Linear))
        stem = convs[0]
        stem_adds = stem.weight.numel() * 112 * 112
        # rank one: r and s of every convolution and the head; masks: four for the output of every convolution
        rank_one = MEMBERS * sum(m.in_channels + m.out_channels for m in convs)
        rank_one += MEMBERS * (head.in_features + head.out_features)
        masks = MEMBERS * sum(m.out_channels for m in convs)
        more = (MEMBERS - 1) * (stem.weight.numel() + head.weight.numel() + head.bias.numel())
        more_adds = (MEMBERS - 1) * (stem_adds + head.weight.numel())
        counted = {
            "Single": (single, adds),
            "BatchEnsemble": (single + rank_one, MEMBERS * adds),
            "MIMO": (single + more, adds + more_adds),
            "Masksembles": (single + masks, MEMBERS * adds),
            f"Packed alpha {alpha:g}": (MEMBERS * size(member), MEMBERS * multiply_adds(member, x)),
            "Deep ensemble": (MEMBERS * single, MEMBERS * adds),
        }
        rows |= {(method, label): (p / 1e6, a / 1e9) for method, (p, a) in counted.items()}
    print(f"{'method':16s}{'network':9s}{'counted':>16s}{'printed':>18s}")
    for key, (parameters, adds) in rows.items():
        printed = TABLE_10[key]
        print(f"{key[0]:16s}{key[1]:9s}{parameters:8.1f} {adds:7.2f}{printed[0]:10.1f} {printed[1]:7.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--costs", action="store_true", help="count Table 10 instead of timing")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write the seconds to this file too")
    options = parser.parse_args()
    if options.costs:
        costs()
        return
    results = speed(options.repeats, options.threads)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
