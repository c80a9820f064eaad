"""MIMO's joint pass on networks that are hard for it: it answers as the members do, or conversion says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_map

import covey
from covey.errors import ConversionError
from law_networks import call

M = 3


class Tokens(nn.Module):
    """Reads the batch size off its input, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(2, 6, 2, stride=2), nn.Linear(6, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.mix = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        h = self.patch(x).reshape(batch, 6, -1).transpose(1, 2)
        h = torch.cat([self.token.expand(batch, -1, -1), h], 1)
        return self.head(self.mix(h, h, h)[0][:, 0])


class Pooled(nn.Module):
    """Its head is a convolution, behind which it normalises, pools and reads the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.head(self.stem(x).relu()))
        return h.mean((2, 3)).view(len(x), -1).log_softmax(-1)


class Standardised(nn.Conv2d):
    """Normalises its weights before it uses them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 1)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, weight=self.gain.view(-1), training=True)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias)


class Branches(nn.Module):
    """Two first layers, of which one sees the input at another size, and two heads whose answers are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(2, 6, 4, stride=4), nn.Conv2d(2, 6, 2, stride=2)
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        small = F.interpolate(x, scale_factor=0.5)
        h = torch.tanh(self.fine(x) + self.coarse(small)).mean((2, 3))
        return (self.one(h) + self.two(h.relu())) / 2


class Functional(nn.Module):
    """Uses its layers' weights without calling the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(x, self.first.weight, self.first.bias))
        return torch.addmm(self.last.bias, h, self.last.weight.t())


class Text(nn.Module):
    """Makes masks and further tokens out of the tokens' shape, and takes the answer at a place that tokens tell."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(9, 6), nn.Embedding(2, 6)
        self.before = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        previous = ids.new_zeros(ids.shape)
        previous[:, 1:] = ids[:, :-1]
        mask = torch.ones_like(ids)
        h = self.words(ids) + self.types(torch.zeros_like(ids)) + self.before(previous)
        h = (h * mask[..., None]).cumsum(1).tanh()
        last = (ids != 0).sum(1) - 1
        return self.head(h)[torch.arange(len(ids)), last]


def _hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    net[2].register_forward_hook(lambda module, args, output: output - 1)
    return net


def _first(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Flatten(), nn.Tanh(), nn.LazyLinear(4))


def _images(batch: int) -> Tensor:
    return torch.randn(batch, 2, 8, 8, dtype=torch.float64)


def _vectors(batch: int) -> Tensor:
    return torch.randn(batch, 6, dtype=torch.float64)


def _ids(batch: int) -> Tensor:
    return torch.randint(1, 9, (batch, 5))


WORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "reads the batch size": (Tokens, _images),
    "does more behind the head": (Pooled, _images),
    "has hooks": (_hooked, _vectors),
    "has several first layers and heads": (Branches, _images),
    "uses weights without calling layers": (Functional, _vectors),
    "makes tensors like its input": (Text, _ids),
    "normalises its first weights": (lambda: _first(Standardised(2, 6, 3)), _images),
    "pads by reflection": (lambda: _first(nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect")), _images),
    "begins with a transposed convolution": (lambda: _first(nn.ConvTranspose2d(2, 3, 2)), _images),
    "has weight norm": (lambda: _first(parametrizations.weight_norm(nn.Conv2d(2, 6, 3))), _images),
}


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    make, x = WORKS[name]
    net = make().double()
    call(net, x(2))
    return net, x(4)


@pytest.mark.parametrize("name", WORKS)
def test_the_joint_pass_answers_as_the_members_do(name: str) -> None:
    net, x = made(name)
    ens = covey.convert(net, covey.MIMO(members=M), example=x).eval()
    alone = call(ens, x)
    assert (alone[0] - alone[1]).abs().max() > 1e-3
    together = call(ens, tree_map(lambda t: torch.stack([t] * M), x), per_member=True)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", WORKS)
def test_every_member_sees_every_input_and_all_learn(name: str) -> None:
    net, x = made(name)
    ens = covey.convert(net, covey.MIMO(members=M), example=x).train()
    apart = tree_map(lambda t: torch.stack([t.roll(k, 0) for k in range(M)]), x)
    outputs = call(ens, apart, per_member=True)
    outputs.square().sum().backward()
    for label, parameter in ens.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.abs().sum() > 0, label
    for k in range(M):
        other = tree_map(lambda t, k=k: t.index_copy(0, torch.tensor([k]), t[[k]].flip(1)), apart)
        moved = (call(ens, other, per_member=True) - outputs).abs().flatten(1).amax(1)
        assert (moved > 1e-6).all()


def test_a_standardised_first_layer_sums_to_the_one_that_members_have() -> None:
    net, x = made("normalises its first weights")
    ens = covey.convert(net, covey.MIMO(members=M, init="copy"), example=x).eval()
    torch.testing.assert_close(ens(x), torch.stack([net.eval()(x)] * M))
    # to first order in what tells the slots apart, the pass is that of the standardised weights' differences
    weights = ens.parts["stem"].phi["0.weight"]
    with torch.no_grad():
        weights += 1e-4 * torch.randn_like(weights)
    whole = weights.sum(0)
    apart = torch.stack([x.roll(k, 0) for k in range(M)])
    joined = torch.zeros(())
    layer = ens.member(0)[0]
    for j in range(M):
        step = weights[j] - whole / M
        layer.weight = nn.Parameter(whole)
        joined = joined + layer(apart[j]) / M
        for sign in (1, -1):
            layer.weight = nn.Parameter(whole + sign * step)
            joined = joined + sign * layer(apart[j]) / 2
    rest = ens.member(0)[1:]
    torch.testing.assert_close(ens(apart, per_member=True)[0], rest(joined), rtol=1e-6, atol=1e-6)


def test_statistics_behind_the_head_are_the_members_own() -> None:
    net, x = made("does more behind the head")
    ens = covey.convert(net, covey.MIMO(members=M), example=x).train()
    apart = torch.stack([x.roll(k, 0) for k in range(M)])
    heads = ens.parts["replicated"].phi
    first = ens.parts["stem"].phi["stem.weight"]
    joined = F.conv2d(
        apart.transpose(0, 1).flatten(1, 2), torch.cat(list(first), 1), net.stem.bias, padding=1
    )
    before = ens.member(0).norm.running_mean
    ens(apart, per_member=True)
    for k in range(M):
        h = F.conv2d(joined.relu(), heads["head.weight"][k], heads["head.bias"][k])
        torch.testing.assert_close(ens.member(k).norm.running_mean, 0.9 * before + 0.1 * h.mean((0, 2, 3)))


class Masked(nn.Module):
    """Its second input goes past the first layer, as masks and edges do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x).relu() * mask))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(h.index_add(0, edges[1], h[edges[0]]))


