"""TabM against the authors' package, number for number, and what it stores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import covey
from covey.errors import CollapseError, ConversionError, DataError, OptionError
from covey.zoo.numbers import PiecewiseLinear, quantile_edges

X = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    return layers.double()


@pytest.mark.parametrize("mini", [False, True])
def test_it_is_what_the_authors_package_computes(mini: bool) -> None:
    tabm = pytest.importorskip("tabm")
    ensemble = covey.convert(network(), covey.TabM(members=4, mini=mini), example=X).eval()
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    rank_one, heads = ensemble.parts["rank_one"], ensemble.parts["heads"].phi
    plain = network()
    view = tabm.EnsembleView(k=4)
    with torch.no_grad():
        if mini:
            scale = tabm.ElementwiseAffine((4, 5), bias=False, scaling_init="ones", dtype=torch.float64)
            scale.weight.copy_(rank_one.r["0.weight"])
            plain[0].weight.copy_(rank_one.theta["0.weight"])
            for name, tensor in ensemble.parts["shared"].theta.items():
                plain.get_parameter(name).copy_(tensor)
            layers = [scale, plain[0], nn.ReLU(), plain[2], nn.ReLU()]
        else:
            layers = []
            for path in ("0", "2"):
                old = plain.get_submodule(path)
                layer = tabm.LinearBatchEnsemble.from_linear(old, k=4, scaling_init="ones")
                layer.weight.copy_(rank_one.theta[f"{path}.weight"])
                layer.r.copy_(rank_one.r[f"{path}.weight"])
                layer.s.copy_(rank_one.s[f"{path}.weight"])
                layer.bias.copy_(ensemble.parts["replicated"].phi[f"{path}.bias"])
                layers += [layer, nn.ReLU()]
        head = tabm.LinearEnsemble(6, 2, k=4, dtype=torch.float64)
        head.weight.copy_(heads["4.weight"].transpose(1, 2))
        head.bias.copy_(heads["4.bias"])
    theirs = nn.Sequential(view, *layers, head).eval()
    torch.testing.assert_close(ensemble(X), theirs(X).transpose(0, 1), rtol=1e-12, atol=1e-12)


def test_how_it_starts_and_what_it_stores() -> None:
    size = sum(p.numel() for p in network().parameters())
    ensemble = covey.convert(network(), covey.TabM(members=4), example=X)
    part = ensemble.parts["rank_one"]
    assert set(part.r["0.weight"].flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(part.s["0.weight"], torch.ones(4, 8, dtype=torch.float64))
    assert torch.equal(part.r["2.weight"], torch.ones(4, 8, dtype=torch.float64))
    assert not torch.equal(
        ensemble.parts["heads"].phi["4.weight"][0], ensemble.parts["heads"].phi["4.weight"][1]
    )
    assert sum(p.numel() for p in ensemble.parameters()) == size + 4 * (5 + 8 + 8 + 6) + 3 * (8 + 6 + 12 + 2)
    mini = covey.convert(network(), covey.TabM(members=4, mini=True), example=X)
    assert sum(p.numel() for p in mini.parameters()) == size + 4 * 5 + 3 * (12 + 2)


def test_what_it_refuses() -> None:
    with pytest.raises(ConversionError, match="first layer with a weight matrix"):
        covey.convert(nn.Linear(5, 2).double(), covey.TabM(members=4), example=X)
    with pytest.raises(CollapseError):
        covey.convert(network(), covey.TabM(members=4), example=X).collapse()
    with pytest.raises(covey.CoveyError, match="starts late"):
        covey.late(covey.TabM(members=4), 0.5)


def test_embeddings_of_numbers_are_what_the_authors_package_computes() -> None:
    rtdl = pytest.importorskip("rtdl_num_embeddings")
    torch.manual_seed(0)
    table = torch.randn(200, 3)
    table[:, 1] = table[:, 1].round()  # few values, so fewer bins
    edges = quantile_edges(table, bins=6)
    ours = PiecewiseLinear(edges, width=4)
    theirs = rtdl.PiecewiseLinearEmbeddings(edges, 4, activation=True, version="B")
    most = ours.pieces.shape[1]
    with torch.no_grad():
        ours.pieces.normal_()
        theirs.linear0.weight.copy_(ours.weight)
        theirs.linear0.bias.copy_(ours.bias)
        theirs.linear.weight.zero_()
        for j, each in enumerate(edges):
            bins = len(each) - 1
            theirs.linear.weight[j, : bins - 1] = ours.pieces[j, : bins - 1]
            theirs.linear.weight[j, most - 1] = ours.pieces[j, bins - 1]  # they keep the last bin at the end
    beyond = torch.cat([table[:20], 3 * table[:20]])
    torch.testing.assert_close(ours(beyond), theirs(beyond).flatten(1))


def test_a_column_that_never_changes_has_one_bin() -> None:
    edges = quantile_edges(torch.full((5, 1), 2.0))
    assert [each.tolist() for each in edges] == [[2.0, 3.0]]
    assert torch.isfinite(PiecewiseLinear(edges)(torch.tensor([[2.0], [7.0]]))).all()


def test_edges_and_inputs_that_are_none() -> None:
    for edges in ([], [torch.tensor([0.0])], [torch.tensor([1.0, 0.0])], [torch.tensor([0.0, float("nan")])]):
        with pytest.raises(OptionError, match="an entry for each feature|two numbers in rising order"):
            PiecewiseLinear(edges)
    with pytest.raises(OptionError, match="width is a whole number of at least 1"):
        PiecewiseLinear([torch.tensor([0.0, 1.0])], width=0)
    with pytest.raises(OptionError, match="bins is a whole number of at least 1"):
        quantile_edges(torch.randn(5, 2), bins=0)
    with pytest.raises(DataError, match="with NaN or infinite ones among them"):
        quantile_edges(torch.tensor([[0.0], [float("nan")]]))
    embedding = PiecewiseLinear(quantile_edges(torch.randn(20, 3), bins=4))
    with pytest.raises(DataError, match="edges for 3 columns, and got 1"):
        embedding(torch.randn(5, 1))
