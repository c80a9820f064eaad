from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covey.errors import EvaluationError
from covey.scores.landscape import flatness, interpolation, plane


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, 3), torch.randint(2, (40,))


def test_flatness_of_a_softmax_of_one_weight() -> None:
    # Logits (w x, 0) with x = 1: the loss under w (1 + sigma z) is E softplus(-w (1 + sigma z)), by quadrature.
    net = nn.Linear(1, 2, bias=False)
    net.weight.data = torch.tensor([[2.0], [0.0]])
    x, y = torch.ones(1, 1), torch.tensor([0])
    found = flatness(net, x, y, sigmas=(0.0, 0.5), draws=2000)
    grid = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    weights = torch.exp(-grid.square() / 2)
    expected = (F.softplus(-2 * (1 + 0.5 * grid)) * weights).sum() / weights.sum()
    assert found["rise"][0] == 0
    assert found["rise"][1] == pytest.approx(float(expected - F.softplus(torch.tensor(-2.0))), abs=0.015)


def test_networks_stay_as_they_are() -> None:
    net = network()
    net[0].eval()
    before = copy.deepcopy(net.state_dict())
    x, y = data()
    flatness(net, x, y, draws=2)
    interpolation(net, network(), x, y, points=3)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert (net.training, net[0].training, net[1].training) == (True, False, True)


def test_interpolation_of_two_networks() -> None:
    first, second, (x, y) = network(), network(), data()
    second[1].running_mean += 0.3
    found = interpolation(first, second, x, y, points=3)
    middle = copy.deepcopy(first)
    with torch.no_grad():
        for a, b in zip(middle.parameters(), second.parameters(), strict=True):
            a.copy_((a + b) / 2)
    middle[1].running_mean.copy_((first[1].running_mean + second[1].running_mean) / 2)
    for net, loss, accuracy in zip((first, middle, second), found["loss"], found["accuracy"], strict=True):
        logits = net.eval()(x).detach()
        assert loss == pytest.approx(float(F.cross_entropy(logits, y)), abs=1e-6)
        assert accuracy == pytest.approx(float((logits.argmax(-1) == y).float().mean()))
    straight = (found["loss"][0] + found["loss"][2]) / 2
    assert found["barrier"][0] == pytest.approx(max(0, found["loss"][1] - straight))


def test_plane_passes_through_the_three() -> None:
    # Second and third lie at right angles from the first, so the plane's corners are the networks themselves.
    first, (x, y) = network(), data()
    second, third = copy.deepcopy(first), copy.deepcopy(first)
    second[0].weight.data[0, 0] += 3
    third[3].weight.data[1, 1] -= 4
    found = plane((first, second, third), x, y, points=2, margin=0)
    assert [pytest.approx(c, abs=1e-6) for c in ([0, 0], [3, 0], [0, 4])] == found["corners"]
    losses = [float(F.cross_entropy(net.eval()(x).detach(), y)) for net in (first, second, third)]
    assert (found["loss"][0][0], found["loss"][0][1], found["loss"][1][0]) == pytest.approx(losses, abs=1e-6)
    both = copy.deepcopy(second)
    both[3].weight.data[1, 1] -= 4
    assert found["loss"][1][1] == pytest.approx(float(F.cross_entropy(both.eval()(x).detach(), y)), abs=1e-6)


def test_embeddings_give_the_axes() -> None:
    nets, (x, y) = [network() for _ in range(3)], data()
    embeddings = torch.tensor([[0.0, 0, 0], [2, 0, 0], [1, 1, 0]])
    corners = plane(nets, x, y, points=2, embeddings=embeddings)["corners"]
    assert corners == [pytest.approx(c) for c in ([0, 0], [2, 0], [1, 1])]


def test_bad_input() -> None:
    net, (x, y) = network(), data()
    with pytest.raises(EvaluationError, match="three networks, got 2"):
        plane((net, net), x, y)
    with pytest.raises(EvaluationError, match="span no plane"):
        plane((net, network(), net), x, y)
    with pytest.raises(EvaluationError, match="names or shapes"):
        interpolation(net, nn.Linear(3, 2), x, y)
    with pytest.raises(EvaluationError, match="points: expected 2 or more"):
        interpolation(net, net, x, y, points=1)
    with pytest.raises(EvaluationError, match="draws: expected 1 or more"):
        flatness(net, x, y, draws=0)


def test_variances_below_zero_are_no_silent_number() -> None:
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)) for _ in range(3)]
    for k, network in enumerate(networks):
        network[1].running_var.fill_(10.0**k)
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    with pytest.raises(EvaluationError, match="batch_statistics=True"):
        plane(networks, x, y, margin=2.0)
    found = plane(networks, x, y, points=3, margin=0.0, batch_statistics=True)
    networks[0].train()
    with torch.no_grad():
        own = F.cross_entropy(networks[0](x).double(), y).item()
    assert found["loss"][0][0] == pytest.approx(own, rel=1e-6)  # the first network lies at (0, 0)
    assert all(
        torch.equal(n[1].running_var, torch.full((3,), 10.0**k)) for k, n in enumerate(networks[1:], 1)
    )


def test_noise_is_drawn_in_the_order_of_the_parameters() -> None:
    """So that another process, where sets have another order, draws the same."""
    torch.manual_seed(0)
    net, (x, y) = network().eval(), data()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        base = F.cross_entropy(net(x).double(), y).item()
        noisy = copy.deepcopy(net)
        for parameter in noisy.parameters():
            parameter *= (
                1 + 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).float()
            )
        rise = F.cross_entropy(noisy(x).double(), y).item() - base
    assert flatness(net, x, y, sigmas=(0.2,), draws=1, seed=3)["rise"][0] == pytest.approx(rise, rel=1e-5)
