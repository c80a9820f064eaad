"""Networks as strangers write them: what narrowing used to refuse or to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.surgery import apply_edits, narrow


class Own(nn.Module):
    """A network of named parts with a function for its forward."""

    def __init__(self, run: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.__dict__["run"] = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def conv(inputs: int, outputs: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def images() -> Tensor:
    return torch.randn(3, 3, 8, 8)


def rows() -> Tensor:
    return torch.randn(3, 6)


def _attention(net: Any, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    heads = net.config.heads
    qkv = net.qkv(net.first(x)).view(batch, length, 3, heads, net.config.widths["all"] // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return net.head(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


def _rotary(net: Any, x: Tensor) -> Tensor:
    h = net.first(x).unflatten(-1, (net.heads, -1))
    width = h.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]), torch.arange(0, width, 2) / width)[:, None]
    one, two = h[..., : width // 2], h[..., width // 2 :]
    turned = torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1)
    return net.head(turned.flatten(2))


class Standardised(nn.Conv2d):
    """A layer of a user's own that reads what PyTorch's own never does."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(weight, None, None, training=True).reshape_as(self.weight)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


def _pooled(net: Any, h: Tensor) -> Tensor:
    return net.head(h.mean((2, 3)))


def _turned(net: Any, x: Tensor) -> Tensor:
    matrix = net.turn(x.amax(2)).view(-1, 3, 3)
    return net.head(net.first(torch.bmm(matrix, x)).amax(2))


