"""Habits that let members meet, or answer otherwise than their networks, without a word."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey.errors import ConversionError


class Averages(nn.Module):
    """Keeps a mean of what it saw as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.mean = nn.Linear(4, 8), nn.Linear(8, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * float(h.mean())
        return self.head(F.relu(h - self.mean))


def test_members_that_begin_as_copies_are_seen_to_meet() -> None:
    with pytest.raises(ConversionError, match=r"number 'mean'.*register_buffer"):
        covey.convert(Averages(), covey.Replicate(members=3), example=torch.randn(5, 4))


class Particular(nn.Module):
    """Takes no weights but small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.first.weight.abs().max() > 0.01:
            raise ValueError("too large")
        return self.head(F.relu(self.first(x)))


def test_members_that_do_not_run_are_refused() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ConversionError, match=r"member\(0\) does not: ValueError: too large"):
        covey.convert(Particular(), covey.DeepEnsemble(members=2), example=x)
    ens = covey.convert(Particular(), covey.Replicate(members=2), example=x)
    assert ens.checked.startswith("not checked: the network takes no other weights")


class Scales(nn.Module):
    """Scales the input of a norm by a number that its first layer says."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(4, affine=False)
        self.head, self.way = nn.Linear(4, 3), way

    def forward(self, x: Tensor) -> Tensor:
        loud = self.first(x).abs().mean(0).detach()
        if self.way == "numpy":
            scale = torch.from_numpy(loud.numpy().copy()).sum()
        else:
            scale = loud.sum().item() if self.way == "item" else sum(loud.tolist())
        return self.head(self.norm(x * scale))


@pytest.mark.parametrize("way", ["item", "list", "numpy"])
def test_statistics_behind_values_that_went_through_python_are_members_own(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Scales(way), covey.Replicate(members=3, noise=0.5), example=x).train()
    ens.run = "loop"
    plain = [ens.member(k).train() for k in range(3)]
    for batch in (x, x + 1):
        ens(batch)
        for k, network in enumerate(plain):
            network(batch)
            torch.testing.assert_close(ens.member(k).norm.running_mean, network.norm.running_mean)


class Follows(nn.Module):
    """A mean that follows its batches, kept in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.head, self.way = nn.Linear(4, 8), nn.Linear(8, 3), way
        self.calls = 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        if self.training:
            self.follow(0.5 * self.mean + 0.5 * h.mean(0).detach())
        return self.head(h - self.mean)

    def follow(self, new: Tensor) -> None:
        self.calls += 1
        if self.way == "data":
            self.mean.data = new
        elif self.way == "later" and self.calls > 9:
            self.mean.copy_(new)
        elif self.way == "another later" and self.calls > 9:
            self.mean = new


@pytest.mark.parametrize("gradients", [True, False])
def test_a_buffer_s_data_may_be_replaced(gradients: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Follows("data"), covey.Replicate(members=3, noise=0.5), example=x).train()
    plain = [ens.member(k).train() for k in range(3)]
    with torch.set_grad_enabled(gradients):
        for batch in (x, x + 1):
            outputs = ens(batch)
            for k, network in enumerate(plain):
                torch.testing.assert_close(outputs[k], network(batch))
                torch.testing.assert_close(ens.member(k).mean, network.mean)


class Rows(nn.Module):
    """Two statistics that are the rows of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("both", torch.zeros(2, 8))
        self.register_buffer("mean", self.both[0])
        self.register_buffer("square", self.both[1])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.both.mul_(0.9).add_(0.1 * torch.stack([h.mean(0), h.square().mean(0)]).detach())
        return self.head((h - self.mean) / (1 + self.square))


def test_buffers_that_follow_each_other_in_one_memory_are_refused() -> None:
    with pytest.raises(ConversionError, match="'both' and 'mean' share memory"):
        covey.convert(Rows(), covey.Replicate(members=2), example=torch.randn(6, 4))


@pytest.mark.parametrize("run", ["loop", "batched", "auto"])
@pytest.mark.parametrize("way", ["later", "another later"])
def test_a_buffer_that_changes_for_the_first_time_is_not_shared_in_silence(way: str, run: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Follows(way), covey.Replicate(members=3, noise=0.5), example=x).train()
    ens.run = run
    # torch's own words where it is changed in place for all members at once
    words = "possible" if (way, run) == ("later", "batched") else r"buffer 'mean'.*self.mean.add_\(0\)"
    with pytest.raises((ConversionError, RuntimeError), match=words):
        _call_often(ens, x)


def _call_often(ens: covey.Ensemble, x: Tensor) -> None:
    for _ in range(12):
        ens(x)


class Merging(nn.Linear):
    """Adds its update to its weight in eval mode, as layers of low-rank adaptation do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.update, self.merged = nn.Parameter(torch.randn(outputs, inputs)), False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += self.update.data * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight if self.merged else self.weight + self.update, self.bias)


class Folding(nn.Module):
    """Makes a table of its weights when it is put into eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.folded: Tensor | None = None

    def train(self, mode: bool = True) -> Folding:
        super().train(mode)
        self.folded = None if mode else (self.first.weight * self.norm.weight[:, None]).detach()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)) if self.folded is None else F.linear(x, self.folded))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [lambda: nn.Sequential(Merging(4, 8), nn.ReLU(), nn.Linear(8, 3)), Folding])
