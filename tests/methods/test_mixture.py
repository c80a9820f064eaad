from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from meta_wrn import built, wrn_28_10
from torch import nn

import covey
from covey import registry
from covey.methods.mixture import allocate
from covey.networks.anatomy import Anatomy, examine
from covey.parts.banks import Bank, FlatBank
from covey.parts.templates import Templates

GROUPED = 7 * (230_400 + 921_600 + 3_686_400)  # 21 layers of WRN-28-10 in three groups
PLAIN = 2_586_032  # layers that stand alone in their shape, but for the head
HEAD = 6_410
NORMS = 17_952


def _banks(ensemble: covey.Ensemble) -> list[Bank]:
    part = ensemble.parts["mixture"]
    assert isinstance(part, Templates)
    return list(part.named_banks().values())


def _count(ensemble: covey.Ensemble) -> int:
    return sum(p.numel() for p in ensemble.parameters())


def test_105_coefficients_a_member_and_two_percent_unused_on_wrn_28_10() -> None:
    ensemble = built(covey.Mixture(members=4, budget=36_500_000), [wrn_28_10()])
    assert sum(bank.alpha[0].numel() for bank in _banks(ensemble)) == 105
    assert 0.98 * 36_500_000 <= _count(ensemble) <= 36_500_000
    assert ensemble.coverage.total == _count(ensemble)
    shared = ensemble.parts["shared"].parameters()
    assert sum(p.numel() for p in shared) == PLAIN + HEAD
    # 6, 7 and 7 templates; a seventh of the first group would be above the budget
    assert _count(ensemble) == 6 * 230_400 + 7 * 921_600 + 7 * 3_686_400 + PLAIN + HEAD + 4 * (105 + NORMS)
    assert _count(ensemble) == 36_303_070


def test_one_more_member_costs_its_coefficients_and_its_norms() -> None:
    """Section 3.1 of the paper: "a few thousand", 105 coefficients and BatchNorm."""

    def count(members: int, **options: Any) -> int:
        body = wrn_28_10()
        method = covey.Mixture(members=members, budget=36_500_000, **options)
        return _count(built(method, [body]))

    assert count(5) - count(4) == 105 + 17_952
    assert count(5, heads="member") - count(4, heads="member") == 105 + 17_952 + 6_410


@pytest.mark.parametrize("heads", ["shared", "member"])
def test_the_coverage_table_says_whose_the_heads_are(heads: str) -> None:
    torch.manual_seed(0)
    method = covey.Mixture(members=3, budget=9.0, heads=heads)  # type: ignore[arg-type]
    ensemble = covey.convert(_net(), method, example=X)
    rows = {row.name: row for row in ensemble.coverage.rows}
    says = {"shared": "head shared by all members", "member": "head of each member"}[heads]
    for name, parameters in (("7.weight", 18), ("7.bias", 3)):
        assert rows[name].note == says
        assert rows[name].parameters == parameters * (3 if heads == "member" else 1)
    assert rows["0.weight"].note == "no templates, shared by all members"
    first, second = (ensemble.tensors(k)["7.weight"] for k in (0, 1))
    assert torch.equal(first, second) == (heads == "shared")


def test_options_from_before_heads_mean_a_head_for_each_member() -> None:
    stored = registry.described(covey.Mixture(members=3))["options"]
    assert registry.revived("mixture", stored).heads == "shared"
    del stored["heads"]
    assert registry.revived("mixture", stored).heads == "member"
    # part of the options is no stored ensemble but a recipe, whose other options are the defaults
    assert registry.revived("mixture", {"members": 3}).heads == "shared"


