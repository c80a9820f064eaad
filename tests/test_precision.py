"""Mixed precision: in bfloat16 every method answers and learns as it does in float32, but for the rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from law_networks import NETWORKS, call
from test_laws import IMPOSSIBLE, METHODS, ensemble_of, fix_run

NAMES = ("mlp", "convnet", "vit")
CASES = [(m, n) for m in METHODS for n in NAMES if (m, n) not in IMPOSSIBLE]
# bfloat16 keeps 8 bits, so each product is off by up to 2^-9 of its size. These networks take at most eight in a row,
# and norms between them may double what came in: 8 * 2 * 2^-9 is 2^-5 of the scale.
OUTPUTS = 2**-5
# A backward pass takes as many products as a forward pass.
GRADIENTS = 2**-5
# Rounding switches rectified units whose input is near zero, and then their whole gradient: one unit of the packed
# MLP's 24 turned off for one sample is 0.2 of it. So gradients are bounded where units are smooth (seen: 0.011), and
# with rectified ones must point the same way.
COSINE = 0.9


def losses(ensemble: torch.nn.Module, x: Tensor, low: bool) -> tuple[Tensor, Tensor]:
    """Members' outputs, and the gradients of all parameters in a row."""
    ensemble.zero_grad()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        outputs = call(ensemble, x)
    y = torch.arange(outputs.shape[1]) % outputs.shape[-1]
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        loss = ensemble.loss(x, y)
    loss.backward()
    parameters = [parameter for parameter in ensemble.parameters() if parameter.requires_grad]
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in parameters
    )
    return outputs.detach().float(), torch.cat([parameter.grad.flatten() for parameter in parameters])


@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize(("method", "name"), CASES)
def test_bfloat16_is_float32_but_for_rounding(method: str, name: str, run: str) -> None:
    ensemble = ensemble_of(method, name).float().train()
    fix_run(ensemble, name, run)
    x = tree_map(Tensor.float, NETWORKS[name].x(8))
    buffers = {key: buffer.clone() for key, buffer in ensemble.named_buffers()}
    expected, gradient = losses(ensemble, x, low=False)
    for key, buffer in ensemble.named_buffers():
        buffer.copy_(buffers[key])
    found, low_gradient = losses(ensemble, x, low=True)
    assert found.isfinite().all()
    assert low_gradient.isfinite().all()
    if method == "mc-dropout":  # draws other masks in another precision
        return
    if run == "loop":  # torch has no autocast under vmap
        assert not torch.equal(found, expected)
    distances = (found[:, None] - expected[None]).flatten(2).abs().amax(-1)  # of each to each
    assert distances.diagonal().max() <= OUTPUTS * expected.abs().max()
    if not ensemble.alike:
        assert (distances.argmin(1) == torch.arange(len(found))).all()  # each member is nearest to itself
    assert torch.cosine_similarity(low_gradient, gradient, dim=0) >= COSINE


def smooth(x: Tensor, inplace: bool = False) -> Tensor:
    return F.softplus(x)


@pytest.mark.parametrize(("method", "name"), [case for case in CASES if case[0] != "mc-dropout"])
def test_bfloat16_gradients_of_smooth_units_are_float32_but_for_rounding(
    method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = ensemble_of(method, name).float().train()
    ensemble.run = "loop"
    x = tree_map(Tensor.float, NETWORKS[name].x(8))
    monkeypatch.setattr(F, "relu", smooth)  # nn.ReLU calls it
    monkeypatch.setattr(Tensor, "relu", smooth)
    buffers = {key: buffer.clone() for key, buffer in ensemble.named_buffers()}
    _, gradient = losses(ensemble, x, low=False)
    for key, buffer in ensemble.named_buffers():
        buffer.copy_(buffers[key])
    _, low_gradient = losses(ensemble, x, low=True)
    assert not torch.equal(low_gradient, gradient)
    assert (low_gradient - gradient).norm() <= GRADIENTS * gradient.norm()
