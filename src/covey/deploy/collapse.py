"""Average the members' weights into one plain network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covey.edit.layers import fill
from covey.ensemble import Ensemble
from covey.errors import CollapseError


@torch.no_grad()
def collapse(ensemble: Ensemble) -> nn.Module:
    """One plain network of the original architecture whose weights are the members' average.

    BatchNorm becomes the exact average of the members' affine maps in eval mode: with scale g_k, shift b_k and
    statistics m_k, v_k, the layer multiplies by mean_k g_k / sqrt(v_k + eps) and adds
    mean_k (b_k - g_k m_k / sqrt(v_k + eps)). Its statistics become the members' means.
    """
    if len(ensemble.state) > 1:
        raise CollapseError("members of different shapes cannot be averaged into one network.")
    tensors: dict[str, Tensor] = {}
    for part in ensemble.parts.values():
        tensors |= part.collapsed()
    buffers, _ = ensemble.buffers_of(0)
    tensors |= dict(buffers.shared.items())
    tensors |= {n: t.mean(0) if t.is_floating_point() else t[0] for n, t in buffers.own.items()}
    members = [ensemble.tensors(k) | ensemble.buffers_of(0)[0].member(k) for k in range(ensemble.members)]
    for path, module in ensemble.skeleton().named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            prefix = f"{path}." if path else ""
            tensors |= _average_norm(prefix, module, members, tensors)
    return fill(ensemble.skeleton(), tensors)


def _average_norm(
    prefix: str,
    module: nn.modules.batchnorm._BatchNorm,
    members: list[dict[str, Tensor]],
    mean: dict[str, Tensor],
) -> dict[str, Tensor]:
    def of(leaf: str) -> Tensor:
        return torch.stack([tensors[prefix + leaf] for tensors in members])

    inverse = (of("running_var") + module.eps).rsqrt()
    weight = of("weight") if module.weight is not None else torch.ones_like(inverse)
    bias = of("bias") if module.bias is not None else torch.zeros_like(inverse)
    scale = (weight * inverse).mean(0)
    shift = (bias - weight * of("running_mean") * inverse).mean(0)
    if module.weight is None:
        # without an affine map the statistics themselves must give the same one
        return {
            f"{prefix}running_var": scale.square().reciprocal() - module.eps,
            f"{prefix}running_mean": -shift / scale,
        }
    slope = scale * (mean[f"{prefix}running_var"] + module.eps).sqrt()
    return {f"{prefix}weight": slope, f"{prefix}bias": shift + scale * mean[f"{prefix}running_mean"]}
