"""Faults that an attack found, each held by a test."""

from __future__ import annotations

import collections
import copy
import logging
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey import registry
from covey.data import Data, Split
from covey.errors import ConversionError, OptionError, StoreError

QUIET = covey.Machine(accelerator="cpu", progress=False)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(48) % 3
    whole = Split(torch.randn(48, 4, generator=generator) + targets[:, None], targets)
    return Data(whole, whole, whole, task="classification", classes=("a", "b", "c"), shape=(4,))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("length", [5, 7])
def test_the_loss_goes_by_the_known_class_axis(length: int, soft: bool) -> None:
    net = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 5, 1))
    x = torch.randn(4, 2, length)
    y = torch.randn(4, 5, length).softmax(1) if soft else torch.randint(0, 5, (4, length))
    ens = covey.convert(net, covey.Replicate(members=2, noise=0.1), example=x).eval()
    expected = sum(F.cross_entropy(ens.member(k)(x), y) for k in range(2))
    torch.testing.assert_close(ens.loss(x, y), expected)


def test_members_that_share_everything_train_with_the_whole_gradient() -> None:
    net, x, y = mlp(), torch.randn(8, 4), torch.randint(0, 3, (8,))
    F.cross_entropy(net(x), y).backward()
    ens = covey.convert(net, covey.Replicate(members=4, where=()), example=x)
    ens.loss(x, y).backward()
    torch.testing.assert_close(ens.parts["shared"].theta["0.weight"].grad, net[0].weight.grad)


def test_draws_of_dropout_take_no_minibatches_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    recipe = covey.Recipe(epochs=1, batch=16, plan="independent")
    with pytest.raises(OptionError, match=r"MCDropout makes its members' batches itself.*'independent'"):
        covey.fit(net, data(), recipe, method=covey.MCDropout(members=3), machine=QUIET)


def test_a_single_member_started_late_is_still_the_method_s() -> None:
    recipe = covey.Recipe(epochs=2, batch=16)
    packed = covey.Packed(members=1, alpha=0.5, init="slice")
    assert (
        covey.fit(mlp(), data(), recipe, method=covey.late(packed, 1), machine=QUIET).ensemble.method
        == packed
    )
    for method in (covey.late(covey.BatchEnsemble(members=1, init="ones"), 1), covey.late(packed, 1)):
        made = covey.fit(mlp(), data(), recipe, method=method, machine=QUIET).ensemble
        assert made.method == method.result(recipe)


@pytest.mark.parametrize(
    "method", [covey.Mixture(), covey.SuperWeights(), covey.ShapeShifter(), covey.Slimmable()]
)
def test_what_cannot_start_late_says_so_at_once(method: covey.Method) -> None:
    with pytest.raises(OptionError, match="cannot be widened|no one network"):
        covey.late(method)


def test_frozen_parameters_come_back_frozen(tmp_path: Path) -> None:
    net = mlp()
    net[0].requires_grad_(False)
    ens = covey.convert(net, covey.BatchEnsemble(members=2), example=torch.randn(2, 4))
    covey.save(ens, tmp_path)
    again = covey.load(tmp_path, mlp())
    assert [p.requires_grad for p in ens.parameters()] == [p.requires_grad for p in again.parameters()]
    assert ens.coverage.rows == again.coverage.rows


def test_frozen_layers_that_a_method_would_redraw_are_refused() -> None:
    net = mlp()
    net[0].requires_grad_(False)
    with pytest.raises(ConversionError, match=r"MIMO.*'0.weight' is frozen"):
        covey.convert(net, covey.MIMO(), example=torch.randn(2, 4))
    with pytest.raises(ConversionError, match=r"slice.*'0.weight' is frozen"):
        covey.convert(net, covey.Packed(init="slice"), example=torch.randn(2, 4))


class Keeps(nn.Module):
    """Keeps a tensor made of its weights wherever it is told to."""

    def __init__(self, place: Any) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x) / self.kept())

    def kept(self) -> Tensor:
        place, fresh = self.place, self.inner.weight.abs().sum()
        if isinstance(place, dict):
            return place.setdefault("w", fresh)
        if isinstance(place, SimpleNamespace):
            place.w = getattr(place, "w", fresh)
            return place.w
        if isinstance(place, str):  # on a layer of torch's
            self.inner.wsum = getattr(self.inner, "wsum", fresh)
            return self.inner.wsum
        inner = place[0] if isinstance(place, tuple) else place
        if not inner:
            inner.append(fresh)
        return inner[0]


