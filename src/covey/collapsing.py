"""Average the members' weights into one plain network."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from covey.errors import CollapseError, OptionError
from covey.networks.statistics import refresh_statistics
from covey.parameterization import Parameterization

if TYPE_CHECKING:
    from covey.ensemble import Ensemble
from covey.networks.copies import filled


@torch.no_grad()
def collapse(
    ensemble: Ensemble,
    *,
    norms: Literal["exact", "mean"] = "exact",
    average: Literal["tensors", "factors"] = "tensors",
    inputs: Iterable[Any] = (),
) -> nn.Module:
    """One plain network of the original architecture whose weights are the members' average.

    Args:
        ensemble: whose members.
        norms: "exact" makes BatchNorm the exact average of the members' affine maps in eval mode: with scale g_k,
            shift b_k and statistics m_k, v_k, the layer multiplies by mean_k g_k / sqrt(v_k + eps) and adds
            mean_k (b_k - g_k m_k / sqrt(v_k + eps)); its statistics become the members' means. "mean" averages
            scales and shifts as they are.
        average: "tensors" averages the members' tensors, for rank-one factors the outer products; "factors"
            averages what members own and makes the tensors of that. They differ for rank-one factors only.
        inputs: training inputs in batches, with which running statistics are estimated anew at the end; see
            `covey.networks.statistics.refresh_statistics`. Goes with norms="mean".
    """
    if norms not in ("exact", "mean") or average not in ("tensors", "factors"):
        raise OptionError(
            f"norms is 'exact' or 'mean' and average 'tensors' or 'factors'; got {norms!r} and {average!r}."
        )
    if not ensemble.stackable:
        raise CollapseError("members of different shapes cannot be averaged into one network.")
    tensors: dict[str, Tensor] = {}
    for part in ensemble.parts.values():
        tensors |= part.collapsed() if average == "tensors" else _of_mean_factors(part)
    buffers, _ = ensemble.buffers_of(0)
    tensors |= dict(buffers.shared.items())
    for name, stacked in buffers.own.items():
        tensors[name] = stacked.mean(0) if stacked.is_floating_point() else stacked[0]
    if norms == "exact":
        members = [ensemble.tensors(k) | buffers.member(k) for k in range(ensemble.members)]
        for path, module in ensemble.skeleton().named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                prefix = f"{path}." if path else ""
                tensors |= _average_norm(prefix, module, members, tensors)
    network = filled(ensemble.skeleton(), tensors)
    if norms == "mean":
        refresh_statistics(network, inputs)
    return network


def _of_mean_factors(part: Parameterization) -> dict[str, Tensor]:
    """The tensors of a member whose own parameters are the members' mean."""
    part.collapsed()  # says why where an average means nothing
    one = copy.deepcopy(part).train()  # in eval mode a part may keep tensors that it made before
    for group in one.groups():
        if group.owner == "member":
            for phi in group.parameters:
                phi.data = phi.data.mean(0, keepdim=True)
    return one.member(0)


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
