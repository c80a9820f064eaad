from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import run as runs
from covey.ways import WAYS, Inputs
from law_networks import NETWORKS, network


def test_auto_chooses_once_for_each_mode_and_leaves_no_trace() -> None:
    x = NETWORKS["convnet"].x(4)
    ens = covey.convert(network("convnet"), covey.DeepEnsemble(members=3), example=x).train()
    twin = covey.convert(network("convnet"), covey.DeepEnsemble(members=3), example=x).train()
    twin.run = "loop"
    assert ens.run == "auto"
    state = torch.get_rng_state()
    outputs = ens(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert ens.run in WAYS
    assert all(p.grad is None for p in ens.parameters())
    torch.testing.assert_close(outputs, twin(x))
    for a, b in zip(ens.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    ens.eval()
    assert ens.run == "auto"
    with torch.no_grad():
        ens(x)
    assert set(ens.runs.values()) <= set(WAYS)


def test_auto_takes_the_loop_where_vmap_cannot() -> None:
    ens = covey.convert(network("lstm"), covey.DeepEnsemble(members=2))
    ens(NETWORKS["lstm"].x(2))
    assert ens.run == "loop"


def test_auto_takes_the_faster() -> None:
    """A body that is shared is run once when batched; the loop pays for it M times."""
    net = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), *[nn.Linear(512, 512) for _ in range(6)], nn.Linear(512, 3)
    )
    ens = covey.convert(net, covey.MultiHead(members=12), example=torch.randn(2, 64)).eval()
    ens(torch.randn(256, 64))
    assert ens.run == "batched"


def test_bad_input_shows_the_networks_own_error() -> None:
    ens = covey.convert(network("mlp"), covey.DeepEnsemble(members=2))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ens(torch.randn(2, 5, dtype=torch.float64))
    assert ens.run == "auto"


def test_some_members_can_be_run_in_any_order() -> None:
    x = NETWORKS["resnet"].x(3)
    ens = covey.convert(network("resnet"), covey.BatchEnsemble(members=4), example=x, output="logits").eval()
    for run in ("loop", "batched"):
        ens.run = run
        torch.testing.assert_close(ens(x, members=[3, 1]), ens(x)[[3, 1]])


def test_what_comes_before_the_first_member_tensor_runs_once_when_batched() -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            calls.append(torch._C._functorch.is_batchedtensor(y))
            return y

    net = nn.Sequential(Counted(4, 8), Counted(8, 8), Counted(8, 3))
    ens = covey.convert(net, covey.Replicate(members=5, where="2"), example=torch.randn(2, 4))
    calls.clear()
    ens.run = "batched"
    ens(torch.randn(2, 4))
    assert calls == [False, False, True]


