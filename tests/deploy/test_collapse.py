from __future__ import annotations

import pytest
import torch
from torch import nn

import covey
from covey.errors import CollapseError


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