@pytest.mark.parametrize(("budget", "templates"), [(15_000_000, 2), (36_500_000, 7), (120_000_000, 24)])
@pytest.mark.parametrize("members", [1, 4, 7])
def test_the_budget_holds_and_less_than_the_smallest_template_is_unused(
    budget: int, templates: int, members: int
) -> None:
    ensemble = built(covey.Mixture(members=members, budget=budget), [wrn_28_10()])
    assert budget - 230_400 - 21 * 5 * members < _count(ensemble) <= budget
    left = budget - PLAIN - HEAD - members * NORMS
    assert abs(left / GROUPED * 7 - templates) < 0.6
    largest = max(_banks(ensemble), key=lambda bank: bank.theta[0].numel())
    assert largest.theta.shape == (round(left / GROUPED * 7 - 0.1), 640, 640, 3, 3)


def test_a_float_is_a_ratio_and_an_int_a_count() -> None:
    one = built(covey.Mixture(members=4, budget=1.0), [wrn_28_10()])
    assert 0.98 * 36_479_194 < _count(one) <= 36_479_194
    with pytest.raises(covey.CoveyError, match="the budget is 1\\."):
        built(covey.Mixture(members=4, budget=1), [wrn_28_10()])


def test_seven_million_is_one_bank_for_all_layers() -> None:
    ensemble = built(covey.Mixture(members=4, budget=7_000_000), [wrn_28_10()])
    (bank,) = _banks(ensemble)
    assert isinstance(bank, FlatBank)
    share = (7_000_000 - PLAIN - HEAD - 4 * NORMS) / GROUPED * 7
    assert abs(share - 0.9) < 0.02  # of a template each
    assert _count(ensemble) == 7_000_000
    assert len(ensemble.parts["mixture"].names) == 28  # single layers too


def _net(layers: int = 4, width: int = 6) -> nn.Module:
    body = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(layers)]
    return nn.Sequential(
        nn.Conv2d(2, width, 1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3)
    ).double()


X = torch.zeros(2, 2, 4, 4, dtype=torch.float64)


@pytest.mark.parametrize("assign", ["same", "disjoint"])
def test_a_layer_is_the_sum_of_its_templates(assign: str) -> None:
    torch.manual_seed(0)
    method = covey.Mixture(members=3, budget=9.0, templates=2, assign=assign)  # type: ignore[arg-type]
    ensemble = covey.convert(_net(), method, example=X)
    (bank,) = _banks(ensemble)
    count = len(bank.theta)
    assert count == {"same": 8, "disjoint": 24}[assign]  # 4 layers x 2 templates, for all or for each member
    used = set()
    for k in range(3):
        for j in range(4):
            turn = j if assign == "same" else j * 3 + k
            slots = [(turn * 2 + i) % count for i in range(2)]
            used |= set(slots)
            expected = sum(bank.alpha[k, j, i] * bank.theta[slot] for i, slot in enumerate(slots))
            torch.testing.assert_close(ensemble.tensors(k)[f"{j + 1}.weight"], expected)
    assert used == set(range(count))


def test_disjoint_members_share_no_template_as_long_as_there_are_any() -> None:
    torch.manual_seed(0)
    method = covey.Mixture(members=3, budget=9.0, templates=2, assign="disjoint")
    ensemble = covey.convert(_net(), method, example=X)
    first, second = (ensemble.tensors(k)["1.weight"] for k in (0, 1))
    (bank,) = _banks(ensemble)
    (gradient,) = torch.autograd.grad(first.sum(), bank.theta, retain_graph=True)
    (other,) = torch.autograd.grad(second.sum(), bank.theta)
    touched, also = (g.flatten(1).abs().sum(1) > 0 for g in (gradient, other))
    assert not (touched & also).any()


def _minimum(method: covey.Method, body: Anatomy) -> int:
    """What the error for too small a budget says."""
    with pytest.raises(covey.CoveyError) as caught:
        built(method, [body])
    found = re.search(r"at least ([\d,]+)", str(caught.value))
    assert found
    return int(found[1].replace(",", ""))