def test_channels_last_is_a_flag_that_converts_inputs() -> None:
    seen = []

    class Looked(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    net = nn.Sequential(Looked(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    x = torch.randn(4, 3, 6, 6)
    ens = covey.convert(net, covey.DeepEnsemble(members=2))
    ens.run = "loop"
    plain = ens(x)
    ens.to(memory_format=torch.channels_last)
    seen.clear()
    torch.testing.assert_close(ens(x), plain)
    torch.testing.assert_close(ens(torch.stack([x, x]), per_member=True), plain)
    assert seen == [True] * 4


def test_dropout_differs_between_members_and_calls() -> None:
    net = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    for run in ("loop", "batched"):
        ens = covey.convert(net, covey.MCDropout(members=3), example=torch.randn(2, 4)).eval()
        ens.run = run
        x = torch.randn(5, 4)
        outputs = ens(x)
        assert not torch.allclose(outputs[0], outputs[1])
        assert not torch.allclose(ens(x), outputs)


def test_mc_dropout_draws_in_eval_but_keeps_statistics() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    ens = covey.convert(net, covey.MCDropout(members=200), example=torch.randn(4, 4))
    x = torch.randn(16, 4)
    for run in ("loop", "batched"):
        ens.run = run
        ens.train()(x)
        running = ens.member(0)[1].running_mean
        assert running.abs().sum() > 0
        ens.eval()(x)
        assert torch.equal(ens.member(0)[1].running_mean, running)
    # the mean of many draws through a last linear layer is the network without dropout
    torch.testing.assert_close(ens(x).mean(0), ens.collapse().eval()(x), atol=0.15, rtol=0)


def test_functional_dropout_and_attention_dropout_are_kept_on() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x)[0] + nn.functional.dropout(self.fc(x), 0.2, self.training)

    ens = covey.convert(Functional(), covey.MCDropout(members=2), example=torch.randn(2, 3, 8)).eval()
    ens.run = "loop"
    outputs = ens(torch.randn(2, 3, 8))
    assert not torch.allclose(outputs[0], outputs[1])


class Viewed(nn.Module):
    """Flattens by `view`, which goes with channels last only where an image has shrunk to one pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)[:, :8]


def viewing(size: int) -> tuple[covey.Ensemble, torch.Tensor]:
    net = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), Viewed(), nn.Linear(8, 2))
    x = torch.randn(4, 3, size, size)
    return covey.convert(net, covey.DeepEnsemble(members=2), example=x).eval(), x


def test_auto_measures_memory_formats_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ens, x = viewing(2)
    raced: list[str] = []

    def last(race: runs._Race, present: runs.Way, *others: runs.Way, gain: float = 1.0) -> runs.Way:
        raced.extend(str(way) for way in (present, *others))
        return others[-1]

    monkeypatch.setattr(runs._Race, "winner", last)
    outputs = ens(x)
    assert raced == ["loop", "batched", "batched", "loop+channels_last", "batched+channels_last"]
    assert ens.run == "batched+channels_last"
    assert ens.measured == {"eval": [[3, 2, 2]]}
    torch.testing.assert_close(outputs[1], ens.member(1).eval()(x))


@pytest.mark.parametrize(
    ("seconds", "passes", "chosen"),
    [
        # far behind at once: twice the loop as a reference, once each other
        ({"loop": 1.0, "batched": 2.0, "loop+channels_last": 1.6}, 4, "loop"),
        # close, and slow: each twice
        ({"loop": 1.0, "batched": 0.9, "loop+channels_last": 1.0, "batched+channels_last": 1.0}, 10, "batched"),
        # close, and quick: as often as ever
        ({"loop": 0.01, "batched": 0.009, "loop+channels_last": 0.01, "batched+channels_last": 0.01}, 30, "batched"),
        # quick, so that a first call says nothing: one round more
        ({"loop": 0.01, "batched": 0.03, "loop+channels_last": 0.03}, 8, "loop"),
    ],
)  # fmt: skip
def test_auto_measures_no_longer_than_it_takes_to_know(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], passes: int, chosen: str
) -> None:
    ens, x = viewing(2)
    run: list[str] = []

    def timed(race: runs._Race, way: runs.Way) -> torch.Tensor:
        run.append(str(way))
        race.seconds[way] = seconds[str(way)]
        race.spent += race.seconds[way]
        return torch.zeros(2, 4, 2)

    monkeypatch.setattr(runs._Race, "_timed", timed)
    assert runs.tune(ens, range(2), Inputs((x,), {})) == chosen
    assert len(run) == passes


def test_a_format_that_was_measured_is_not_taken_for_images_of_other_sizes() -> None:
    ens, _ = viewing(2)
    larger = torch.randn(4, 3, 4, 4)
    ens.runs["eval"], ens.measured["eval"] = "loop+channels_last", [[3, 2, 2]]
    torch.testing.assert_close(ens(larger)[0], ens.member(0).eval()(larger))
    ens.run = "loop+channels_last"  # a user's own choice holds for any size
    with pytest.raises(RuntimeError, match="view"):
        ens(larger)


def test_auto_does_not_take_a_format_that_the_network_cannot() -> None:
    ens, x = viewing(4)
    ens(x)
    assert ens.run in ("loop", "batched")


def test_auto_measures_weights_that_are_made() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ens = covey.convert(net, covey.BatchEnsemble(members=2), example=torch.randn(2, 4)).eval()
    x = torch.randn(3, 4)
    expected = ens(x)
    for way in WAYS:
        ens.run = way
        torch.testing.assert_close(ens(x), expected)
    assert ens.acting


def test_one_grey_channel_comes_last_too() -> None:
    seen = []

    class Looked(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            seen.append(y.is_contiguous(memory_format=torch.channels_last))
            return y

    net = nn.Sequential(Looked(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    ens = covey.convert(net, covey.DeepEnsemble(members=2))
    ens.run = "loop+channels_last"
    ens(torch.randn(4, 1, 6, 6))
    assert seen[-2:] == [True, True]


class Anneals(nn.Module):
    """Counts its calls in Python, and draws there too whether to run a block."""

    def __init__(self, random_depth: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.calls, self.random_depth = 0, random_depth

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = torch.tanh(self.first(x))
        if not self.random_depth or random.random() + np.random.rand() < 1:
            h = h + torch.tanh(self.second(h))
        return self.out(h) * min(1.0, self.calls / 8)


@pytest.mark.parametrize("training", [True, False])
def test_auto_leaves_counters_where_the_call_does(training: bool) -> None:
    x = torch.randn(5, 4)
    ens = covey.convert(Anneals(), covey.DeepEnsemble(members=3), example=x).train(training)
    plain = ens.member(1)
    for _ in range(3):
        torch.testing.assert_close(ens(x)[1], plain(x))
    assert ens.run in WAYS


def test_draws_in_python_are_each_member_s_own() -> None:
    x = torch.randn(5, 4)
    random.seed(0)
    np.random.seed(0)
    before = random.getstate(), np.random.get_state()[2]
    ens = covey.convert(Anneals(random_depth=True), covey.DeepEnsemble(members=16), example=x).train()
    assert before == (random.getstate(), np.random.get_state()[2])
    ens(x)
    assert ens.run.startswith("loop")


class Optional(nn.Module):
    """Takes another way, which vmap cannot, where it is given a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, largest: float | None = None) -> Tensor:
        h = torch.tanh(self.first(x))
        if largest is not None and h.abs().max().item() > largest:
            h = h / h.abs().max()
        return self.out(h)


def test_auto_goes_back_to_the_loop_for_inputs_that_vmap_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 4)
    ens = covey.convert(Optional(), covey.DeepEnsemble(members=3), example=x).eval()
    monkeypatch.setattr(runs, "tune", lambda *_: "batched")
    ens(x)
    outputs = ens(x, largest=0.1)
    for k in range(3):
        torch.testing.assert_close(outputs[k], ens.member(k)(x, largest=0.1))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # the network's own error, not vmap's
        ens(torch.randn(5, 5))
    ens.run = "batched"  # a user's choice stays one
    with pytest.raises(RuntimeError, match="vmap"):
        ens(x, largest=0.1)