@pytest.mark.parametrize(
    "place",
    [
        {},
        collections.OrderedDict(),
        collections.defaultdict(list),
        collections.deque(),
        [],
        ([],),
        SimpleNamespace(),
        "layer",
        dict.fromkeys(range(1000)),
    ],
    ids=lambda place: f"{type(place).__name__} {len(place) if hasattr(place, '__len__') else ''}",
)
def test_members_do_not_meet_in_what_a_network_keeps(place: Any) -> None:
    x = torch.randn(5, 4)
    ens = covey.convert(Keeps(place), covey.Replicate(members=3, noise=0.5), example=x).eval()
    ens.run = "loop"
    for _ in range(2):
        outputs = ens(x)
        for k in range(3):
            torch.testing.assert_close(outputs[k], ens.member(k)(x))


class Rope(nn.Module):
    """A table that grows with the input, and a number that says how far it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.length, self.table = 0, None
        self.seen = {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["calls"] += 1
        if len(x) > self.length:
            self.length, self.table = len(x), torch.cos(torch.arange(len(x)).float())[:, None]
        return self.out(self.inner(x) * self.table[: len(x)])


def test_a_number_and_its_tensor_are_dropped_together() -> None:
    ens = covey.convert(Rope(), covey.Replicate(members=2, noise=0.1), example=torch.randn(5, 4)).eval()
    for run in ("loop", "batched"):
        ens.run = run
        for size in (5, 5, 9, 3):
            x = torch.randn(size, 4)
            torch.testing.assert_close(ens(x)[1], ens.member(1)(x))


class Counts(nn.Module):
    """Counts its calls in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.state = {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.state["calls"] += 1
        return self.out(x) * min(1.0, self.state["calls"] / 3)


def test_counters_go_on_as_in_a_network_of_one_s_own() -> None:
    net, x = Counts(), torch.randn(2, 4)
    ens = covey.convert(net, covey.Replicate(members=2)).eval()
    ens.run = "loop"
    for _ in range(4):
        torch.testing.assert_close(ens(x)[1], net(x))


class Lazy(nn.Module):
    """Makes a layer when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            self.made = nn.Linear(4, 4)
        return self.out(self.made(x))


def test_a_network_that_makes_layers_while_it_runs_is_refused() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(ConversionError, match=r"makes 'made.*Call it once"):
        covey.convert(Lazy(), covey.Replicate(), example=x)
    net = Lazy()
    net(x)
    covey.convert(net, covey.Replicate(), example=x)


@pytest.mark.parametrize(
    "other",
    [
        covey.late(covey.NormEnsemble(members=5), 1),
        covey.late(covey.NormEnsemble(members=2), 1, 0.9),
        covey.late(covey.BatchEnsemble(members=2), 1),
        covey.late(covey.NormEnsemble(members=2), 1, freeze=True),
    ],
)
def test_a_run_is_not_resumed_with_another_late_start(other: covey.Training, tmp_path: Path) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    recipe = covey.Recipe(epochs=2, batch=16)
    covey.fit(
        net(),
        data(),
        recipe,
        method=covey.late(covey.NormEnsemble(members=2), 1),
        folder=tmp_path,
        machine=QUIET,
    )
    with pytest.raises(StoreError, match="other settings: method was"):
        covey.fit(net(), data(), recipe, method=other, folder=tmp_path, machine=QUIET, resume=True)


def test_a_broken_package_disables_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken = EntryPoint("broken", "no_such_package:Foo", registry.GROUP)
    monkeypatch.setattr(registry, "_foreign", lambda: {"broken": broken})
    with caplog.at_level(logging.WARNING, "covey"):
        assert "replicate" in covey.METHODS
        assert "broken" not in covey.METHODS
    assert "broken" in caplog.text
    covey.save(covey.convert(mlp(), covey.DeepEnsemble()), tmp_path)
    with pytest.raises(OptionError, match="no_such_package:Foo, which cannot be imported"):
        registry.lookup("broken")


def test_odd_values_are_plain_or_refused(tmp_path: Path) -> None:
    net = mlp()
    ens = covey.convert(net, covey.DeepEnsemble(), seed=np.int64(3), class_dim=np.int64(-1))
    covey.save(ens, tmp_path)
    assert covey.load(tmp_path, net).seed == 3
    body = SimpleNamespace(shared_buffers=lambda own: ())
    assert covey.Layout.of([body], own=(), facts={"n": np.int64(3)}).facts == {"n": 3}  # type: ignore[list-item]
    with pytest.raises(ConversionError, match="got a set"):
        covey.Layout.of([body], own=(), facts={"n": {1}})  # type: ignore[list-item]
    with pytest.raises(StoreError, match="a torch.nn.Module, or a list of them"):
        covey.load(tmp_path, nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="task is a task's name"):
        covey.convert(net, covey.DeepEnsemble(), task=["a"])  # type: ignore[arg-type]
    for name in ("a/b", "x,y", "-x", "a\nb"):
        with pytest.raises(OptionError, match="lower case words"):
            covey.register(name, covey.DeepEnsemble)
    assert ens.predict(torch.randn(0, 4)).probs.shape == (0, 3)
    assert copy.deepcopy(ens).members == ens.members


@pytest.mark.parametrize("name", sorted(registry.OWN))
def test_no_option_takes_what_is_not_of_its_kind(name: str) -> None:
    kind = registry.lookup(name)
    default = kind()
    for field in fields(kind):
        if not field.init:
            continue
        for bad in (object(), float("nan"), {"a": 1}):
            with pytest.raises(OptionError):
                kind(**{field.name: bad})
    assert kind() == default


@pytest.mark.parametrize("method", [covey.MultiHead(members=2), covey.Masksembles(members=2)])
def test_shared_embeddings_with_a_max_norm_train(method: covey.Method) -> None:
    """Their weights are changed in place in the forward pass, under a scaled gradient too."""
    net = nn.Sequential(
        nn.Embedding(9, 8, max_norm=1.0), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    with torch.no_grad():
        net[0].weight.mul_(3)
    x, y = torch.randint(0, 9, (4, 3)), torch.randint(0, 3, (4,))
    ens = covey.convert(net, method, example=x)
    ens.run = "loop"
    plain = ens.member(0)
    torch.testing.assert_close(ens(x)[0], plain(x))
    ens.loss(x, y).backward()
    weight = ens.parts["shared"].theta["0.weight"]
    assert weight.grad[x.flatten()].any()
    torch.testing.assert_close(weight.detach(), plain[0].weight.detach())


class MaskedByBuffer(nn.Module):
    """Attends to the past alone, by a mask that is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((5, 5), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head((h @ h.mT + self.mask).softmax(-1) @ h)


def test_infinities_in_a_buffer_are_no_fault() -> None:
    net, x = MaskedByBuffer().eval(), torch.randn(2, 5, 4)
    ens = covey.convert(net, covey.Replicate(members=2), example=x).eval()
    torch.testing.assert_close(ens(x)[1], net(x))
    net.mask[0, 0] = torch.nan
    with pytest.raises(ConversionError, match="'mask' holds 1 of 25 values that are NaN"):
        covey.convert(net, covey.Replicate(members=2), example=x)


class Grows(nn.Module):
    """A buffer gets its shape, and other memory, when the network first runs in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("largest", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.training:
            self.largest.resize_(y.shape[1]).copy_(y.detach().amax(0))
        return y / (1 + self.largest.abs())


def test_a_buffer_that_gets_its_shape_in_the_forward_pass_is_refused_until_it_has_it() -> None:
    net, x = Grows(), torch.randn(5, 4)
    with pytest.raises(
        ConversionError, match=r"'largest' has the shape \(1,\) and gets the shape \(3,\).*once"
    ):
        covey.convert(net, covey.Replicate(members=2), example=x)
    net(x)
    ens = covey.convert(net, covey.Replicate(members=2), example=x)
    ens.run = "loop"
    plain = ens.member(1)
    torch.testing.assert_close(ens(x)[1], plain(x))
    torch.testing.assert_close(ens.member(1).largest, plain.largest)


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.mul_(2).sub_(1))


@pytest.mark.parametrize("method", [covey.Packed(members=2, alpha=1.0), covey.MIMO(members=2)])
def test_no_method_lets_the_network_change_the_users_example(method: covey.Method) -> None:
    x = torch.randn(5, 4)
    before = x.clone()
    covey.convert(ChangesItsInput(), method, example=x)
    assert torch.equal(x, before)


class GlobalNorm(nn.Module):
    """A norm of one's own, its gain laid out for sequences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / x.square().mean((1, 2), keepdim=True).add(1e-6).sqrt()


def test_a_norm_of_ones_own_is_a_norm_however_its_gain_is_laid_out() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 3), GlobalNorm(4), nn.Flatten(), nn.Linear(24, 3))
    ens = covey.convert(net, covey.Replicate(where="norms", members=2), example=torch.randn(5, 2, 8))
    own = [row.name for row in ens.coverage.rows if "replicated" in row.role]
    assert own == ["1.gain"]