def _joined_biases(net: Any, x: Tensor) -> Tensor:
    bias = torch.cat([net.q_bias, net.k_bias, net.v_bias])
    for _ in range(
        2
    ):  # the second time through, both factors of (width)(heads - heads) = 0 are there to choose from
        qkv = F.linear(net.first(x), net.weight, bias).unflatten(-1, (3, net.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        assert q.shape[-1] == net.width // net.other_heads
        x = net.last(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
    return x


def _biases_of_positions(net: Any, x: Tensor) -> Tensor:
    scores = net.first(x) @ net.first(x).mT
    return net.head((scores + net.bias(net.coordinates).squeeze(-1)) @ net.first(x))


def _with_positions() -> nn.Module:
    bias = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    network = Own(_biases_of_positions, first=nn.Linear(6, 32), bias=bias, head=nn.Linear(32, 5))
    network.register_buffer("coordinates", torch.randn(7, 7, 2))
    return network


def _with_joined_biases() -> nn.Module:
    network = Own(_joined_biases, first=nn.Linear(6, 32), last=nn.Linear(32, 6))
    network.heads = network.other_heads = 4
    network.width = 32
    network.weight = nn.Parameter(torch.randn(96, 32))
    network.q_bias, network.v_bias = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(32))
    network.register_buffer("k_bias", torch.zeros(32))
    return network


# Each with the widths that its tensors should have at half.
WORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, tuple[int, ...]]]] = {
    "interpolate to a size": (
        lambda: Own(
            lambda net, x: net.head(F.interpolate(net.first(x), size=x.shape[-2:], mode="bilinear")),
            first=conv(3, 16, stride=2),
            head=conv(16, 5),
        ),
        images,
        {"head.weight": (5, 8, 3, 3)},
    ),
    "instance norm": (
        lambda: nn.Sequential(
            conv(3, 16), nn.InstanceNorm2d(16, affine=True), nn.InstanceNorm2d(16), conv(16, 5)
        ),
        images,
        {"1.weight": (8,)},
    ),
    "local response norm": (
        lambda: nn.Sequential(conv(3, 16), nn.LocalResponseNorm(3), conv(16, 5)),
        images,
        {"2.weight": (5, 8, 3, 3)},
    ),
    "a slope for each channel": (
        lambda: nn.Sequential(conv(3, 16), nn.PReLU(16), conv(16, 5)),
        images,
        {"1.weight": (8,)},
    ),
    "unflatten": (
        lambda: nn.Sequential(nn.Linear(6, 64), nn.Unflatten(1, (16, 2, 2)), conv(16, 5)),
        rows,
        {"0.weight": (32, 6), "2.weight": (5, 8, 3, 3)},
    ),
    "bilinear": (
        lambda: Own(
            lambda net, x: net.head(net.both(net.one(x), net.two(x))),
            one=nn.Linear(6, 16),
            two=nn.Linear(6, 32),
            both=nn.Bilinear(16, 32, 24),
            head=nn.Linear(24, 5),
        ),
        rows,
        {"both.weight": (12, 8, 16)},
    ),
    "transformer": (
        lambda: Own(
            lambda net, x: net.head(net.body(net.first(x), net.first(x))),
            first=nn.Linear(6, 32),
            body=nn.Transformer(32, 4, 1, 1, 64, batch_first=True),
            head=nn.Linear(32, 5),
        ),
        lambda: torch.randn(3, 7, 6),
        {"body.decoder.layers.0.linear1.weight": (32, 16)},
    ),
    "sizes in a config object": (
        lambda: Own(
            _attention,
            first=nn.Linear(6, 32),
            qkv=nn.Linear(32, 96),
            head=nn.Linear(32, 5),
            config=SimpleNamespace(heads=4, widths={"all": 32}),
        ),
        lambda: torch.randn(3, 7, 6),
        {"qkv.weight": (48, 16), "head.weight": (5, 16)},
    ),
    "rotary embeddings": (
        lambda: Own(_rotary, first=nn.Linear(6, 32), head=nn.Linear(32, 5), heads=4),
        lambda: torch.randn(3, 7, 6),
        {"first.weight": (16, 6)},
    ),
    "a cut at an attribute": (
        lambda: Own(
            lambda net, x: _pooled(
                net, torch.cat([net.one(x)[:, : net.part], net.two(net.one(x)[:, net.part :])], 1)
            ),
            one=conv(3, 32),
            two=conv(24, 16),
            head=nn.Linear(24, 5),
            part=8,
        ),
        images,
        {"one.weight": (16, 3, 3, 3), "two.weight": (8, 12, 3, 3), "head.weight": (5, 12)},
    ),
    "standardised weights": (
        lambda: nn.Sequential(Standardised(3, 32, 3), Standardised(32, 32, 3), conv(32, 5)),
        images,
        {"1.weight": (16, 16, 3, 3)},
    ),
    "channels as positions": (
        lambda: Own(
            lambda net, x: _pooled(
                net, net.first(x) * net.gate(net.first(x).mean((2, 3))[:, None]).mT[..., None]
            ),
            first=conv(3, 32),
            gate=nn.Conv1d(1, 1, 3, padding=1),
            head=nn.Linear(32, 5),
        ),
        images,
        {"first.weight": (16, 3, 3, 3)},
    ),
    "whole numbers stay whole": (
        lambda: Own(
            lambda net, x: net.head(net.table(x.argsort(-1).clone().contiguous().detach()).mean(1)),
            table=nn.Embedding(6, 32),
            head=nn.Linear(32, 5),
        ),
        rows,
        {"table.weight": (6, 16)},
    ),
    "biases joined for queries, keys and values": (
        _with_joined_biases,
        lambda: torch.randn(3, 7, 6),
        {"weight": (48, 16), "q_bias": (16,), "k_bias": (16,)},
    ),
    "a table of coordinates": (
        _with_positions,
        lambda: torch.randn(3, 7, 6),
        {"coordinates": (7, 7, 2), "bias.0.weight": (16, 2)},
    ),
    "a view by -1 beside equal sizes": (
        lambda: Own(
            lambda net, x: net.head(
                net.last(net.first(x).flatten(2).mT).mT.reshape(len(x), -1, *x.shape[2:]).mean((2, 3))
            ),
            first=conv(3, 8),
            last=nn.Linear(8, 8),
            head=nn.Linear(8, 5),
        ),
        images,
        {"last.weight": (4, 4)},
    ),
    "a small number in the code stays": (
        lambda: Own(_turned, turn=nn.Linear(3, 9), first=nn.Conv1d(3, 128, 1), head=nn.Linear(128, 5)),
        lambda: torch.randn(4, 3, 20),
        {"turn.weight": (9, 3), "first.weight": (64, 3, 1)},
    ),
    "the nine numbers of a rotation are no width, however small the rest": (
        lambda: Own(_turned, turn=nn.Linear(3, 9), first=nn.Conv1d(3, 8, 1), head=nn.Linear(8, 5)),
        lambda: torch.randn(4, 3, 20),
        {"turn.weight": (9, 3), "first.weight": (4, 3, 1)},
    ),
    "inputs in the order of a list": (
        lambda: Own(
            lambda net, x: net.head(net.first(x[:, net.order])),
            first=nn.Linear(6, 16),
            order=torch.tensor([5, 0, 1, 4, 3, 2]),
            head=nn.Linear(16, 5),
        ),
        lambda: torch.randn(4, 6),
        {"first.weight": (8, 6)},
    ),
    "noise beside the input": (
        lambda: Own(
            lambda net, x: net.head(net.first(torch.cat([x, torch.ones(len(x), 8)], 1))),
            first=nn.Linear(6 + 8, 16),
            head=nn.Linear(16, 5),
        ),
        rows,
        {"first.weight": (8, 14)},
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_it_narrows(name: str) -> None:
    make, example, expected = WORKS[name]
    network, x = make(), example()
    small = narrow(network, 0.5, x)
    shapes = {tensor: tuple(values.shape) for tensor, values in small.network.state_dict().items()}
    assert {tensor: shapes[tensor] for tensor in expected} == expected
    again = apply_edits(network, small.edits)
    again.load_state_dict(small.network.state_dict())
    torch.testing.assert_close(again.eval()(x), small.network.eval()(x))


def _two_steps(net: Any, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 16, *x.shape[2:])
    for _ in range(2):
        state = net.step(torch.cat([x, state], 1)).tanh()
    return _pooled(net, state)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a cut": (
        lambda: Own(lambda net, x: _pooled(net, net.one(x)[:, :4]), one=conv(3, 16), head=nn.Linear(4, 5)),
        r"'one.weight \(axis 0\)', which is cut at a fixed place.*net.one\(x\)\[:, :4\]",
    ),
    "an index": (
        lambda: Own(
            lambda net, x: _pooled(net, net.one(x) * net.one(x)[:, 3:4]),
            one=conv(3, 16),
            head=nn.Linear(16, 5),
        ),
        r"'one.weight \(axis 0\)', which is cut at a fixed place",
    ),
    "a split": (
        lambda: Own(
            lambda net, x: _pooled(net, sum(net.one(x).split(4, 1))), one=conv(3, 16), head=nn.Linear(4, 5)
        ),
        r"'one.weight \(axis 0\)', which is written as a number",
    ),
    "a state of zeros beside the input": (
        lambda: Own(_two_steps, step=conv(3 + 16, 16), head=nn.Linear(16, 5)),
        r"'step.weight \(axis 0\)', which is written as a number.*torch.cat\(\[x, state\], 1\)",
    ),
    "what must divide": (
        lambda: nn.Sequential(conv(3, 36), nn.GroupNorm(12, 36), conv(36, 5)),
        r"rounded up until groups, heads and parts divide it: it has 36 channels, should have 18, and would have 24",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_width_that_does_not_scale_is_named(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(
        ConversionError, match=rf"more parameters than one of 0.5 of the width should.*{words}"
    ):
        narrow(make(), 0.5, images())
    small = narrow(make(), 0.5, images(), tolerance=10.0).network
    assert small(images()).shape[:2] == (3, 5)


def test_an_operator_that_is_not_known_is_named() -> None:
    network = Own(
        lambda net, x: net.head(torch.kthvalue(net.one(x), 2, 1, keepdim=True).values),
        one=nn.Linear(6, 16),
        head=nn.Linear(1, 5),
    )
    with pytest.raises(
        ConversionError, match=r"does not know what aten\.kthvalue does to sizes.*torch.kthvalue"
    ):
        narrow(network, 0.5, rows())
