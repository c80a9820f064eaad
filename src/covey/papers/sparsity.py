"""How far a layer moves when only a share of its weights is kept: Proposition C.1 of Packed-Ensembles.

A member of a packed ensemble is its network with most connections cut. For a layer z = w h with Gaussian inputs
h ~ N(mu, Sigma), of whose weights a random share p is kept, the Kullback-Leibler divergence between the whole and
the sparse layer is at most

    1/2 { p + 1/p - 2 + p (1 - p) sum_k w_k^2 mu_k^2 / s^2 + (1 - p)^2 m^2 / (p s^2) },

with m = w mu and s^2 = w Sigma w^T, the mean and variance of z.
"""

from __future__ import annotations

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
    _check_shapes(weight, mean, covariance)
    squared_weight = weight.square()
    centre = weight @ mean
    if covariance.ndim == 1:
        variance = squared_weight @ covariance
    else:
        variance = ((weight @ covariance) * weight).sum(-1)
    cut = 1 - kept
    from_means = kept * cut * (squared_weight @ mean.square()) / variance
    from_shift = (cut * centre).square() / (kept * variance)
    return 0.5 * (kept + 1 / kept - 2 + from_means + from_shift)


def _check_shapes(weight: Tensor, mean: Tensor, covariance: Tensor) -> None:
    inputs = weight.shape[-1]
    if mean.shape != (inputs,):
        raise EvaluationError(f"mean should have shape {(inputs,)}; got {tuple(mean.shape)}.")
    if covariance.shape not in ((inputs,), (inputs, inputs)):
        raise EvaluationError(
            f"covariance should have shape {(inputs,)} (variances) or {(inputs, inputs)}; "
            f"got {tuple(covariance.shape)}."
        )
