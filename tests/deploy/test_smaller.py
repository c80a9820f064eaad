"""Fewer members, or one network out of several."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.deploy.picking import picked
from covey.errors import OptionError

METHODS = {
    "deep": covey.DeepEnsemble(members=4),
    "multi-head": covey.MultiHead(members=4),
    "rank-one": covey.BatchEnsemble(members=4),
    "masks": covey.Masksembles(members=4),
    "low-rank": covey.LowRank(members=4, rank=2),
    "packed": covey.Packed(members=4, alpha=2),
    "mixture": covey.Mixture(members=4, budget=3.0),
    "hypernetwork": covey.Hypernetwork(members=4, budget=3.0),
    "mimo": covey.MIMO(members=4),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def blobs(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three overlapping classes in eight dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    centers = 1.2 * torch.eye(3, 8)
    return centers[labels] + torch.randn(count, 8, generator=generator), labels


@pytest.mark.parametrize("name", METHODS)
def test_picked_members_answer_as_before(name: str) -> None:
    x, _ = blobs(20)
    ens = covey.convert(network(), METHODS[name], example=x).double()
    ens.train()(x.double())  # so that members' statistics differ
    ens.eval()
    some = picked(ens, [2, 0, 2])
    assert some.members == 3
    torch.testing.assert_close(some(x.double()), ens(x.double())[[2, 0, 2]], rtol=1e-9, atol=1e-9)
    swapped = picked(ens, [1, 0, 3, 2])
    torch.testing.assert_close(swapped(x.double()), ens(x.double())[[1, 0, 3, 2]], rtol=1e-9, atol=1e-9)


def test_what_was_shared_stays_shared() -> None:
    x, _ = blobs(20)
    ens = covey.convert(network(), covey.BatchEnsemble(members=4), example=x)
    one = picked(ens, [3])
    assert isinstance(one.method, covey.BatchEnsemble)
    alone = sum(
        p.numel() for p in covey.convert(network(), covey.BatchEnsemble(members=1), example=x).parameters()
    )
    assert sum(p.numel() for p in one.parameters()) == alone


def test_members_that_cannot_stand_alone_become_plain_networks() -> None:
    x, _ = blobs(20)
    some = picked(covey.convert(network(), covey.MIMO(members=3), example=x), [0, 2])
    assert isinstance(some.method, covey.DeepEnsemble)


def trained(seed: int, start: nn.Module | None = None, steps: int = 60) -> nn.Module:
    made = copy.deepcopy(start) if start is not None else network()
    torch.manual_seed(seed)
    if start is None:
        for module in made.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    x, y = blobs(seed=5)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.2)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (8 if start is not None else 64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(x[rows]), y[rows]).backward()
        optimizer.step()
    return made.eval()


@pytest.fixture(scope="module")
def apart() -> list[nn.Module]:
    return [trained(seed) for seed in range(4)]


def test_selection_is_the_best_by_trying_all(apart: list[nn.Module], tmp_path: Path) -> None:
    """Greedy choice, worked out by hand from the members' probabilities."""
    broken = copy.deepcopy(apart[0])
    with torch.no_grad():
        broken[5].weight.normal_(0, 30)
    ens = covey.gather([*apart, broken]).eval()
    x, y = blobs(seed=9)
    probs = ens(x).detach().softmax(-1)

    def nll(members: list[int]) -> float:
        return -float(probs[members].mean(0)[torch.arange(len(y)), y].log().mean())

    expected: list[int] = []
    for _ in range(3):
        left = [k for k in range(5) if k not in expected]
        expected.append(min(left, key=lambda k: nll([*expected, k])))
    found = covey.select_members(ens, (x, y), keep=3)
    assert list(found.members) == expected
    assert found.scores[-1] == pytest.approx(nll(expected), rel=1e-5)
    assert found.everyone == pytest.approx(nll(list(range(5))), rel=1e-5)
    assert 4 not in covey.select_members(ens, (x, y)).members
    drawn = covey.report.draw_selection(found, tmp_path / "front.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "all members" in drawn
    small = found.smaller()
    torch.testing.assert_close(small(x), ens(x)[list(found.members)])


def test_repeats_never_score_worse(apart: list[nn.Module]) -> None:
    ens = covey.gather(apart)
    x, y = blobs(seed=9)
    once = covey.select_members(ens, (x, y), keep=4)
    again = covey.select_members(ens, (x, y), keep=4, repeats=True)
    assert again.scores[0] == once.scores[0]
    assert again.scores[1] <= once.scores[1]


def test_selection_of_a_regression() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 8)
    ens = covey.convert(nn.Linear(8, 1), covey.DeepEnsemble(members=3), example=x, task="regression")
    target = ens(x)[1].detach()
    assert covey.select_members(ens, (x, target), score="rmse").members == (1,)