def _two_groups() -> nn.Module:
    body = [nn.Conv2d(6, 6, size, padding=size // 2, bias=False) for size in (3, 1, 3, 1)]
    return nn.Sequential(
        nn.Conv2d(2, 6, 1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    ).double()


def test_the_flat_bank_is_read_round_and_round() -> None:
    network = _two_groups()
    body = examine(network, example=X)
    budget = _minimum(covey.Mixture(members=2, budget=100, templates=3), body) + 7
    ensemble = built(covey.Mixture(members=2, budget=budget, templates=3), [body])
    (bank,) = _banks(ensemble)
    assert isinstance(bank, FlatBank)
    assert _count(ensemble) == budget
    n, start = len(bank.theta), 0
    assert n == 324 + 7
    for j in range(5):
        shape = network[j].weight.shape
        step = min(shape.numel(), n // 3)
        for k in range(2):
            flat = torch.zeros(shape.numel(), dtype=torch.float64)
            for i in range(3):
                where = (start + i * step + torch.arange(shape.numel())) % n
                flat += bank.alpha[k, j, i] * bank.theta[where]
            torch.testing.assert_close(ensemble.tensors(k)[f"{j}.weight"], flat.view(shape))
        start = (start + 3 * step) % n


@pytest.mark.parametrize("templates", [1, 5])
def test_the_minimum_it_names_is_enough(templates: int) -> None:
    body = examine(_two_groups(), example=X)
    minimum = _minimum(covey.Mixture(members=3, budget=100, templates=templates), body)
    one_bank = 324 + 21 + 3 * (5 * templates + 6)  # the largest layer; the head; coefficients and a bias each
    two_banks = 324 + 36 + 12 + 6 + 21 + 3 * 4  # one template each; the first layer; the head; coefficients
    assert minimum == min(one_bank, two_banks)
    assert _count(built(covey.Mixture(members=3, budget=minimum, templates=templates), [body])) == minimum
    assert _minimum(covey.Mixture(members=3, budget=minimum - 1, templates=templates), body) == minimum


def test_shares_and_leftovers() -> None:
    def counts(numbers: int) -> list[int] | None:
        return allocate([10, 100], [2, 2], numbers, templates=5, members=1, apart=False)

    # a template of 10 or 100 numbers, and a coefficient of two layers for each template that they mix
    assert counts(2 * 110 + 8) == [2, 2]
    assert counts(2 * 110 + 8 + 11) == [2, 2]
    assert counts(2 * 110 + 8 + 12) == [3, 2]
    assert counts(2 * 110 + 8 + 24) == [4, 2]
    assert counts(3 * 110 + 12) == [3, 3]
    assert counts(110 + 4) == [1, 1]
    assert counts(110 + 3) is None
    assert counts(10**6) == [10, 10]  # more could not be mixed


def test_bad_input_says_what_to_do() -> None:
    body = examine(_net(), example=X)
    with pytest.raises(
        covey.CoveyError, match=r"at least [\d,]+ parameters here, and the budget is 350.*'1.weight'"
    ):
        built(covey.Mixture(members=3, budget=350), [body])
    apart = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(64, 2)).double()
    # no two layers have one shape: all of them read out of one vector
    assert list(covey.convert(apart, covey.Mixture(), example=X).layout.facts["banks"]) == ["bank"]
    covey.convert(apart, covey.Mixture(singles="bank", budget=5.0), example=X)
    with pytest.raises(covey.CoveyError, match="SuperWeights takes several"):
        built(covey.Mixture(), [body, body])
    for options, words in (
        ({"budget": None}, "got None"),
        ({"budget": -1.0}, "above 0"),
        ({"templates": 0}, "at least 1"),
        ({"assign": "random"}, "one of 'same', 'disjoint'"),
        ({"singles": "no"}, "one of 'plain', 'bank'"),
        ({"norms": "no"}, "one of 'member', 'shared'"),
        ({"heads": "no"}, "one of 'member', 'shared'"),
    ):
        with pytest.raises(covey.CoveyError, match=words):
            covey.Mixture(**options)  # type: ignore[arg-type]
