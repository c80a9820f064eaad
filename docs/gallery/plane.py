"""What the gallery's scripts share: two moons, a small network, a training loop, and the picture."""

from __future__ import annotations

import logging
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import covey

logging.getLogger("covey").setLevel(logging.WARNING)  # not a line for each epoch
STEPS, LR = 300, 0.02
GRID = 60


def moons(samples: int = 200) -> tuple[Tensor, Tensor]:
    """Two half circles of noisy points, one a class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 2
    angle = torch.rand(samples, generator=generator) * torch.pi
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.where(y[:, None] == 0, upper, lower)
    return x + 0.15 * torch.randn(x.shape, generator=generator), y


def network(width: int = 64) -> nn.Module:
    """A multilayer perceptron with norms and dropout, so that every method finds what it works on."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(2, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(width, 2),
    )


def train(ensemble: covey.Ensemble, x: Tensor, y: Tensor) -> covey.Ensemble:
    """The loop one would write for a single network."""
    torch.manual_seed(0)
    optimiser = torch.optim.AdamW(ensemble.param_groups(lr=LR, weight_decay=1e-4))
    ensemble.train()
    for _ in range(STEPS):
        optimiser.zero_grad()
        ensemble.loss(x, y).backward()
        optimiser.step()
    return ensemble.eval()


def fit(method: covey.Training, x: Tensor, y: Tensor, *, epochs: int = 60) -> covey.Ensemble:
    """What a way of training makes of the network: 300 steps too, with minibatches."""
    recipe = covey.Recipe(epochs=epochs, batch=40, optimizer="adamw", lr=LR, decay=1e-4)
    machine = covey.Machine(accelerator="cpu", progress=False)
    data = covey.data.adapt((x, y), validation=0)
    return covey.fit(network(), data, recipe, method=method, machine=machine).ensemble.eval()


def show(ensemble: covey.Ensemble, x: Tensor, y: Tensor) -> None:
    """Probability of the second class, and where members disagree, over the plane around the data."""
    across, up = torch.linspace(-2.5, 3.5, GRID), torch.linspace(-2.5, 3.0, GRID)
    places = torch.cartesian_prod(up, across).flip(1)
    with torch.no_grad():
        prediction = ensemble.predict(places)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharey=True)
    maps = (
        (prediction.probs[:, 1], "probability of the second class", "RdBu_r", 1.0),
        (prediction.mutual_information, "disagreement (mutual information, nats)", "viridis", math.log(2)),
    )
    for axis, (values, title, colours, top) in zip(axes, maps, strict=True):
        values = values.view(GRID, GRID).numpy()
        drawn = axis.pcolormesh(across.numpy(), up.numpy(), values, cmap=colours, vmin=0, vmax=top)
        axis.scatter(*x.T.numpy(), c=y.numpy(), s=12, cmap="Greys", edgecolors="black", linewidths=0.3)
        axis.set_title(title, fontsize=9)
        figure.colorbar(drawn, ax=axis)
