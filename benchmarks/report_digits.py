"""A report of four methods on scikit-learn's digits, five seeds: some minutes on two cores.

The digits 8 and 9 are held out and serve as out-of-distribution inputs, beside noise. Only 200 images train, so that
there is something to gain.

Run: python benchmarks/report_digits.py build/digits
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import covey
from covey.data import Data, Split
from covey.report import Run, write
from covey.scores import evaluate, measure_cost
from covey.scores.landscape import flatness, interpolation, plane

SEEDS, EPOCHS, BATCH, LR, DECAY = (0, 1, 2, 3, 4), 40, 25, 0.05, 5e-4
TRAIN, MEMBERS = 200, 4


def digits() -> Data:
    """Digits 0 to 7 with known labels, 8 and 9 as out-of-distribution inputs."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    pixels, labels = pixels[order], labels[order]
    known = labels < 8
    x, y = pixels[known], labels[known]
    parts = [TRAIN, 300, len(y) - TRAIN - 300]
    train, validation, test = map(Split, x.split(parts), y.split(parts))
    noise = torch.rand((300, 1, 8, 8), generator=generator)
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
    single = not isinstance(module, covey.Ensemble)
    groups = [{"params": module.parameters()}] if single else module.param_groups(LR, DECAY)
    optimiser = torch.optim.SGD(groups, lr=LR, momentum=0.9, nesterov=True, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    generator = torch.Generator().manual_seed(seed)
    x, y = data.train.inputs, data.train.targets
    vx, vy = data.validation.inputs, data.validation.targets
    history, start = [], time.process_time()
    for epoch in range(1, EPOCHS + 1):
        module.train()
        total = 0.0
        for batch in torch.randperm(len(y), generator=generator).split(BATCH):
            outputs = _members(module(x[batch]), single)
            loss = covey.loss(outputs, y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) / len(outputs) * len(batch)
        schedule.step()
        module.eval()
        with torch.no_grad():
            log_probs = covey.Prediction(_members(module(vx), single)).log_probs
        history.append(
            {
                "epoch": epoch,
                "train_loss": total / len(y),
                "validation_nll": float(F.nll_loss(log_probs, vy)),
                "validation_accuracy": float((log_probs.argmax(-1) == vy).float().mean()),
            }
        )
    return history, time.process_time() - start


def _members(outputs: Tensor, single: bool) -> Tensor:
    return outputs[None] if single else outputs


def landscape(module: nn.Module, data: Data, seed: int) -> dict[str, dict]:
    x, y = data.test.inputs[:256], data.test.targets[:256]
    if not isinstance(module, covey.Ensemble):
        return {"flatness": flatness(module, x, y)}
    members = [module.member(k) for k in range(3)]
    found = {
        "flatness": flatness(members[0], x, y),
        "interpolation": interpolation(members[0], members[1], x, y, batch_statistics=True),
    }
    return found | {"plane": plane(members, x, y, batch_statistics=True)} if seed == SEEDS[0] else found


def main(folder: str) -> None:
    torch.set_num_threads(1)
    data = digits()
    trained = []
    for seed in SEEDS:
        for name, method in METHODS.items():
            torch.manual_seed(seed)
            module: nn.Module = network()
            if method is not None:
                module = covey.convert(module, method, example=data.train.inputs[:2], seed=seed)
            history, seconds = train(module, data, seed)
            evaluation = evaluate(module, data, corruptions=200)
            settings = {
                "method": {}
                if method is None
                else {k: v for k, v in asdict(method).items() if k != "factory"},
                "recipe": {
                    "epochs": EPOCHS,
                    "batch": BATCH,
                    "lr": LR,
                    "weight_decay": DECAY,
                    "schedule": "cosine",
                },
                "data": {"name": "scikit-learn digits, classes 0 to 7", "train": TRAIN, "validation": 300},
                "seed": seed,
            }
            run = Run(name, seed, evaluation, None, history, settings, landscape(module, data, seed))
            trained.append((run, module, seconds))
            print(f"{name}, seed {seed}: {evaluation.headline['accuracy']:.4f}")
    # One after another and by CPU time, so that other work on the machine does not count.
    example = data.test.inputs[:64]
    runs = [
        replace(
            run,
            cost=measure_cost(module, example, repeats=50, threads=1, clock="cpu", training_seconds=seconds),
        )
        for run, module, seconds in trained
    ]
    print(write(runs, folder, title="Ensembles of a small network, on handwritten digits"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "build/digits")
