"""What members cost in training on networks that somebody pretrained: time of a step, and peak memory.

    python benchmarks/large.py            # training steps, as ratios to one network's in the same run
    python benchmarks/large.py --memory   # peak resident memory on a network of BERT-base's size, against one adapter

A step is a forward pass, the loss and a backward pass, without an optimiser. The single network trains all its weights.
`peft, one after another` is a loop over as many adapters of peft, which is what people write today.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey import zoo

# peft and transformers import torchvision if it is there, which on machines without a GPU lacks two operators
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

MEMBERS = 4
RANK = 8
CLASSES = 10


class Encoder(nn.Module):
    """Six transformer layers of 256 features over a sequence, and a head on its mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


class SplitEncoder(nn.Module):
    """The same sizes with separate projections of query, key and value, which peft can wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SplitLayer() for _ in range(6))
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class SplitLayer(nn.Module):
    """Attention of four heads and a feed-forward part, each with a residual and a norm."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(F.relu(self.up(x))))


def best(
    calls: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The least time of each call, taken in turns so that all meet the same disturbances."""
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            times[name] = min(times[name], clock() - start)
    return times


def ensemble_step(network: nn.Module, method: covey.Method, x: Tensor, y: Tensor) -> Callable[[], object]:
    ensemble = covey.convert(network, method, example=x).train()

    def step() -> None:
        ensemble.zero_grad()
        ensemble.loss(x, y).backward()

    step()
    label = f"{type(method).__name__} ({ensemble.run})"
    step.__name__ = label
    return step


def single_step(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    network.train()

    def step() -> None:
        network.zero_grad()
        F.cross_entropy(network(x), y).backward()

    return step


def adapters_step(network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """peft's adapters, one after another, each with its forward and backward pass."""
    import peft

    names = ["query", "key", "value", "out", "up", "down"]
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names, modules_to_save=["head"])
    model = peft.get_peft_model(network, config, adapter_name="0")
    for k in range(1, MEMBERS):
        model.add_adapter(str(k), config)
    model.train()

    def step() -> None:
        model.zero_grad()
        for k in range(MEMBERS):
            model.set_adapter(str(k))
            F.cross_entropy(model(x), y).backward()

    return step


def times(repeats: int, clock: Callable[[], float]) -> None:
    """Training steps as ratios to the single network's."""
    torch.manual_seed(0)
    cases: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
        "MLP 4 x 1024, batch 64": (
            lambda: zoo.create("mlp", classes=CLASSES, features=1024, hidden=(1024,) * 4), (64, 1024), 4.0,
        ),
        "ResNet-18, batch 32": (
            lambda: zoo.create("cifar-resnet-18", classes=CLASSES, channels=3), (32, 3, 32, 32), 3.7,
        ),
        "6 encoder layers, batch 8 x 64": (Encoder, (8, 64, 256), 3.5),
        "the same, projections apart": (SplitEncoder, (8, 64, 256), 3.5),
    }  # fmt: skip
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {MEMBERS} members")
    for name, (make, shape, bound) in cases.items():
        x, y = torch.randn(*shape), torch.randint(0, CLASSES, shape[:1])
        calls = {"single": single_step(make(), x, y)}
        rank_one = ensemble_step(make(), covey.BatchEnsemble(members=MEMBERS), x, y)
        calls[f"{rank_one.__name__}, at most {bound}"] = rank_one
        if "layers" in name or "apart" in name:
            low_rank = ensemble_step(make(), covey.LowRank(members=MEMBERS, rank=RANK), x, y)
            calls[f"{low_rank.__name__}, at most 2.5"] = low_rank
        if "apart" in name:
            calls["peft, one after another"] = adapters_step(make(), x, y)
        taken = best(calls, repeats, clock)
        print(f"{name}: single {1e3 * taken['single']:.1f} ms")
        for label, seconds in taken.items():
            if label != "single":
                print(f"    {label:52} {seconds / taken['single']:5.2f}", flush=True)


# --- memory: each case in a process of its own ---------------------------------------------------------------

