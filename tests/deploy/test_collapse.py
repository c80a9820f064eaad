"""Averages of members as one network, against the average of what members answer."""

import pytest
import torch
from torch import nn

import covey
from covey.deploy.collapse import collapse
from covey.errors import CollapseError, OptionError


def shaken(network, method, example):
    """Members that differ in what they own: weights, scales, shifts and statistics."""
    ensemble = covey.convert(network, method, example=example)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for group in ensemble.param_groups(1.0):
            if group["members"]:
                for phi in group["params"]:
                    phi += 0.3 * torch.randn(phi.shape, generator=draw, dtype=phi.dtype)
    ensemble.train()
    ensemble(torch.randn(ensemble.members, 16, *example.shape[1:], dtype=example.dtype), per_member=True)
    return ensemble.eval()


@pytest.mark.parametrize("affine", [True, False])
def test_a_collapsed_norm_answers_the_mean_of_the_members(affine):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5, affine=affine)).double()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    where = ("norms",) if affine else ("0.bias",)
    ensemble = shaken(net, covey.Replicate(members=4, where=where), x)
    assert not torch.allclose(ensemble(x)[0], ensemble(x)[1])
    if not affine:  # the bias before it differs too; a layer alone is what is averaged exactly
        for k in range(4):
            ensemble.parts["replicated"].phi["0.bias"].data[k] = net[0].bias.data
    plain = ensemble.collapse().eval()
    torch.testing.assert_close(plain(x), ensemble(x).mean(0), rtol=1e-10, atol=1e-12)
    assert [type(m) for m in plain.modules()] == [type(m) for m in net.modules()]
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in net.parameters())


def test_a_collapsed_head_answers_the_mean_logits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    ensemble = shaken(net, covey.Replicate(members=3, where="head"), x)
    torch.testing.assert_close(ensemble.collapse()(x), ensemble(x).mean(0))


def test_rank_one_by_products_and_by_factors():
    torch.manual_seed(0)
    net = nn.Linear(4, 3, bias=False).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    ensemble = shaken(net, covey.BatchEnsemble(members=3, init="ones"), x)
    part = ensemble.parts["rank_one"]
    r, s = part.r["weight"], part.s["weight"]
    outer = torch.einsum("mo,mi->moi", s, r)
    torch.testing.assert_close(collapse(ensemble).weight, net.weight * outer.mean(0))
    torch.testing.assert_close(collapse(ensemble)(x), ensemble(x).mean(0))
    by_factors = collapse(ensemble, average="factors").weight
    torch.testing.assert_close(by_factors, net.weight * torch.outer(s.mean(0), r.mean(0)))
    assert not torch.allclose(by_factors, collapse(ensemble).weight)
    assert r.shape == (3, 4)  # the ensemble's own factors are as they were


def test_means_of_parameters_with_new_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    x = torch.randn(30, 4)
    ensemble = shaken(net, covey.NormEnsemble(members=3), x)
    plain = collapse(ensemble, norms="mean", inputs=x.split(7))
    scales = torch.stack([ensemble.member(k)[1].weight for k in range(3)])
    torch.testing.assert_close(plain[1].weight, scales.mean(0))
    torch.testing.assert_close(plain[1].running_mean, net[0](x).mean(0), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_averaged_says_why():
    net, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(2, 4)
    deep = covey.convert(net, covey.DeepEnsemble(members=2), example=x)
    for average in ("tensors", "factors"):
        with pytest.raises(CollapseError, match="initialised apart"):
            collapse(deep, average=average)
    with pytest.raises(OptionError, match="'exact' or 'mean'"):
        collapse(deep, norms="median")