def test_networks_that_compute_when_their_mode_changes_are_refused(make: Any, training: bool) -> None:
    network, x = make().train(training), torch.randn(6, 4)
    before = network(x) if not training else None
    with pytest.raises(ConversionError, match=r"train\(\) of .* computes with .*merge_weights=False"):
        covey.convert(network, covey.Replicate(members=2), example=x)
    if before is not None:
        assert torch.equal(network(x), before)


class Adapts(nn.Module):
    """Takes a step on a layer's weights before it uses them, as meta-learners do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            h = self.first(x)
            loss = (self.inner(h) - h).square().mean()
            slopes = torch.autograd.grad(loss, list(self.inner.parameters()), create_graph=True)
        weight, bias = [p - 0.5 * slope for p, slope in zip(self.inner.parameters(), slopes, strict=True)]
        return self.head(F.relu(F.linear(self.first(x), weight, bias)))


@pytest.mark.parametrize(
    "method", [covey.Replicate(members=2), covey.BatchEnsemble(members=2), covey.LowRank(members=2, rank=2)]
)
def test_gradients_of_weights_may_be_taken_inside(method: covey.Method) -> None:
    x = torch.randn(6, 4)
    ens = covey.convert(Adapts(), method, example=x)
    assert ens.checked.startswith("checked in eval and train mode")
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(ens(x)[1], ens.member(1)(x))


class Seeded(nn.Module):
    """Draws the same noise in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
        return self.head(F.relu(self.first(x + noise)))


def test_a_generator_of_the_network_s_own_is_not_asked_for_all_members_at_once() -> None:
    x = torch.randn(6, 4)
    ens = covey.convert(Seeded(), covey.Replicate(members=2, noise=0.5), example=x).eval()
    torch.testing.assert_close(ens(x)[1], ens.member(1)(x))
    ens.run = "batched"
    with pytest.raises(ConversionError, match="generator of its own"):
        ens(x)


class Slow(nn.Module):
    """Copies a layer in the forward pass, to use it without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        slow = copy.deepcopy(self.first).requires_grad_(False)
        return self.head(F.relu(self.first(x)) + slow(x))


def test_a_layer_that_is_copied_in_the_forward_pass_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConversionError, match=r"copies a layer.*functional_call"):
        covey.convert(Slow(), covey.Replicate(members=2), example=torch.randn(6, 4))


class Detached(nn.Module):
    """Two of its layers are used and learn nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.query = nn.Linear(4, 8), nn.Linear(8, 8)
        self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        return self.head(self.query(h) + self.one(h).detach() * self.two(h).detach())


