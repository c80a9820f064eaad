"""A duplicate is what copy.deepcopy would have made."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from covey.networks.copies import duplicate


class _Keeping(nn.Module):
    """Keeps containers in Python: one shared with its child, one that refers back to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.cache: dict[str, object] = {}
        self.inner.cache = self.cache
        self.parts = [self.inner]
        self.numbers: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_empty_containers_are_new_ones_and_shared_where_they_were():
    network = _Keeping()
    twin = duplicate(network)
    twin.cache["x"] = 1
    twin.numbers.append(1)
    assert network.cache == {}
    assert network.numbers == []
    assert twin.inner.cache is twin.cache
    assert twin.parts[0] is twin.inner is not network.inner


def test_a_hook_added_to_the_copy_is_not_on_the_network():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    twin = duplicate(network)
    twin[0].register_forward_hook(lambda *_: None)
    assert not network[0]._forward_hooks
    assert not twin[1]._forward_hooks
    assert isinstance(twin[1]._forward_hooks, OrderedDict)


@pytest.mark.parametrize("kind", ["tied", "weight norm", "lstm", "batch norm", "attention"])
def test_it_answers_as_the_network_and_has_tensors_of_its_own(kind: str):
    network, x = _network(kind)
    network.eval()
    twin = duplicate(network)
    assert list(twin.state_dict()) == list(network.state_dict())
    before = _answer(network, x)
    assert torch.equal(_answer(twin, x), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(_answer(network, x), before)
    assert not torch.equal(_answer(twin, x), before)


def test_ties_stay_ties():
    network, _ = _network("tied")
    twin = duplicate(network)
    assert twin[0].weight is twin[1].weight


def test_what_stands_in_for_a_tensor_stands_wherever_it_was():
    network, _ = _network("tied")
    other = nn.Parameter(torch.zeros(3, 3))
    twin = duplicate(network, {id(network[0].weight): other})
    assert twin[0].weight is other
    assert twin[1].weight is other


def test_a_class_with_its_own_way_of_copying_keeps_it():
    class Own(nn.Module):
        def __deepcopy__(self, memo: object) -> Own:
            made = Own()
            made.told = True
            return made

    twin = duplicate(nn.Sequential(Own()))
    assert twin[0].told


def test_ways_of_copying_that_a_class_has_are_used():
    class Told(nn.Module):
        def __getstate__(self) -> dict[str, object]:
            return {**self.__dict__, "told": True}

    twin = duplicate(nn.Sequential(Told(), nn.Linear(2, 2)))
    assert twin[0].told


def test_a_class_that_fills_itself_finds_its_children_filled():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(2, 2)

        def __setstate__(self, state: dict[str, object]) -> None:
            super().__setstate__(state)
            self.total = self.child.weight.sum().item()

    network = Sum()
    assert duplicate(network).total == network.child.weight.sum().item()


def test_modules_that_meet_outside_of_torch_are_one_in_the_copy():
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(2, 2)
            self.child.__dict__["parent"] = self  # a cycle that torch does not see
            self.hidden = {"it": (self.child, nn.ReLU())}

    network = Parent()
    twin = duplicate(network)
    assert twin.child.parent is twin is not network
    assert twin.hidden["it"][0] is twin.child
    assert twin.hidden["it"][1] is not network.hidden["it"][1]


def _network(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if kind == "tied":
        pair = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        pair[1].weight = pair[0].weight
        return pair, torch.randn(2, 3)
    if kind == "weight norm":
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3))), torch.randn(2, 3)
    if kind == "lstm":
        return nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    if kind == "batch norm":
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.randn(2, 1, 5, 5)
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.randn(2, 5, 4)


def _answer(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found = network(x)
    return found[0] if isinstance(found, tuple) else found