PEAKS: list[int] = []
"""Peak resident memory in KiB: up to the first step, and from then on."""


def peak() -> int:
    """Peak resident memory of this process in KiB since it was last forgotten."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def ready() -> None:
    """Call before the first step: what making the network or the ensemble took is not what training takes."""
    PEAKS.append(peak())
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_labels=CLASSES))


def fine_tune_adapter() -> None:
    """One adapter of peft on the network of BERT-base's size."""
    import peft

    names = ["query", "key", "value", "dense"]
    model = peft.get_peft_model(bert(), peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names))
    x, y = torch.randint(0, 1000, (8, 128)), torch.randint(0, CLASSES, (8,))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ready()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x).logits, y).backward()
        optimizer.step()


def fine_tune_members() -> None:
    """Four low-rank members, one after another."""
    x, y = torch.randint(0, 1000, (8, 128)), torch.randint(0, CLASSES, (8,))
    network = bert()
    ensemble = covey.convert(
        network, covey.LowRank(members=MEMBERS, rank=RANK), example=x[:1], output="logits", check=False
    )
    del network
    ensemble.run = "loop"
    ensemble.train()
    optimizer = torch.optim.AdamW(ensemble.param_groups(lr=1e-4))
    ready()
    for _ in range(3):
        optimizer.zero_grad()
        for k in range(MEMBERS):
            ensemble.losses(x, y, members=[k]).sum().backward()
        optimizer.step()


def wide() -> nn.Module:
    """A network of 68 million parameters with small activations."""
    return zoo.create("mlp", classes=CLASSES, features=1024, hidden=(4096,) * 5)


def train_one() -> None:
    """The wide network itself."""
    network, x, y = wide(), torch.randn(64, 1024), torch.randint(0, CLASSES, (64,))
    ready()
    for _ in range(2):
        single_step(network, x, y)()


def train_mixture(recompute: bool) -> None:
    """Four members that are mixed of templates, together of the network's number of parameters; all in one step."""
    x, y = torch.randn(64, 1024), torch.randint(0, CLASSES, (64,))
    method = covey.Mixture(members=MEMBERS, linear=True, recompute=recompute)
    ensemble = covey.convert(wide(), method, example=x[:1], check=False).train()
    ensemble.run = "loop"
    ready()
    for _ in range(2):
        ensemble.zero_grad()
        ensemble.loss(x, y).backward()


MEMORY: dict[str, Callable[[], None]] = {
    "one adapter": fine_tune_adapter,
    "low-rank members": fine_tune_members,
    "one network": train_one,
    "mixture": lambda: train_mixture(False),
    "mixture, recomputed": lambda: train_mixture(True),
}


def memory() -> None:
    """Peak resident memory of making and of training, and ratios of both."""
    peaks: dict[str, list[int]] = {}
    for name in MEMORY:
        ran = subprocess.run(
            [sys.executable, __file__, "--one", name], check=True, stdout=subprocess.PIPE, text=True
        )
        peaks[name] = json.loads(ran.stdout.splitlines()[-1])
        making, training = (kib / 2**20 for kib in peaks[name])
        print(f"{name:20} made with {making:5.2f} GiB, trained with {training:5.2f} GiB", flush=True)
    for name, base in (("low-rank members", "one adapter"), ("mixture, recomputed", "one network")):
        training = peaks[name][1] / peaks[base][1]
        whole = max(peaks[name]) / max(peaks[base])
        print(f"{name} / {base}: training {training:.2f}, at most 1.3; with conversion {whole:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", action="store_true", help="peak resident memory instead of times")
    parser.add_argument("--one", choices=tuple(MEMORY), help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time, for a busy machine; one thread"
    )
    options = parser.parse_args()
    if options.one:
        MEMORY[options.one]()
        print(json.dumps([*PEAKS, peak()]))
    elif options.memory:
        memory()
    else:
        times(options.repeats, time.process_time if options.cpu_time else time.perf_counter)


if __name__ == "__main__":
    main()
