"""Networks that are found out at conversion, each with what to do about it."""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import ConversionError


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def scripted(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit and torch.ao say that they will go
        return make()


class Distributed(nn.parallel.DistributedDataParallel):
    """Without the processes that torch's own asks for."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)


def sharded() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    class Sharded(FullyShardedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.layer = mlp()

    return Sharded()


WRAPPED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "data parallel": (lambda: nn.DataParallel(mlp()), r"network is wrapped.*`.module`"),
    "distributed": (lambda: Distributed(mlp()), r"network is wrapped.*`.module`"),
    "part": (lambda: nn.Sequential(nn.DataParallel(mlp())), r"part '0' is wrapped"),
    "scripted": (lambda: scripted(lambda: torch.jit.script(mlp())), "torch.jit.*Python network"),
    "traced": (lambda: scripted(lambda: torch.jit.trace(mlp(), torch.ones(2, 4))), "torch.jit"),
    "compiled": (lambda: torch.compile(mlp(), backend="eager"), r"torch.compile.*`._orig_mod`"),
    "sharded": (sharded, "FSDP.*before it is sharded"),
    "quantised": (lambda: scripted(quantised), "part '0' is quantised.*before"),
}


@pytest.mark.parametrize("make", WRAPPED)
def test_wrapped_networks_are_refused(make: str) -> None:
    network, words = WRAPPED[make]
    with pytest.raises(ConversionError, match=words):
        covey.convert(network(), covey.Replicate(members=2))


class Holds(nn.Module):
    """Keeps something where torch does not see it."""

    def __init__(self, hold: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        self.thing = hold(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.first(x))


class Slotted:
    __slots__ = ("weight",)

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(6))


def closing_over(value: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * value


HELD: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "list": (lambda _: [nn.Parameter(torch.ones(6))], r"'thing\[0\]'.*nn.ParameterList"),
    "dict": (lambda _: {"a": [torch.ones(6, requires_grad=True)]}, r"thing\['a'\]\[0\]"),
    "object": (lambda _: Slotted(), r"'thing.weight'.*nn.ParameterList"),
    "function": (lambda _: closing_over(nn.Parameter(torch.ones(6))), "'thing'.*nn.Parameter"),
    "partial": (lambda _: functools.partial(torch.mul, nn.Parameter(torch.ones(6))), "'thing'.*nn.Parameter"),
    "modules": (lambda _: [nn.Linear(6, 6)], r"'thing\[0\]'.*'weight'.*nn.ModuleList"),
    "own layer": (lambda net: closing_over(net.first), "reference in 'thing'.*network itself"),
    "own tensor": (lambda net: closing_over(net.first.weight), "reference in 'thing'.*network itself"),
}


@pytest.mark.parametrize("place", HELD)
def test_parameters_that_torch_does_not_see_are_refused(place: str) -> None:
    hold, words = HELD[place]
    with pytest.raises(ConversionError, match=words):
        covey.convert(Holds(hold), covey.Replicate(members=2))


@pytest.mark.parametrize(
    "hold",
    [
        lambda net: [net.first, net.first.weight],  # its own, under a second name
        lambda net: net.first.forward,  # a method goes along with a copy
        lambda _: [nn.Linear(6, 6).requires_grad_(False)],  # a frozen teacher
        lambda _: closing_over(torch.ones(6)),
        lambda net: net,
    ],
)
def test_what_is_held_on_purpose_is_not(hold: Callable[[nn.Module], Any]) -> None:
    network = nn.Sequential(nn.Linear(4, 4), Holds(lambda _: None))
    network[1].__dict__["thing"] = hold(network[1])
    ensemble = covey.convert(network, covey.Replicate(members=2, noise=0.1), example=torch.randn(2, 4))
    assert ensemble(torch.randn(2, 4)).shape == (2, 2, 3)


def test_hooks_that_lead_back_to_the_network_are_refused() -> None:
    network = mlp()
    network[1].register_forward_hook(lambda module, args, output: output + network[0].bias)
    with pytest.raises(ConversionError, match="reference in '1._forward_hooks'.*network itself"):
        covey.convert(network, covey.Replicate(members=2))


class Child(nn.Module):
    """Borrows a layer of its parent's, whom it knows by a weak reference."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x: Tensor) -> Tensor:
        return self.parent()[0](x)


def test_weak_references_to_the_network_are_refused() -> None:
    network = mlp()
    network.append(Child(network))
    with pytest.raises(ConversionError, match=r"weak reference in '3.parent'.*ordinary reference"):
        covey.convert(network, covey.Replicate(members=2))
    network[3].parent = weakref.ref(nn.Linear(4, 4))  # nobody is there any more
    covey.convert(network, covey.Replicate(members=2))
    covey.convert(nn.LSTM(4, 4), covey.Replicate(members=2))  # which has some of torch's own


def test_tensors_that_share_memory_are_refused_unless_they_are_one_parameter() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    network[2].weight.data = network[0].weight.data
    with pytest.raises(ConversionError, match=r"'0.weight' and '2.weight' share memory.*without .data"):
        covey.convert(network, covey.Replicate(members=2))
    network[2].weight = network[0].weight
    covey.convert(network, covey.Replicate(members=2))
    table = torch.randn(8, 4)
    network[0].weight, network[2].weight = (nn.Parameter(part) for part in table.t().chunk(2, 1))
    network.register_buffer("place", torch.arange(6.0))
    network.register_buffer("places", network.place[:3])
    covey.convert(network, covey.Replicate(members=2))


class Transposed(nn.Module):
    """Keeps its weight once more, the other way round: the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6, bias=False), nn.Linear(4, 3)
        self.back = self.first.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x)) @ self.back.t())


def test_a_weight_that_is_kept_beside_its_parameter_is_refused() -> None:
    with pytest.raises(ConversionError, match=r"keeps 'back'.*the parameter 'first.weight'.*property"):
        covey.convert(Transposed(), covey.DeepEnsemble(members=2), example=torch.randn(5, 4))


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_of_parameters_are_refused(register: str) -> None:
    network = mlp()
    getattr(network[0].weight, register)(lambda gradient: None)
    with pytest.raises(
        ConversionError, match=r"'0.weight' has a hook on its gradient.*ensemble's parameters"
    ):
        covey.convert(network, covey.Replicate(members=2))


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor, members: int = 0, **more: Any) -> Tensor:
        return self.out(x)


def test_arguments_that_an_ensemble_takes_for_itself_are_refused() -> None:
    with pytest.raises(ConversionError, match="argument called 'members'.*Rename"):
        covey.convert(Takes(), covey.Replicate(members=2))
    network = nn.Linear(4, 3)
    network.forward = lambda **inputs: torch.nn.functional.linear(inputs["x"], torch.ones(3, 4))
    with pytest.raises(ConversionError, match="argument called 'check'"):
        covey.convert(network, covey.Replicate(members=2), example={"x": torch.ones(2, 4), "check": True})


class Averages(nn.Module):
    """Keeps a running mean in a plain tensor, or, as it should, in a buffer."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        if buffer:
            self.register_buffer("mean", torch.zeros(6))
        else:
            self.mean = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.out(h - self.mean)


def test_tensors_changed_in_place_must_be_buffers() -> None:
    x = torch.randn(5, 4)
    method = covey.Replicate(members=3, noise=0.2)
    with pytest.raises(ConversionError, match="'mean' in place.*register_buffer"):
        covey.convert(Averages(buffer=False), method, example=x)
    ensemble = covey.convert(Averages(buffer=True), method, example=x).train()
    ensemble.run = "loop"
    plain = [ensemble.member(k) for k in range(3)]
    for _ in range(2):
        outputs = ensemble(x)
        for k in range(3):
            torch.testing.assert_close(outputs[k], plain[k](x))


def test_a_network_that_cannot_be_copied_says_so() -> None:
    network = mlp()
    network.stream = (number for number in range(3))
    with pytest.raises(ConversionError, match="cannot be copied.*generator"):
        covey.convert(network, covey.Replicate(members=2))


def test_sparse_buffers_are_refused_and_sparse_constants_are_not() -> None:
    network = Holds(lambda _: None)
    network.register_buffer("edges", torch.eye(6).to_sparse_coo())
    with pytest.raises(ConversionError, match=r"'edges' is a sparse tensor.*plain attribute"):
        covey.convert(network, covey.Replicate(members=2))
    network = Holds(lambda _: torch.eye(6).to_sparse_coo())
    network.forward = types.MethodType(
        lambda net, x: net.out(torch.sparse.mm(net.thing, net.first(x))), network
    )
    x = torch.randn(6, 4)
    ensemble = covey.convert(network, covey.Replicate(members=2, noise=0.1), example=x)
    torch.testing.assert_close(ensemble(x)[1], ensemble.member(1)(x))


class FirstBatch(nn.Module):
    """Makes a buffer of its first batch, or sets a parameter by it."""

    def __init__(self, makes: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        self.shift, self.makes = nn.Parameter(torch.ones(6)), makes
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.makes and not hasattr(self, "scale"):
            self.register_buffer("scale", x.detach().abs().mean(0))
        h = self.first(x)
        if not self.makes and self.training and not self.is_set:
            self.shift.data.copy_(-h.detach().mean(0))
            self.is_set.fill_(True)
        return self.out(h + self.shift)


@pytest.mark.parametrize(
    ("makes", "words"), [(True, "makes 'scale'"), (False, "sets its parameter 'shift'.*in train mode")]
)
def test_a_network_that_waits_for_its_first_batch_is_refused_until_it_had_it(makes: bool, words: str) -> None:
    network, x = FirstBatch(makes), torch.randn(5, 4)
    with pytest.raises(ConversionError, match=f"{words}.*before converting|{words}.*Call it once"):
        covey.convert(network, covey.Replicate(members=2), example=x)
    network(x)
    ensemble = covey.convert(network, covey.Replicate(members=2, noise=0.1), example=x)
    assert ensemble.checked.startswith("checked in eval and train mode")
