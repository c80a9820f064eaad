from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from meta_wrn import built, wrn_28_10
from torch import nn

import covey
from covey.methods.hypernetwork import chunk_groups, embeddings
from covey.networks.anatomy import examine
from covey.parts.budget import layers_of
from covey.parts.templates import Templates


def _part(ensemble: covey.Ensemble) -> Templates:
    part = ensemble.parts["hypernetwork"]
    assert isinstance(part, Templates)
    return part


def _count(ensemble: covey.Ensemble) -> int:
    return sum(p.numel() for p in ensemble.parameters())


@pytest.mark.parametrize("members", [1, 4, 10])
def test_table_s1_is_reproduced_on_wrn_28_10(members: int) -> None:
    ensemble = built(covey.Hypernetwork(members=members, budget=None), [wrn_28_10()])
    banks = _part(ensemble).named_banks().values()
    assert sum(bank.theta.numel() for bank in banks) == 35_844_320
    assert embeddings(ensemble).shape == (members, 654)
    assert _count(ensemble) == 35_844_320 + 25_016 * members
    assert ensemble.coverage.total == _count(ensemble)


def test_table_s1_has_these_hypernetworks() -> None:
    body = wrn_28_10()
    groups = chunk_groups(body, layers_of(body, "all", False, "x"))
    found = [(group.block, len(group.layers), sum(group.chunks)) for group in groups]
    assert sorted(found) == sorted(
        [
            ((16, 3, 3, 3), 1, 1),
            ((160, 16, 3, 3), 1, 1),
            ((160, 80, 3, 3), 7, 14),
            ((320, 160, 3, 3), 8, 15),
            ((640, 320, 3, 3), 8, 15),
            ((160, 16, 1, 1), 1, 1),
            ((320, 160, 1, 1), 1, 1),
            ((640, 320, 1, 1), 1, 1),
        ]
    )


@pytest.mark.parametrize("options", [{"sizes": (5, 3, 6), "budget": None}, {"budget": 15_650_000}])
def test_the_compressed_variant(options: dict) -> None:
    ensemble = built(covey.Hypernetwork(members=10, **options), [wrn_28_10()])
    assert sum(bank.theta.numel() for bank in _part(ensemble).named_banks().values()) == 15_362_160
    assert embeddings(ensemble).shape == (10, 281)
    assert round(_count(ensemble) / 1e6, 1) == 15.6


def test_the_network_s_own_size_as_budget_gives_the_paper_s_sizes() -> None:
    ensemble = built(covey.Hypernetwork(members=10), [wrn_28_10()])
    assert _count(ensemble) == 35_844_320 + 250_160 <= 36_479_194


