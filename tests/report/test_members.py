from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

import covey
from covey.errors import EvaluationError
from covey.methods.hypernetwork import embeddings
from covey.report import figures, members
from covey.scores.landscape import plane


def _net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )


X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


def test_the_way_between_two_members_uses_the_batch_statistics_and_leaves_them_alone() -> None:
    first, second = _net(0).eval(), _net(1).eval()
    with torch.no_grad():
        first[1].running_mean.fill_(50.0)  # would spoil every answer if it were used
    before = copy.deepcopy(first.state_dict())
    figure = members.between(first, second, X, Y, points=3)
    assert all(torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())
    ends = []
    for network in (first, second):
        network.train()
        with torch.no_grad():
            ends.append((network(X).argmax(-1) == Y).double().mean().item())
    assert f"Accuracy {ends[0]:.3f} and {ends[1]:.3f} at the ends" in figure.alt
    ElementTree.fromstring(figure.file)
    with pytest.raises(EvaluationError, match="cannot be combined"):
        members.between(first, nn.Linear(5, 3), X, Y)


def test_the_plane_through_three_members_of_a_hypernetwork_has_both_scores() -> None:
    ensemble = covey.convert(
        _net(0), covey.Hypernetwork(members=3, linear=True, budget=None), example=X
    ).eval()
    three = [ensemble.member(k) for k in range(3)]
    vectors = embeddings(ensemble)
    found = plane(three, X, Y, points=5, embeddings=vectors)
    # distances on the axes are those of the embeddings, and a corner is its member
    side = (vectors[1].double() - vectors[0].double()).norm().item()
    assert found["corners"][1] == pytest.approx([side, 0.0])
    figure = figures.plane("Hypernetwork", found)
    assert "Accuracy, %" in figure.file
    assert "NLL" in figure.file
    ElementTree.fromstring(figure.file)