def test_templates_of_layers_that_learn_nothing_are_no_fault() -> None:
    ens = covey.convert(Detached(), covey.ShapeShifter(members=2), example=torch.randn(6, 4))
    assert ens.checked.startswith("checked in eval and train mode")


class WithLoss(nn.Module):
    """Gives the loss as well where it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None, reduction: str = "mean") -> dict[str, Any]:
        logits = self.head(F.relu(self.first(x)))
        loss = None if labels is None else F.cross_entropy(logits, labels, reduction=reduction)
        return {"logits": logits, "loss": loss}


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_networks_that_give_their_loss_can_be_narrowed(reduction: str) -> None:
    example = {"x": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 0, 1, 2]), "reduction": reduction}
    ens = covey.convert(WithLoss(), covey.Packed(members=2, alpha=1), example=example, output="logits")
    member = ens.member(0)
    assert member.first.weight.shape == (4, 4)
    assert member.head.weight.shape == (3, 4)


class Classy(nn.Module):
    """Asks its weights for their class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = [p for p in self.first._parameters.values() if isinstance(p, nn.Parameter)]
        return self.head(F.relu(F.linear(x, *weights)))


def test_what_does_not_run_as_an_ensemble_is_refused_by_mimo_too() -> None:
    with pytest.raises(ConversionError, match="not as an ensemble"):
        covey.convert(Classy(), covey.MIMO(members=2), example=torch.randn(6, 4))


class Rarely(Follows):
    """Writes its mean in place in one of nine calls."""

    def follow(self, new: Tensor) -> None:
        self.calls += 1
        if self.calls % 9 == 0:
            self.mean.mul_(0).add_(new)


@pytest.mark.parametrize("method", [covey.Replicate(members=3, noise=0.5), covey.BatchEnsemble(members=3)])
def test_a_call_that_fails_batched_is_not_counted(method: covey.Method) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Rarely(""), method, example=x).train()
    ens.run, ens.measured = "batched", {"train": []}  # as "auto" leaves it
    with pytest.raises(ConversionError, match="buffer 'mean'"):
        _call_often(ens, x)


@pytest.mark.parametrize("method", [covey.Replicate(members=3, noise=0.5), covey.BatchEnsemble(members=3)])
def test_measuring_raises_nothing_of_vmap_s(method: covey.Method) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Rarely(""), method, example=x).train()
    with pytest.raises(ConversionError, match="buffer 'mean'"):
        _call_often(ens, x)


class Clips(nn.Module):
    """Clips its weights in place before it uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.first.weight.clamp_(-0.1, 0.1)
        return self.head(F.relu(self.first(x)))


def test_weights_that_are_changed_in_place_are_spoken_of() -> None:
    x = torch.randn(6, 4)
    ens = covey.convert(Clips(), covey.Replicate(members=2), example=x)
    assert "changes 'first.weight' in place" in ens.checked
    assert "in place" not in covey.convert(Detached(), covey.Replicate(members=2), example=x).checked


class Restarts(nn.Module):
    """Codes of which one that nobody uses any more starts again from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("codes", torch.randn(8, 3))
        self.register_buffer("use", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        near = torch.cdist(h, self.codes).argmin(-1)
        if self.training:
            self.use.mul_(0.5).add_(0.5 * F.one_hot(near, 8).sum(0))
            idle = self.use < 0.05
            if idle.any():
                self.codes[idle] = h[:1].detach()
                self.use[idle] = 1.0
        return self.head(h + (self.codes[near] - h).detach())


def test_buffers_beside_those_that_change_are_members_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ens = covey.convert(Restarts(), covey.Replicate(members=3, noise=0.5), example=x).train()
    plain = [ens.member(k).train() for k in range(3)]
    for _ in range(8):
        outputs = ens(x)
        for k, network in enumerate(plain):
            torch.testing.assert_close(outputs[k], network(x))
    assert not torch.equal(plain[0].codes, plain[1].codes)
