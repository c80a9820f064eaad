from __future__ import annotations

import itertools

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


def test_collapse_is_the_network_of_the_mean_embedding() -> None:
    ensemble = _converted()
    mean = ensemble.collapse()
    expected = torch.stack([ensemble.tensors(k)["convs.3.weight"] for k in range(3)]).mean(0)
    torch.testing.assert_close(mean.convs[3].weight, expected)


def test_bad_input_says_what_to_do() -> None:
    body = examine(_Net(), example=torch.zeros(2, 3, 5, 5))
    with pytest.raises(covey.CoveyError, match=r"at least [\d,]+ parameters.*'convs.*the most of all layers"):
        built(covey.Hypernetwork(members=3, budget=500), [body])
    with pytest.raises(covey.CoveyError, match="linear=True"):
        covey.convert(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), covey.Hypernetwork(), example=torch.zeros(2, 4)
        )
    with pytest.raises(covey.CoveyError, match="give convert\\(\\) an example"):
        covey.convert(_Net(), covey.Hypernetwork())
    with pytest.raises(covey.CoveyError, match="SuperWeights takes several"):
        built(covey.Hypernetwork(), [body, body])
    for options, words in (
        ({"sizes": (1, 2)}, "three whole numbers"),
        ({"sizes": (1, 2, 0)}, "at least 1"),
        ({"budget": 0}, "above 0"),
        ({"budget": True}, "above 0"),
        ({"budget": float("nan")}, "above 0"),
        ({"norms": "none"}, "one of 'member', 'shared'"),
    ):
        with pytest.raises(covey.CoveyError, match=words):
            covey.Hypernetwork(**options)  # type: ignore[arg-type]
