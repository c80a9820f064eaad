"""Compare ensembles with a single network on scikit-learn's bundled digits. Run with `make demo`.

Networks learn to tell the digits 0 to 7 apart; 8 and 9 are held out and play the out-of-distribution inputs, which a
trustworthy network should be unsure about.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from tqdm import tqdm

import covey

EPOCHS, BATCH, LR = 25, 64, 0.05
METHODS: dict[str, covey.Method] = {
    "single network": covey.Replicate(members=1),
    "deep ensemble": covey.DeepEnsemble(members=4),
    "multi-head": covey.MultiHead(members=4),
    "norm ensemble": covey.NormEnsemble(members=4, noise=0.5),
    "BatchEnsemble": covey.BatchEnsemble(members=4),
    "Masksembles": covey.Masksembles(members=4),
    "MIMO": covey.MIMO(members=2, repeats=2, rho=0.5),
    "MC-dropout": covey.MCDropout(members=10),
    "Packed": covey.Packed(members=4, alpha=2),
}


def network() -> nn.Module:
    """A small convolutional network for 8 x 8 images of 8 classes."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 8)),
    )


@dataclass
class Digits:
    """Known digits to learn and to test on, and out-of-distribution ones."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    ood: Tensor


def load() -> Digits:
    """Digits 0 to 7, a third of them for the test, and all 8s and 9s as out-of-distribution inputs."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    known = np.flatnonzero(labels < 8)
    train, test = train_test_split(known, test_size=1 / 3, stratify=labels[known], random_state=0)
    return Digits(x[train], y[train], x[test], y[test], x[labels >= 8])


def train(ensemble: covey.Ensemble, data: Digits, bar: tqdm) -> None:
    """The loop one would write for a single network, whatever the method."""
    optimiser = torch.optim.SGD(
        ensemble.param_groups(LR, weight_decay=5e-4), lr=LR, momentum=0.9, nesterov=True
    )
    steps = EPOCHS * -(-len(data.x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    ensemble.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data.x)).split(BATCH):
            optimiser.zero_grad()
            ensemble.loss(data.x[rows], data.y[rows]).backward()
            optimiser.step()
            schedule.step()
        bar.update()


def scores(ensemble: covey.Ensemble, data: Digits) -> dict[str, float]:
    """Accuracy, NLL, calibration error in 15 bins, and how well entropy tells out-of-distribution inputs."""
    known, ood = ensemble.predict(data.test_x), ensemble.predict(data.ood)
    right = (known.label == data.test_y).double()
    bins = (known.max_prob * 15).ceil().clamp(1, 15).long()
    gaps = [
        (bins == b).double().mean()
        * (right[bins == b].mean() - known.max_prob[bins == b].double().mean()).abs()
        for b in bins.unique()
    ]
    is_ood = np.r_[np.zeros(len(known.entropy)), np.ones(len(ood.entropy))]
    return {
        "accuracy": right.mean().item() * 100,
        "nll": -known.log_probs.gather(1, data.test_y[:, None]).mean().item(),
        "ece": torch.stack(gaps).sum().item() * 100,
        "ood": roc_auc_score(is_ood, torch.cat([known.entropy, ood.entropy])),
    }


def main() -> None:
    """Train every method, then print one table."""
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    data = load()
    rows = []
    with tqdm(total=EPOCHS * len(METHODS), unit="epoch") as bar:
        for name, method in METHODS.items():
            bar.set_description(name)
            torch.manual_seed(0)
            ensemble = covey.convert(network(), method, example=data.x[:4])
            start = time.perf_counter()
            train(ensemble, data, bar)
            seconds = time.perf_counter() - start
            rows.append((name, ensemble.members, ensemble.coverage.total, seconds, scores(ensemble, data)))
    report(data, rows)


def report(data: Digits, rows: list[tuple[str, int, int, float, dict[str, float]]]) -> None:
    """One aligned table; parameters and time as ratios to the single network."""
    print(f"\nDigits 0 to 7: {len(data.x)} to train, {len(data.test_x)} to test.")
    print(
        f"Out-of-distribution inputs: {len(data.ood)} 8s and 9s. AUROC: how well entropy tells them apart.\n"
    )
    heads = ("members", "parameters", "time", "accuracy", "NLL", "ECE", "AUROC")
    print("method".ljust(16) + "".join(head.rjust(11) for head in heads))
    _, _, one_count, one_second, _ = rows[0]
    for name, members, count, seconds, s in rows:
        cells = (
            f"{members}",
            f"{count / one_count:.2f}x",
            f"{seconds / one_second:.1f}x",
            f"{s['accuracy']:.2f}%",
            f"{s['nll']:.3f}",
            f"{s['ece']:.2f}%",
            f"{s['ood']:.3f}",
        )
        print(name.ljust(16) + "".join(cell.rjust(11) for cell in cells))


if __name__ == "__main__":
    main()