def test_noisy_steps_from_one_start_make_a_soup(apart: list[nn.Module]) -> None:
    x, y = blobs(seed=9)
    near = [trained(seed, start=apart[0], steps=20) for seed in range(3)]
    made = covey.soup(near, (x, y), score="nll")
    assert len(made.used) >= 2
    assert not made.apart
    mean = sum(near[k][0].weight for k in made.used) / len(made.used)
    torch.testing.assert_close(made.network[0].weight, mean)
    assert made.value <= min(made.alone)
    assert "average of" in str(made)


def test_soup_says_that_networks_share_no_basin() -> None:
    torch.manual_seed(0)
    first = trained(0, steps=150)
    turned = copy.deepcopy(first)
    order = torch.randperm(16)
    with torch.no_grad():  # the same function in another basin: hidden units in another order
        turned[0].weight.copy_(first[0].weight[order])
        turned[0].bias.copy_(first[0].bias[order])
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(turned[1], name).copy_(getattr(first[1], name)[order])
        turned[3].weight.copy_(first[3].weight[:, order])
    x, y = blobs(seed=9)
    torch.testing.assert_close(first(x), turned(x))
    made = covey.soup([first, turned], (x, y), score="nll")
    assert made.used == (0,)
    assert made.apart == (1,)
    assert "share no basin" in str(made)


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_soup_of_a_regression(task: Any) -> None:
    x, _ = blobs(40)
    y = x[:, :1] * 2
    outputs = 2 if task == "gaussian" else 1
    ens = covey.convert(nn.Linear(x.shape[1], outputs), covey.DeepEnsemble(members=3), example=x, task=task)
    made = covey.soup(ens, (x, y), score="rmse")
    error = (made.network(x)[:, :1] - y).square().mean().sqrt().item()
    assert made.value == pytest.approx(error, rel=1e-5)
    if task == "regression":
        networks = [ens.member(k) for k in range(3)]
        assert covey.soup(networks, (x, y), score="rmse").value == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ens, data: covey.select_members(ens, data, keep=9), "from 1 to 3"),
        (lambda ens, data: covey.select_members(ens, data, keep=1.5), "from 1 to 3"),
        (lambda ens, data: covey.select_members(ens, data, keep=2.0), "from 1 to 3"),
        (lambda ens, data: covey.select_members(ens, data, keep=True), "from 1 to 3"),
        (lambda ens, data: covey.select_members(ens.member(0), data), "takes an ensemble"),
        (lambda ens, data: covey.select_members(ens, data, score="f1"), "score is one of"),
        (lambda ens, data: covey.select_members(ens, data, score="rmse"), "score is 'nll' or 'accuracy'"),
        (lambda ens, data: covey.soup([], data), "at least one"),
        (lambda ens, data: picked(ens, [3]), "members 0 to 2"),
        (lambda ens, data: picked(ens, []), "names no member"),
    ],
)
def test_mistakes_are_told(call: object, said: str) -> None:
    ens = covey.convert(network(), covey.DeepEnsemble(members=3), example=blobs(4)[0])
    with pytest.raises(OptionError, match=said):
        call(ens, blobs(30))  # type: ignore[operator]


def test_random_members_cannot_be_chosen_between() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3))
    ens = covey.convert(net, covey.MCDropout(members=3), example=blobs(4)[0])
    with pytest.raises(OptionError, match="no tensors of their own"):
        covey.select_members(ens, blobs(30))
