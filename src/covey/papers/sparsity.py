"""How far a layer moves when only a share of its weights is kept: Proposition C.1 of Packed-Ensembles.

A member of a packed ensemble is its network with most connections cut. For a layer z = w h with Gaussian inputs
h ~ N(mu, Sigma), of whose weights a random share p is kept, the Kullback-Leibler divergence between the whole and
the sparse layer is at most

    1/2 { p + 1/p - 2 + p (1 - p) sum_k w_k^2 mu_k^2 / s^2 + (1 - p)^2 m^2 / (p s^2) },

with m = w mu and s^2 = w Sigma w^T, the mean and variance of z.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from covey.errors import EvaluationError


def sparsity_bound(weight: Tensor, mean: Tensor, covariance: Tensor, kept: float | Tensor) -> Tensor:
    """The bound for each output of a layer, in nats.

    Args:
        weight: the layer's weights, (C, D), or one output's, (D,).
        mean: of the inputs, (D,).
        covariance: of the inputs, (D, D), or their variances, (D,).
        kept: p, the share of weights that is kept, above 0 and at most 1; a tensor broadcasts with (C,).

    Returns:
        (C,), or a scalar for one output.

    >>> w, mu, var = torch.full((100,), 0.1), torch.full((100,), 0.1), torch.ones(100)
    >>> [round(sparsity_bound(w, mu, var, p).item(), 4) for p in (1.0, 0.5, 0.25)]
    [0.0, 0.5013, 2.2509]
    """
    kept = torch.as_tensor(kept, dtype=weight.dtype, device=weight.device)
    if not ((kept > 0) & (kept <= 1)).all():
        raise EvaluationError(f"kept is a share of weights, above 0 and at most 1; got {kept.tolist()}.")
    if mean.shape != weight.shape[-1:]:
        raise EvaluationError(f"mean should have shape {tuple(weight.shape[-1:])}; got {tuple(mean.shape)}.")
    if covariance.shape not in (mean.shape, mean.shape * 2):
        raise EvaluationError(
            f"covariance should have shape {tuple(mean.shape)} (variances) or {tuple(mean.shape * 2)}; "
            f"got {tuple(covariance.shape)}."
        )
    centre = weight @ mean
    if covariance.ndim == 1:
        variance = weight.square() @ covariance
    else:
        variance = ((weight @ covariance) * weight).sum(-1)
    from_means = kept * (1 - kept) * (weight.square() @ mean.square()) / variance
    from_shift = ((1 - kept) * centre).square() / (kept * variance)
    return 0.5 * (kept + 1 / kept - 2 + from_means + from_shift)


def plot_sparsity_bound(path: str | Path, *, inputs: int = 64) -> None:
    """Draw the bound over p and the output's standard deviation, all means and weights 0.1 (Figure 5).

    Args:
        path: where the image goes; the ending decides the format.
        inputs: number of inputs of the layer, which the paper does not give.
    """
    from matplotlib.figure import Figure

    tenth = torch.full((inputs,), 0.1, dtype=torch.float64)
    shares = torch.linspace(0.05, 1, 200, dtype=torch.float64)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for deviation in (0.1, 0.25, 0.5, 1.0, 2.0):
        # equal input variances that give the output this standard deviation
        variances = torch.full_like(tenth, deviation**2 / tenth.square().sum().item())
        axes.plot(shares, sparsity_bound(tenth, tenth, variances, shares), label=f"{deviation:g}")
    axes.set(xlabel="share of weights kept, p", ylabel="bound on the KL divergence (nats)", yscale="log")
    axes.legend(title="standard deviation of z")
    axes.grid(alpha=0.3)
    figure.savefig(path)
