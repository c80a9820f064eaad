"""A report of four methods on scikit-learn's digits, five seeds: about three minutes on two cores.

The digits 8 and 9 are held out and serve as out-of-distribution inputs, beside noise. Only 200 images train, so
that there is something to gain.

Run: python benchmarks/report_digits.py build/digits
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import covey
from covey.data import Data, Split
from covey.report import Run, write
from covey.scores import evaluate, measure_cost
from covey.scores.landscape import flatness, interpolation, plane

SEEDS = (0, 1, 2, 3, 4)
EPOCHS, BATCH, LR, DECAY = 40, 25, 0.05, 5e-4
TRAIN, VALIDATION, NOISE = 200, 300, 300
MEMBERS = 4
LANDSCAPE_SAMPLES = 256


def digits() -> Data:
    """Digits 0 to 7 with known labels, 8 and 9 as out-of-distribution inputs."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    pixels = pixels[order]
    labels = labels[order]
    known = labels < 8
    x = pixels[known]
    y = labels[known]
    parts = [TRAIN, VALIDATION, len(y) - TRAIN - VALIDATION]
    train, validation, test = map(Split, x.split(parts), y.split(parts))
    noise = torch.rand((NOISE, 1, 8, 8), generator=generator)
    return Data(
        train=train,
        validation=validation,
        test=test,
        task="classification",
        classes=tuple(str(i) for i in range(8)),
        shape=(1, 8, 8),
        ood={"digits 8 and 9": pixels[~known], "noise": noise},
    )


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 8),
    )


METHODS: dict[str, covey.Method | None] = {
    "Single network": None,
    "Deep ensemble": covey.DeepEnsemble(members=MEMBERS),
    "BatchEnsemble": covey.BatchEnsemble(members=MEMBERS),
    "Multi-head": covey.MultiHead(members=MEMBERS),
}


def train(module: nn.Module, data: Data, seed: int) -> tuple[list[dict[str, float]], float]:
    """One loop for all; returns what it recorded, and its seconds."""
    if isinstance(module, covey.Ensemble):
        groups = module.param_groups(LR, DECAY)
    else:
        groups = [{"params": module.parameters()}]
    optimiser = torch.optim.SGD(groups, lr=LR, momentum=0.9, nesterov=True, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    generator = torch.Generator().manual_seed(seed)
    history = []
    start = time.process_time()
    for epoch in range(1, EPOCHS + 1):
        train_loss = _epoch(module, data, optimiser, generator)
        schedule.step()
        row = {"epoch": epoch, "train_loss": train_loss}
        history.append(row | _validation(module, data))
    return history, time.process_time() - start


def _epoch(
    module: nn.Module, data: Data, optimiser: torch.optim.Optimizer, generator: torch.Generator
) -> float:
    """Go through the training data once; the mean loss per member."""
    x, y = data.train.inputs, data.train.targets
    module.train()
    total = 0.0
    for batch in torch.randperm(len(y), generator=generator).split(BATCH):
        outputs = _members(module, x[batch])
        loss = covey.loss(outputs, y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        per_member = float(loss.detach()) / len(outputs)
        total += per_member * len(batch)
    return total / len(y)


@torch.no_grad()
def _validation(module: nn.Module, data: Data) -> dict[str, float]:
    x, y = data.validation.inputs, data.validation.targets
    module.eval()
    log_probs = covey.Prediction(_members(module, x)).log_probs
    correct = log_probs.argmax(-1) == y
    return {
        "validation_nll": float(F.nll_loss(log_probs, y)),
        "validation_accuracy": float(correct.float().mean()),
    }


def _members(module: nn.Module, x: Tensor) -> Tensor:
    """Outputs (M, B, C); a single network is one member."""
    outputs = module(x)
    return outputs if isinstance(module, covey.Ensemble) else outputs[None]


def landscape(module: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    inputs, labels = data.test.inputs, data.test.targets
    x = inputs[:LANDSCAPE_SAMPLES]
    y = labels[:LANDSCAPE_SAMPLES]
    if not isinstance(module, covey.Ensemble):
        return {"flatness": flatness(module, x, y)}
    members = [module.member(k) for k in range(3)]
    found: dict[str, Any] = {
        "flatness": flatness(members[0], x, y),
        "interpolation": interpolation(members[0], members[1], x, y, batch_statistics=True),
    }
    if seed == SEEDS[0]:
        found["plane"] = plane(members, x, y, batch_statistics=True)
    return found


def settings(method: covey.Method | None, seed: int) -> dict[str, Any]:
    """What is needed to repeat a run."""
    options = {} if method is None else asdict(method)
    options.pop("factory", None)
    recipe = {"epochs": EPOCHS, "batch": BATCH, "lr": LR, "weight_decay": DECAY, "schedule": "cosine"}
    data = {"name": "scikit-learn digits, classes 0 to 7", "train": TRAIN, "validation": VALIDATION}
    return {"method": options, "recipe": recipe, "data": data, "seed": seed}


def trained_run(name: str, data: Data, seed: int) -> tuple[Run, nn.Module, float]:
    """A method trained with one seed: its run without cost, the module, and the seconds of training."""
    method = METHODS[name]
    torch.manual_seed(seed)
    module: nn.Module = network()
    if method is not None:
        module = covey.convert(module, method, example=data.train[0][:2], seed=seed)
    history, seconds = train(module, data, seed)
    evaluation = evaluate(module, data, corruptions=200)
    print(f"{name}, seed {seed}: {evaluation.headline['accuracy']:.4f}")
    run = Run(
        name,
        seed,
        evaluation,
        history=history,
        settings=settings(method, seed),
        landscape=landscape(module, data, seed),
    )
    return run, module, seconds


def main(folder: str) -> None:
    torch.set_num_threads(1)
    data = digits()
    trained = []
    for seed in SEEDS:
        for name in METHODS:
            trained.append(trained_run(name, data, seed))
    # One after another and by CPU time, so that other work on the machine does not count.
    example = data.test.inputs[:64]
    runs = []
    for run, module, seconds in trained:
        cost = measure_cost(module, example, repeats=50, threads=1, clock="cpu", training_seconds=seconds)
        runs.append(replace(run, cost=cost))
    print(write(runs, folder, title="Ensembles of a small network, on handwritten digits"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "build/digits")
