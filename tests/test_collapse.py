from __future__ import annotations

import pytest
import torch
from torch import nn

import covey
from covey.collapsing import collapse
from covey.errors import CollapseError, OptionError


@pytest.mark.parametrize("affine", [True, False])
def test_a_collapsed_norm_is_the_mean_of_the_members_norms(affine: bool) -> None:
    net = nn.Sequential(nn.BatchNorm1d(6, affine=affine), nn.Linear(6, 3)).double()
    x = torch.randn(40, 6, dtype=torch.float64)
    ens = covey.convert(net, covey.Replicate(members=4, where="1" if not affine else "all", noise=0.5))
    for _ in range(3):
        ens.train()(torch.stack([torch.randn_like(x) * (k + 1) + k for k in range(4)]), per_member=True)
    one = ens.eval().collapse().eval()
    expected = torch.stack([ens.member(k).eval()[0](x) for k in range(4)]).mean(0)
    torch.testing.assert_close(one[0](x), expected)
    assert one.state_dict().keys() == net.state_dict().keys()
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in net.parameters())


def test_rank_one_collapses_to_the_mean_of_the_outer_products() -> None:
    ens = covey.convert(nn.Linear(5, 3), covey.BatchEnsemble(members=4))
    one = ens.collapse()
    weights = torch.stack([ens.member(k).weight for k in range(4)]).mean(0)
    torch.testing.assert_close(one.weight, weights)
    torch.testing.assert_close(one(torch.ones(2, 5)), ens(torch.ones(2, 5)).mean(0))


def test_collapse_says_why_not() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(CollapseError, match="initialised apart.*init='copy'"):
        covey.convert(net, covey.DeepEnsemble()).collapse()
    with pytest.raises(CollapseError, match="masks are not averaged"):
        covey.convert(net, covey.Masksembles(), example=torch.randn(2, 4)).collapse()


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


def test_unknown_options_are_named() -> None:
    ens = covey.convert(nn.Linear(5, 3), covey.BatchEnsemble(members=4))
    with pytest.raises(OptionError, match="'exact' or 'mean'"):
        collapse(ens, norms="median")


def test_what_has_no_average_has_no_mean_factors() -> None:
    deep = covey.convert(nn.Linear(5, 3), covey.DeepEnsemble(members=2))
    with pytest.raises(CollapseError, match="initialised apart"):
        collapse(deep, average="factors")