class _Net(nn.Module):
    """3 -> 8 -> 8 -> 16 -> 16 channels: a group of two chunks at 16 outputs, one at 8."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 8, 16, 16)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(widths)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = conv(x).relu()
        return self.head(x.mean((2, 3)))


def _converted(**options: object) -> covey.Ensemble:
    torch.manual_seed(0)
    method = covey.Hypernetwork(members=3, **{"sizes": (2, 3, 4), "budget": None, **options})  # type: ignore[arg-type]
    return covey.convert(_Net().double(), method, example=torch.zeros(2, 3, 5, 5, dtype=torch.float64))


def test_chunk_s_fills_inputs_s_plus_multiples_of_two() -> None:
    ensemble = _converted()
    tensors = ensemble.tensors(1)
    for name in ("convs.2.weight", "convs.3.weight"):  # 8 -> 16 in one chunk, 16 -> 16 in two, of one tensor
        assert len(_part(ensemble).makeup[0][name].pieces) == {"convs.2.weight": 1, "convs.3.weight": 2}[name]
    label = _part(ensemble).makeup[0]["convs.3.weight"].pieces[0].bank
    bank = _part(ensemble).named_banks()[label]
    assert bank.theta.shape == (4, 16, 8, 3, 3)
    assert bank.alpha.shape == (3, 3, 4)  # members, chunks, D
    e = bank.alpha[1]
    expected = torch.zeros(16, 16, 3, 3, dtype=torch.float64)
    for channel in range(16):
        chunk = e[1 + channel % 2]
        expected[:, channel] = sum(chunk[d] * bank.theta[d, :, channel // 2] for d in range(4))
    torch.testing.assert_close(tensors["convs.3.weight"], expected)
    first = sum(e[0, d] * bank.theta[d] for d in range(4))
    torch.testing.assert_close(tensors["convs.2.weight"], first)


def test_weights_start_with_kaiming_variance_and_embeddings_orthogonal() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(64, 64, 3) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3)
    )
    method = covey.Hypernetwork(members=2, sizes=(8, 8, 8), budget=None)
    ensemble = covey.convert(network, method, example=torch.zeros(2, 64, 9, 9))
    for k in range(2):
        weight = ensemble.member(k)[1].weight
        assert abs(weight.var().item() * 64 * 9 / 2 - 1) < 0.1
    alpha = next(bank.alpha for bank in _part(ensemble).named_banks().values() if bank.alpha.shape[1] == 6)
    gram = alpha[0] @ alpha[0].T
    torch.testing.assert_close(gram, torch.eye(6), atol=1e-5, rtol=0)
    assert not torch.allclose(alpha[0], alpha[1])


def test_embeddings_have_no_decay_and_norms_can_be_shared() -> None:
    groups = _converted().param_groups(0.1, 0.5)
    assert {(g["members"], g["weight_decay"]) for g in groups if g["name"] == "hypernetwork"} == {
        (False, 0.5),
        (True, 0.0),
    }
    body = wrn_28_10()
    own, shared = (
        built(covey.Hypernetwork(members=10, norms=n, budget=None), [body]) for n in ("member", "shared")
    )
    assert _count(own) - _count(shared) == 9 * 17_952


@pytest.mark.parametrize(
    ("norms", "total"),
    [  # LL+BN and LL of the paper's appendix: one set of embeddings
        ("member", lambda members: 35_844_320 + 654 + members * (17_952 + 6_410)),
        ("single", lambda members: 35_844_320 + 654 + 17_952 + members * 6_410),
        ("shared", lambda members: 35_844_320 + 654 + 17_952 + members * 6_410),
    ],
)
def test_the_controls_share_one_set_of_embeddings(norms: str, total: Callable[[int], int]) -> None:
    for members in (1, 10):
        method = covey.Hypernetwork(members=members, norms=norms, embeddings="shared", budget=None)  # type: ignore[arg-type]
        ensemble = built(method, [wrn_28_10()])
        assert _count(ensemble) == ensemble.coverage.total == total(members)


def _small(**options: Any) -> covey.Ensemble:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(16, 3),
    ).double()  # fmt: skip
    method = covey.Hypernetwork(members=3, budget=None, **options)
    return covey.convert(network, method, example=torch.zeros(2, 2, 6, 6, dtype=torch.float64))


def test_controls_differ_in_what_is_left_to_them_only() -> None:
    for norms, own in (("member", {"1", "4", "6"}), ("shared", {"6"})):
        ensemble = _small(embeddings="shared", norms=norms)
        assert {name.split(".")[0] for name in ensemble.parts["replicated"].names} == own
        first, second = ensemble.tensors(0), ensemble.tensors(1)
        assert torch.equal(first["0.weight"], second["0.weight"])
        assert not torch.equal(first["6.weight"], second["6.weight"])
        with pytest.raises(covey.CoveyError, match="share their embeddings"):
            embeddings(ensemble)
    # with norms shared too, members are the same up to the head, so one set of statistics is all of theirs
    assert not dict(_small(embeddings="shared", norms="shared").state[0].own.items())


@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize("sharing", ["member", "shared"])
def test_a_single_set_of_norms_has_one_set_of_statistics(run: str, sharing: str) -> None:
    """Members still answer as plain networks; what a step does to the statistics is the mean of what each would do."""
    ensemble = _small(norms="single", embeddings=sharing)
    ensemble.run = run  # type: ignore[assignment]
    assert not dict(ensemble.state[0].own.items())
    x = torch.randn(3, 5, 2, 6, 6, dtype=torch.float64)
    plain = [ensemble.member(k).train() for k in range(3)]
    outputs = ensemble.train()(x, per_member=True)
    for k, network in enumerate(plain):
        torch.testing.assert_close(outputs[k], network(x[k]))
    for layer in (1, 4):
        for name in ("running_mean", "running_var"):
            mean = torch.stack([getattr(network[layer], name) for network in plain]).mean(0)
            for k in range(3):
                torch.testing.assert_close(getattr(ensemble.member(k)[layer], name), mean)
    # a member that trains alone, as a drawn one does, leaves the statistics that it would leave alone
    alone = ensemble.member(1).train()
    ensemble.run = "loop"  # torch cannot vectorise a shared statistic over members that see one minibatch
    ensemble(x[0], members=[1])
    alone(x[0])
    torch.testing.assert_close(ensemble.member(2)[4].running_var, alone[4].running_var)
    ensemble.eval()
    ensemble.run = run  # type: ignore[assignment]
    for k in range(3):
        torch.testing.assert_close(ensemble(x[0])[k], ensemble.member(k).eval()(x[0]))


def test_a_single_set_of_norms_is_stored_started_late_and_collapsed(tmp_path) -> None:
    from covey.data import Data, Split

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 2, 6, 6, generator=draw), torch.arange(40) % 3
    data = Data(
        Split(x, y), Split(x, y), Split(x, y), task="classification", classes=tuple("abc"), shape=(2, 6, 6)
    )
    network = copy.deepcopy(_small().member(0)).float()
    for method in (
        covey.Economical(members=3, norms="single", noise=0.5, nested=False),
        covey.LatePhase(members=3, kind="embeddings", norms="single", collapse=False),
        covey.Economical(members=3, norms="member", embeddings="shared"),
    ):
        recipe = covey.Recipe(epochs=4, batch=10, average=0.5)
        machine = covey.Machine(accelerator="cpu", progress=False)
        ensemble = covey.fit(network, data, recipe, method=method, machine=machine).ensemble
        assert bool(dict(ensemble.state[0].own.items())) == (method.norms == "member")
        covey.save(ensemble, tmp_path / method.norms)
        loaded = covey.load(tmp_path / method.norms, network=network)
        with torch.no_grad():
            assert torch.equal(loaded(x), ensemble(x))
        assert ensemble.collapse()(x).shape == (40, 3)


def test_norms_beside_other_late_weights_are_said_by_where() -> None:
    with pytest.raises(covey.CoveyError, match="norms is for kind='embeddings'"):
        covey.LatePhase(norms="single").late()


def test_collapse_is_the_network_of_the_mean_embedding() -> None:
    ensemble = _converted()
    mean = ensemble.collapse()
    expected = torch.stack([ensemble.tensors(k)["convs.3.weight"] for k in range(3)]).mean(0)
    torch.testing.assert_close(mean.convs[3].weight, expected)


def test_bad_input_says_what_to_do() -> None:
    body = examine(_Net(), example=torch.zeros(2, 3, 5, 5))
    with pytest.raises(covey.CoveyError, match=r"at least [\d,]+ parameters.*'convs.*the most of all layers"):
        built(covey.Hypernetwork(members=3, budget=500), [body])
    linear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(covey.CoveyError, match="linear=False.*Leave linear out, or set linear=True"):
        covey.convert(linear, covey.Hypernetwork(linear=False), example=torch.zeros(2, 4))
    for options in ({"linear": True}, {}):
        with pytest.raises(covey.CoveyError, match="makes the weights of layers before the head.*Name other"):
            covey.convert(linear[:1], covey.Hypernetwork(**options), example=torch.zeros(2, 4))
    with pytest.raises(covey.CoveyError, match="give convert\\(\\) an example"):
        covey.convert(_Net(), covey.Hypernetwork())
    with pytest.raises(covey.CoveyError, match="SuperWeights takes several"):
        built(covey.Hypernetwork(), [body, body])
    for options, words in (
        ({"sizes": (1, 2)}, "3 values, each a whole number"),
        ({"sizes": (1, 2, 0)}, "at least 1"),
        ({"budget": 0}, "above 0"),
        ({"budget": True}, "budget is a whole number or a finite number or one of 'auto'"),
        ({"budget": float("nan")}, "budget is a whole number or a finite number"),
        ({"norms": "none"}, "one of 'member', 'shared', 'single'"),
        ({"embeddings": "none"}, "one of 'member', 'shared'"),
    ):
        with pytest.raises(covey.CoveyError, match=words):
            covey.Hypernetwork(**options)  # type: ignore[arg-type]
