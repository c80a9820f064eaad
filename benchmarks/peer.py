"""The closest peer, torch-uncertainty, and covey train the same ensembles of the same network on the same data.

    python benchmarks/peer.py --write results/peer.json             # all, three seeds; resumes
    python benchmarks/peer.py --methods packed --seeds 0            # part of it

The network is the peer's own ResNet-18 at a quarter of its width; covey converts it, the peer has an ensemble of it for
each method. 3,000 images of clothes for training, 2,000 for the test (`fashion-mnist-small`), SGD with Nesterov
momentum, a cosine schedule, no augmentation. The loss of both is the sum over members of each one's mean, and what
members share gets the mean of their gradients: covey scales it so, and hooks do it in the peer's networks. The peer's
rank-one factors get the learning rate and the decay that covey gives its own. Both of a pair are trained in one
process, in turns of an epoch on the same minibatches, so that the ratio of their times is fair on a busy machine.

torch-uncertainty wants an environment of its own, with covey[data] in it. torchvision's operators, which the CPU build
of torch lacks, are declared below.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
warnings.filterwarnings("ignore")

import torch_uncertainty.models.classification as peer  # noqa: E402
from torch_uncertainty.methods import mc_dropout  # noqa: E402

import covey  # noqa: E402
from covey.files import write_text  # noqa: E402
from covey.scores import metrics  # noqa: E402

MEMBERS, EPOCHS, BATCH, LR, DECAY = 4, 10, 64, 0.05, 5e-4
SHAPE: dict[str, Any] = {
    "in_channels": 1,
    "num_classes": 10,
    "arch": 18,
    "style": "cifar",
    "width_multiplier": 0.25,
}
PASSES = 8  # of MC-dropout at test
RATE = 0.1  # of MC-dropout


@dataclass
class Contestant:
    """A network or an ensemble in training: its parameters, its loss, its members' logits."""

    parameters: list[dict[str, Any]]
    loss: Callable[[Tensor, Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]  # (M, B, C)
    module: nn.Module


def plain(network: nn.Module) -> Contestant:
    """A network that is trained as it is."""
    return Contestant(
        [{"params": list(network.parameters())}],
        lambda x, y: nn.functional.cross_entropy(network(x), y),
        lambda x: network(x)[None],
        network,
    )


FACTORS = ("r_group", "s_group")
"""What the peer calls the vectors of its BatchEnsemble."""


def peers(network: nn.Module, members: int, *, sharing: bool = False) -> Contestant:
    """An ensemble of the peer, whose output has members before samples in one axis.

    Args:
        network: the peer's.
        members: how many.
        sharing: whether its members share weights, whose gradients are to be means over members then.
    """

    def logits(x: Tensor) -> Tensor:
        return network(x).unflatten(0, (members, -1))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return sum(nn.functional.cross_entropy(each, y) for each in logits(x))

    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if sharing:
        for name, parameter in trained.items():
            if not _is_a_members_own(name, parameter, members):
                parameter.register_hook(lambda gradient: gradient / members)
    factors = [p for name, p in trained.items() if name.endswith(FACTORS)]
    others = [p for name, p in trained.items() if not name.endswith(FACTORS)]
    groups: list[dict[str, Any]] = [{"params": others}]
    if factors:
        groups.append({"params": factors, "lr": covey.BatchEnsemble.lr * LR, "weight_decay": 0.0})
    return Contestant(groups, loss, logits, network)


def _is_a_members_own(name: str, parameter: Tensor, members: int) -> bool:
    """Whether a tensor of the peer's has rows of members, or is one member's norm."""
    rows = parameter.ndim == 2 and len(parameter) == members and name.endswith((*FACTORS, "bias"))
    return rows or ".each." in name


def coveys(method: Any, x: Tensor, network: nn.Module) -> Contestant:
    """The same network, converted."""
    ens = covey.convert(network, method, example=x[:4])
    return Contestant(ens.param_groups(lr=LR, weight_decay=DECAY), ens.loss, ens, ens)


def peers_dropout() -> Contestant:
    """The peer's network with dropout, left on at test by its own wrapper."""
    network = mc_dropout(peer.resnet(**SHAPE, dropout_rate=RATE), PASSES)
    found = plain(network)
    found.logits = lambda x: network(x).unflatten(0, (PASSES, -1))
    return found


class OwnNorms(nn.Module):
    """A norm of its own for each member of the peer's ensembles, whose batch has members before samples."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.each = nn.ModuleList(copy.deepcopy(norm) for _ in range(MEMBERS))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each member's part of the batch."""
        parts = x.chunk(MEMBERS)
        return torch.cat([norm(part) for norm, part in zip(self.each, parts, strict=True)])


def peers_rank_one(*, own_norms: bool) -> Contestant:
    """The peer's BatchEnsemble, whose members share their norms and so the statistics in them, or have their own."""
    network = peer.batched_resnet(**SHAPE, num_estimators=MEMBERS, conv_bias=False, repeat_strategy="legacy")
    if own_norms:
        for module in list(network.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, OwnNorms(child))
    return peers(network, MEMBERS, sharing=True)


PAIRS: dict[str, tuple[Callable[[], Contestant], Callable[[Tensor], Contestant]]] = {
    "single": (
        lambda: plain(peer.resnet(**SHAPE)),
        lambda x: coveys(covey.Replicate(members=1), x, peer.resnet(**SHAPE)),
    ),
    "packed": (
        lambda: peers(peer.packed_resnet(**SHAPE, num_estimators=MEMBERS, alpha=2, gamma=1), MEMBERS),
        lambda x: coveys(covey.Packed(members=MEMBERS, alpha=2.0), x, peer.resnet(**SHAPE)),
    ),
    "batch-ensemble": (
        lambda: peers_rank_one(own_norms=False),
        lambda x: coveys(covey.BatchEnsemble(members=MEMBERS), x, peer.resnet(**SHAPE)),
    ),
    # what of the difference is due to norms: the peer's network is changed to have one set per member, as covey has
    "batch-ensemble, norms per member in both": (
        lambda: peers_rank_one(own_norms=True),
        lambda x: coveys(covey.BatchEnsemble(members=MEMBERS), x, peer.resnet(**SHAPE)),
    ),
    "masksembles": (
        lambda: peers(
            peer.masked_resnet(
                **SHAPE, num_estimators=MEMBERS, scale=2.0, conv_bias=False, repeat_strategy="legacy"
            ),
            MEMBERS,
            sharing=True,
        ),
        lambda x: coveys(covey.Masksembles(members=MEMBERS, scale=2.0), x, peer.resnet(**SHAPE)),
    ),
    "mc-dropout": (
        peers_dropout,
        lambda x: coveys(covey.MCDropout(members=PASSES), x, peer.resnet(**SHAPE, dropout_rate=RATE)),
    ),
}


def epoch(one: Contestant, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, order: Tensor) -> float:
    """One epoch over the samples in an order; returns its seconds."""
    one.module.train()
    start = time.perf_counter()
    for rows in order.split(BATCH):
        optimizer.zero_grad()
        one.loss(x[rows], y[rows]).backward()
        optimizer.step()
    return time.perf_counter() - start


def scores(one: Contestant, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, NLL and ECE of the mean of the members' probabilities, by covey's metrics for both."""
    one.module.eval()
    with torch.inference_mode():
        parts = [one.logits(part).softmax(-1).mean(0) for part in x.split(250)]
    log_probs = torch.cat(parts).log()
    return {
        "accuracy": metrics.accuracy(log_probs, y),
        "nll": metrics.nll(log_probs, y),
        "ece": metrics.ece(log_probs, y),
    }


def train_pair(name: str, seed: int) -> list[dict[str, Any]]:
    """Both contestants, in turns of an epoch, on the same minibatches."""
    data = covey.data.load("fashion-mnist-small")
    x, y = data.prepare(data.train.inputs), data.train.targets
    test, labels = data.prepare(data.test.inputs), data.test.targets
    make_peer, make_covey = PAIRS[name]
    found: dict[str, Contestant] = {}
    for who, make in (("torch-uncertainty", make_peer), ("covey", lambda: make_covey(x))):
        torch.manual_seed(seed)
        found[who] = make()
    optimizers, schedules = {}, {}
    for who, one in found.items():
        optimizers[who] = torch.optim.SGD(
            one.parameters, lr=LR, momentum=0.9, nesterov=True, weight_decay=DECAY
        )
        schedules[who] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[who], EPOCHS)
    generator = torch.Generator().manual_seed(seed)
    seconds: dict[str, list[float]] = {who: [] for who in found}
    for _ in range(EPOCHS):
        order = torch.randperm(len(x), generator=generator)
        for who, one in found.items():
            torch.manual_seed(seed + 1)
            seconds[who].append(epoch(one, optimizers[who], x, y, order))
            schedules[who].step()
    return [
        {
            "method": name,
            "library": who,
            "seed": seed,
            "parameters": sum(p.numel() for group in one.parameters for p in group["params"]),
            "epoch_seconds": min(seconds[who]),
            **scores(one, test, labels),
        }
        for who, one in found.items()
    ]


def _told(row: dict[str, Any]) -> str:
    who = f"{row['method']:16}{row['library']:19}seed {row['seed']}"
    scored = f"accuracy {100 * row['accuracy']:.1f}  NLL {row['nll']:.3f}  ECE {row['ece']:.3f}"
    return f"{who}  {scored}  {row['parameters']:9,d} parameters  epoch {row['epoch_seconds']:.1f} s"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows so far, a line each."""
    versions = {name: version(name) for name in ("torch", "torch-uncertainty")}
    about = {
        "command": "python benchmarks/peer.py",
        "versions": {**versions, "covey": covey.__version__},
        "written": time.strftime("%Y-%m-%d"),
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(path, json.dumps(about, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--write", type=Path, help="a JSON file, which grows by each pair; pairs in it are not trained again"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    if options.write and options.write.exists():
        rows = json.loads(options.write.read_text())["runs"]
    for seed in options.seeds:
        for name in options.methods:
            if any((row["method"], row["seed"]) == (name, seed) for row in rows):
                continue
            rows += train_pair(name, seed)
            for row in rows[-2:]:
                print(_told(row), flush=True)
            if options.write:
                write(options.write, rows)


if __name__ == "__main__":
    main()