class Sly(nn.Module):
    """Answers otherwise where its input is no plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).relu() * (1 if type(x) is Tensor else 2))


class Deciding(nn.Module):
    """Asks for a value of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x / x.max().item()))


class Cut(nn.Module):
    """Goes by the first sample's value, so that members, who have other first samples, would go other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(2, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x * (1 + int(x[0, 0]))))


class TimeFirst(nn.Module):
    """Answers (steps, batch, classes) to (batch, steps, numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x)).transpose(0, 1)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "a mask": (
        Masked,
        (torch.randn(2, 6), torch.ones(2, 1)),
        "something else with its input.*another method",
    ),
    "edges": (
        Graph,
        (torch.randn(5, 6), torch.tensor([[0, 1], [1, 2]])),
        "one row per sample.*another method",
    ),
    "rows that decide": (Cut, torch.arange(8.0).view(4, 2), r"asks for values of its input \(__int__\)"),
    "a largest norm": (
        lambda: nn.Sequential(nn.Embedding(9, 6, max_norm=0.5), nn.Flatten(), nn.Linear(30, 4)),
        torch.randint(0, 9, (2, 5)),
        "first layer changes its weights while it runs \\(max_norm\\)",
    ),
    "steps before samples": (TimeFirst, torch.randn(5, 3, 6), "samples are on another axis.*batch first"),
    "as many steps as samples": (TimeFirst, torch.randn(5, 5, 6), "samples are on another axis.*batch first"),
    "another answer": (
        Sly,
        torch.randn(2, 6),
        "not answer as the members do on the same input: member 0 answers .* alone, at \\(0, 0\\).*another method",
    ),
    "spectral norm": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 4)),
        torch.randn(2, 6),
        "first layer changes its weights while it runs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joined_is_refused_at_conversion(name: str) -> None:
    torch.manual_seed(0)
    make, example, words = REFUSED[name]
    with pytest.raises(ConversionError, match=words):
        covey.convert(make(), covey.MIMO(), example=example)


def test_values_that_decide_are_refused_when_they_differ() -> None:
    ens = covey.convert(Deciding(), covey.MIMO(members=2), example=torch.rand(3, 6))
    same = torch.rand(1, 3, 6).expand(2, -1, -1)
    assert ens(same, per_member=True).shape == (2, 3, 4)
    with pytest.raises(ConversionError, match=r"asks for values of its input \(item\)"):
        ens(torch.rand(2, 3, 6), per_member=True)


def test_an_example_that_was_given_is_not_asked_for() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    with pytest.raises(ConversionError, match="found no stem that is a linear") as error:
        covey.convert(Scale(), covey.MIMO(), example=torch.randn(2, 6))
    assert "give convert() an example" not in str(error.value)
    lstm = nn.LSTM(6, 4)
    with pytest.raises(ConversionError, match="belongs to a LSTM"):
        covey.convert(lstm, covey.MIMO(), example=torch.randn(2, 6), output=0, head="weight_hh_l0")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised inside dynamo
def test_the_joint_pass_of_a_compiled_ensemble_is_the_same() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ens = covey.convert(network, covey.MIMO(members=3), example=torch.randn(2, 4))
    x = torch.randn(3, 5, 4)
    expected = ens(x, per_member=True)
    assert torch.equal(torch.compile(ens, backend="eager")(x, per_member=True), expected)
