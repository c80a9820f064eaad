"""Members never meet: not in tensors that a network keeps in Python, nor in its inputs, nor in its chance."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import covey
from covey.errors import DataError

M = 3


class Caches(nn.Module):
    """Keeps a table made from its weights in eval mode, as some vision transformers keep attention biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.table = nn.Parameter(torch.randn(8))
        self.cache: dict[str, Tensor] = {}
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            bias = self.table * 2
        else:
            if "bias" not in self.cache:
                self.cache["bias"] = self.table * 2
            if self.kept is None:
                self.kept = self.table.sum()
            bias = self.cache["bias"] + 0 * self.kept
        self.features = self.first(x) + bias  # an activation that stays behind
        return self.out(torch.tanh(self.features))


class Overwrites(nn.Module):
    """Normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(3.0).add_(1.0)
        return self.out(torch.tanh(self.first(x)))


class Quantised(nn.Module):
    """Fake-quantised activations, as in quantisation-aware training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fake(torch.tanh(self.first(x))))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(6, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Padded(nn.Module):
    """torch's encoder, whose fast path in eval mode zeroes padded rows."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.out(self.encoder(x, src_key_padding_mask=padding))


METHODS = [covey.DeepEnsemble(members=M), covey.BatchEnsemble(members=M), covey.MultiHead(members=M)]


@pytest.mark.parametrize("run", ["loop", "batched", "auto"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("kind", [Caches, Overwrites])
def test_members_do_not_meet_in_python(kind: type[nn.Module], method: covey.Method, run: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    given = x.clone()
    ensemble = covey.convert(kind(), method, example=x)
    assert torch.equal(x, given)
    ensemble.run = run
    for mode in (False, True, False):
        ensemble.train(mode)
        outputs = ensemble(x)
        assert torch.equal(x, given)
        for k in range(M):
            plain = ensemble.member(k).train(mode)
            torch.testing.assert_close(outputs[k], plain(x.clone()))
    copy.deepcopy(ensemble)
    outputs.sum().backward()


def test_a_cache_of_the_given_network_is_not_its_members() -> None:
    torch.manual_seed(0)
    x, network = torch.randn(5, 6), Caches().eval()
    network(x)
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x).eval()
    for k in range(2):
        member = ensemble.member(k)
        expected = member.out(torch.tanh(member.first(x) + 2 * member.table))
        torch.testing.assert_close(ensemble(x)[k], expected)
    assert "bias" in network.cache, "the user's network is left alone"


def test_without_an_example_inputs_are_copied_too() -> None:
    x = torch.randn(5, 6)
    ensemble = covey.convert(Overwrites(), covey.DeepEnsemble(members=M)).eval()
    torch.testing.assert_close(ensemble(x)[2], ensemble.member(2)(x.clone()))
    apart = torch.stack([x, 2 * x, 3 * x])
    given = apart.clone()
    outputs = ensemble(apart, per_member=True)
    assert torch.equal(apart, given)
    torch.testing.assert_close(outputs[1], ensemble.member(1)(2 * x))


@pytest.mark.filterwarnings("ignore:.*")  # torch.ao warns that it will move
def test_observers_belong_to_members() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    network = Quantised()
    network(x)  # the probing pass sees the same range again
    ensemble = covey.convert(network, covey.BatchEnsemble(members=M), example=x).train()
    ensemble.run = "loop"
    plain = [ensemble.member(k).train() for k in range(M)]
    for _ in range(3):
        outputs = ensemble(x)
        for k in range(M):
            torch.testing.assert_close(outputs[k], plain[k](x))


class Watches(nn.Module):
    """Keeps the largest input and the largest activation that it saw, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("inputs", torch.ones(()))
        self.register_buffer("inner", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.mul_(0.5).add_(x.abs().max())
        h = self.first(x / self.inputs)
        self.inner.mul_(0.5).add_(h.detach().abs().max())
        return self.out(h / self.inner)


@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize("where", ["all", "out"])
def test_buffers_that_move_in_eval_mode_are_each_member_s(where: str, run: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    method = covey.Replicate(members=M, noise=0.2, where=where)
    ensemble = covey.convert(Watches(), method, example=x, check=True).eval()
    ensemble.run = run
    plain = [ensemble.member(k) for k in range(M)]
    for scale in (1, 3, 2):
        outputs = ensemble(scale * x)
        for k in range(M):
            torch.testing.assert_close(outputs[k], plain[k](scale * x))


def test_networks_that_divide_by_a_moving_buffer_train_in_a_loop() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    ensemble = covey.convert(Watches(), covey.Replicate(members=M, noise=0.2), example=x).train()
    ensemble.run = "loop"
    plain = [ensemble.member(k) for k in range(M)]
    ensemble(x).square().sum().backward()
    gradients = ensemble.parts["replicated"].phi["out.weight"].grad
    for k, network in enumerate(plain):
        network(x).square().sum().backward()
        torch.testing.assert_close(gradients[k], network.out.weight.grad)
        torch.testing.assert_close(ensemble.member(k).inner, network.inner)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_inside_recurrent_layers_is_each_member_s_own(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, 6)
    ensemble = covey.convert(Recurrent(kind), covey.MCDropout(members=6), example=x).eval()
    assert ensemble.predict(x).mutual_information.mean() > 1e-4
    assert ensemble.run == "loop"


def test_padded_rows_are_those_of_the_member() -> None:
    torch.manual_seed(0)
    x, padding = torch.randn(4, 5, 8), torch.zeros(4, 5, dtype=torch.bool)
    padding[:, 3:] = True
    ensemble = covey.convert(Padded(), covey.DeepEnsemble(members=M), example=(x, padding)).eval()
    with torch.no_grad():
        outputs = ensemble(x, padding)
        for k in range(M):
            torch.testing.assert_close(outputs[k], ensemble.member(k)(x, padding))


class Checkpointed(nn.Module):
    """Runs its blocks again in the backward pass instead of keeping their activations."""

    def __init__(self, reentrant: bool, active: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2)
        )
        self.out = nn.Linear(8, 4)
        self.reentrant, self.active = reentrant, active

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            if self.active and self.training:
                h = checkpoint(block, h, use_reentrant=self.reentrant)
            else:
                h = block(h)
        return self.out(h)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "method",
    [*METHODS, covey.Hypernetwork(members=M, linear=True, budget=9.0), covey.Packed(members=M, alpha=M)],
    ids=lambda m: type(m).__name__,
)
def test_activation_checkpointing_gives_the_same_gradients(method: covey.Method, reentrant: bool) -> None:
    x, y = torch.randn(5, 6), torch.randint(0, 4, (5,))
    gradients = []
    for active in (True, False):
        torch.manual_seed(0)
        network = Checkpointed(reentrant, active=False)
        ensemble = covey.convert(network, method, example=x).train()
        ensemble.skeleton().active = active
        ensemble.run = "loop"
        torch.manual_seed(1)
        ensemble.loss(x, y).backward()
        gradients.append([parameter.grad for parameter in ensemble.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


class Remembers(nn.Module):
    """Keeps an activation, which has a history."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.tanh(self.first(x))
        return self.out(self.last)


def _trained(prepare: Callable[[nn.Module], Any]) -> nn.Module:
    """A network after a training pass."""
    network = Remembers()
    prepare(network.first)
    network(torch.randn(5, 6)).sum().backward()
    return network


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(
    "prepare",
    [
        lambda layer: None,
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["activation", "weight norm", "spectral norm", "pruned"],
)
def test_networks_are_converted_after_a_training_pass(prepare: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    method = covey.Replicate(members=M, noise=0.2)
    ensemble = covey.convert(_trained(prepare), method, example=x).train()
    ensemble.run = "loop"
    plain = [copy.deepcopy(ensemble.member(k)) for k in range(M)]
    for _ in range(2):
        outputs = ensemble(x)
        for k in range(M):
            torch.testing.assert_close(outputs[k], plain[k](x))
    outputs.square().sum().backward()
    for k in range(M):
        plain[k](x)  # leaves a tensor with a history behind
    twin = copy.deepcopy(ensemble)
    torch.testing.assert_close(twin(x), ensemble(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("prepare", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_gradients_reach_what_a_hook_computes_from(prepare: Callable[[nn.Module], Any]) -> None:
    x = torch.randn(5, 6)
    method = covey.Replicate(members=M, noise=0.2)
    ensemble = covey.convert(_trained(prepare), method, example=x).train()
    ensemble.run = "loop"
    plain = ensemble.member(1)
    ensemble(x)[1].square().sum().backward()
    plain(x).square().sum().backward()
    stacked = ensemble.parts["replicated"].phi
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(stacked[name].grad[1], parameter.grad)


class Rescales(nn.Module):
    """Halves a weight in place in eval mode and remembers that it has, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.halved = False

    def forward(self, x: Tensor) -> Tensor:
        if self.halved == self.training:
            with torch.no_grad():
                self.first.weight.mul_(2.0 if self.training else 0.5)
            self.halved = not self.training
        return self.out(torch.tanh(self.first(x)))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("where", ["all", "out"])
def test_members_do_not_meet_in_weights_changed_in_place(where: str, gamma: float, called: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    network = Rescales()
    if called:
        network.eval()(x)
    method = covey.Replicate(members=M, noise=0.2, where=where, gamma=gamma)
    ensemble = covey.convert(network, method, example=x)
    ensemble.run = "loop"
    plain = [ensemble.member(k) for k in range(M)]
    for mode, members in ((True, None), (False, [0]), (False, None), (False, None), (True, None)):
        ensemble.train(mode)
        outputs = ensemble(x, members=members)
        for i, k in enumerate(members or range(M)):
            torch.testing.assert_close(outputs[i], plain[k].train(mode)(x))
    outputs.sum().backward()


class Limited(nn.Module):
    """An embedding that shortens its rows in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Embedding(7, 6, max_norm=0.5), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.first(x).mean(1))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_an_embedding_with_a_largest_norm_is_shortened_as_in_the_network(gamma: float) -> None:
    x = torch.randint(0, 7, (5, 3))
    ensemble = covey.convert(Limited(), covey.MultiHead(members=M, gamma=gamma), example=x).train()
    ensemble.run = "loop"
    plain = ensemble.member(1)
    outputs = ensemble(x)
    torch.testing.assert_close(outputs[1], plain(x))
    torch.testing.assert_close(ensemble.member(2).first.weight, plain.first.weight)
    outputs[1].square().sum().backward()
    plain(x).square().sum().backward()
    shared = ensemble.parts["shared"].theta["first.weight"]
    torch.testing.assert_close(shared.grad, gamma * plain.first.weight.grad)


class Memo:
    __slots__ = ("weight",)


class Memorises(nn.Module):
    """Keeps a number made of its weights in an object with slots, or under `functools.lru_cache`."""

    def __init__(self, slots: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)
        self.memo = Memo() if slots else None

    @functools.lru_cache  # noqa: B019  people do
    def cached(self) -> Tensor:
        return self.first.weight.sum()

    def factor(self) -> Tensor:
        if self.memo is None:
            return self.cached()
        if not hasattr(self.memo, "weight"):
            self.memo.weight = self.first.weight.sum()
        return self.memo.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x)) * self.factor())


@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize("slots", [True, False])
def test_members_do_not_meet_in_slots_or_cached_methods(slots: bool, run: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    ensemble = covey.convert(Memorises(slots), covey.DeepEnsemble(members=M), example=x)
    ensemble.run = run
    for mode in (True, False):
        outputs = ensemble.train(mode)(x)
        for k in range(M):
            torch.testing.assert_close(outputs[k], ensemble.member(k).train(mode)(x))
    copy.deepcopy(ensemble)


class Collects(nn.Module):
    """Registers hooks in its first call, and keeps what they saw, as transformers collects hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 4)
        self.is_hooked = False

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        if not self.is_hooked:
            for layer in (self.first, self.second):
                layer.register_forward_hook(lambda module, args, output: module.sink.append(output))
            self.is_hooked = True
        self.first.sink = self.second.sink = seen  # type: ignore[assignment]
        self.second(torch.tanh(self.first(x)))
        return self.out(torch.cat(seen, -1))


@pytest.mark.parametrize("run", ["loop", "batched"])
def test_hooks_that_a_call_registers_are_not_registered_twice(run: str) -> None:
    torch.manual_seed(0)
    network, x = Collects(), torch.randn(5, 6)
    ensemble = covey.convert(network, covey.LowRank(members=M, rank=2), example=x)
    ensemble.run = run  # type: ignore[assignment]
    for mode in (False, True):
        ensemble.train(mode)
        for _ in range(2):
            answers = ensemble(x)
    assert not network.is_hooked
    want = torch.stack([network(x)] * M)
    torch.testing.assert_close(answers, want)


@dataclass
class Graph:
    """An object that a network hands from layer to layer."""

    x: Tensor
    name: str = "a graph"


@dataclass(frozen=True)
class Frozen:
    graph: Graph


class Attributes(dict):
    """A dict whose keys are attributes too, as settings often are."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x


class HandsOn(nn.Module):
    """Sets the features of what it is given, and hands it on."""

    def __init__(self, key: str | int | None = None) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.key = key

    def forward(self, given: Any) -> Tensor:
        graph = given.graph if isinstance(given, Frozen) else given
        for layer in (self.first, self.second):
            if self.key is None:
                graph.x = torch.tanh(layer(graph.x))
            else:
                graph[self.key] = torch.tanh(layer(graph[self.key]))
        return self.out(graph.x if self.key is None else graph.pop(self.key))


GIVEN: dict[str, tuple[str | int | None, Callable[[Tensor], Any]]] = {
    "dict": ("x", lambda x: {"x": x}),
    "list": (0, lambda x: [x]),
    "dataclass": (None, Graph),
    "dataclass in a frozen one": (None, lambda x: Frozen(Graph(x))),
    "dict with attributes": (None, lambda x: Attributes(x=x)),
    "slots": (None, Slotted),
}


@pytest.mark.parametrize("run", ["loop", "batched", "auto"])
@pytest.mark.parametrize("kind", GIVEN)
def test_members_do_not_meet_in_what_they_are_given(kind: str, run: str) -> None:
    key, made = GIVEN[kind]
    x = torch.randn(5, 6)
    given = made(x)
    ensemble = covey.convert(HandsOn(key), covey.Replicate(members=M, noise=0.3), example=(given,)).eval()
    ensemble.run = run
    outputs = ensemble(given)
    for k in range(M):
        torch.testing.assert_close(outputs[k], ensemble.member(k)(made(x)))
    torch.testing.assert_close(ensemble(given), outputs)  # what the user gave is as it was


def test_objects_that_lead_back_to_themselves_stay_closed() -> None:
    given = SimpleNamespace(x=torch.randn(5, 6))
    given.owner = given
    ensemble = covey.convert(nn.Linear(6, 4), covey.Replicate(members=M), example=given.x)
    with pytest.raises(TypeError):
        ensemble(given)


def test_an_object_that_leads_back_to_itself_is_refused_where_others_of_its_kind_are_open() -> None:
    plain = Graph(torch.randn(5, 6))
    ensemble = covey.convert(HandsOn(), covey.Replicate(members=M, noise=0.3), example=(plain,))
    circle = Graph(torch.randn(5, 6))
    circle.name = circle  # type: ignore[assignment]
    with pytest.raises(DataError, match="leads back to itself"):
        ensemble.loss((circle,), torch.zeros(5, dtype=torch.long))
