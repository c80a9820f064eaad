"""Figures that belong to one experiment of the papers."""

from __future__ import annotations

from pathlib import Path

import torch

from covey.extras import load

from .sparsity import sparsity_bound


def plot_sparsity_bound(path: str | Path, *, inputs: int = 64) -> None:
    """Draw the bound over p and the output's standard deviation, all means and weights 0.1 (Figure 5).

    Args:
        path: where the image goes; the ending decides the format.
        inputs: number of inputs of the layer, which the paper does not give.
    """
    figures = load("matplotlib.figure")

    tenth = torch.full((inputs,), 0.1, dtype=torch.float64)
    shares = torch.linspace(0.05, 1, 200, dtype=torch.float64)
    figure = figures.Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for deviation in (0.1, 0.25, 0.5, 1.0, 2.0):
        # Equal input variances that give the output this standard deviation.
        input_variance = deviation**2 / tenth.square().sum().item()
        variances = torch.full_like(tenth, input_variance)
        bound = sparsity_bound(tenth, tenth, variances, shares)
        axes.plot(shares, bound, label=f"{deviation:g}")
    axes.set_xlabel("share of weights kept, p")
    axes.set_ylabel("bound on the KL divergence (nats)")
    axes.set_yscale("log")
    axes.legend(title="standard deviation of z")
    axes.grid(alpha=0.3)
    figure.savefig(path)