class Asks(nn.Module):
    """Answers a little otherwise inside vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.out(torch.tanh(self.first(x)))
        return h * 1.01 if torch._C._functorch.is_batchedtensor(h) else h


def test_auto_does_not_take_a_way_that_is_off_by_one_percent() -> None:
    x = torch.randn(200, 4)
    ens = covey.convert(Asks(), covey.DeepEnsemble(members=12), example=x).eval()
    torch.testing.assert_close(ens(x)[3], ens.member(3)(x))
    assert ens.run.startswith("loop")


@pytest.mark.parametrize("way", [covey.DeepEnsemble(members=1), covey.MCDropout(members=1)])
def test_auto_measures_a_single_random_member(way: covey.Method) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3))
    x = torch.randn(2, 1, 8, 8)
    ens = covey.convert(net, way, example=x)
    for training in (True, False):
        ens.train(training)
        assert ens(x).shape == (1, 2, 3)
        assert ens.run in WAYS


class _OnlyInTraining(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, training: bool) -> Tensor:
        ctx.training = training
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        assert ctx.training, "put the network into train mode first"
        return gradient, None


class _AssertsTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(_OnlyInTraining.apply(self.first(x), self.training))


def test_auto_measures_without_a_gradient_where_eval_mode_has_none() -> None:
    """Whatever the network raises: nobody asked it for a gradient."""
    x = torch.randn(5, 4)
    ensemble = covey.convert(_AssertsTraining(), covey.DeepEnsemble(members=2), example=x).eval()
    ensemble.run = "auto"
    assert ensemble(x).shape == (2, 5, 3)
