"""Networks that keep something, or take a way around torch: statistics, numbers, caches, inner steps, other numbers.

As in `plain_networks`, the name of the function is the name of the network, with spaces for underscores.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from catalogue import BATCH, CLASSES, Network, images, sequences, tokens, vectors
from plain_networks import listed, module
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

_FOUND: list[Network] = []
plain = functools.partial(listed, _FOUND)


# --- values that leave torch ------------------------------------------------------------------------------


@plain("convolutional", images(8))
def scaled_by_a_number_before_a_norm() -> nn.Module:
    """What the norm sees depends on the first layer by a number alone."""

    def forward(net: Any, x: Tensor) -> Tensor:
        scale = net.first(x).abs().mean().item()
        return net.head(F.relu(net.second(net.norm(x * scale))).mean((2, 3)))

    parts = dict(first=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(3, affine=False), second=nn.Conv2d(3, 8, 3))
    return module(forward, **parts, head=nn.Linear(8, CLASSES))


@plain("mlp", vectors(8))
def order_found_by_numpy() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        order = torch.from_numpy(h.detach().sum(0).numpy().argsort())
        return net.head(h[:, order] + net.second(net.norm(x)))

    parts = dict(first=nn.Linear(8, 16), norm=nn.BatchNorm1d(8), second=nn.Linear(8, 16))
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def halts_by_itself() -> nn.Module:
    """Each sample goes on until it has had enough; the last one ends it for all."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.first(x))
        left, total = torch.ones_like(h[:, :1]), torch.zeros_like(h)
        for _ in range(6):
            h = torch.tanh(net.again(h))
            share = torch.minimum(torch.sigmoid(net.halt(h)), left)
            total, left = total + share * h, left - share
            if not bool((left > 1e-3).any()):
                break
        return net.head(total + left * h)

    parts = dict(first=nn.Linear(8, 16), again=nn.Linear(16, 16), halt=nn.Linear(16, 1))
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


# --- what is kept from call to call -------------------------------------------------------------------------


@plain("mlp", vectors(8))
def mean_kept_as_a_number() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        answer = net.head(F.relu(net.first(x)))
        if net.training:
            net.mean = 0.9 * net.mean + 0.1 * float(answer.detach().abs().mean())
        return answer / (1 + net.mean)

    return module(forward, first=nn.Linear(8, 16), mean=0.0, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def statistics_by_their_data() -> nn.Module:
    """Batch norm by hand: one statistic is replaced, the other's data is."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        mean, var = net.mean, net.var
        if net.training:
            mean, var = h.mean(0), h.var(0, unbiased=False)
            net.mean = 0.9 * net.mean + 0.1 * mean.detach()
            net.var.data = 0.9 * net.var.data + 0.1 * var.detach()
        return net.head(F.relu((h - mean) / (var + 1e-5).sqrt()))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("mean", torch.zeros(16))
    net.register_buffer("var", torch.ones(16))
    return net


@plain("mlp", vectors(8))
def statistics_in_one_memory() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        if net.training:
            now = torch.stack([h.mean(0), h.square().mean(0)]).detach()
            net.both.mul_(0.9).add_(0.1 * now)
        return net.head(F.relu((h - net.mean) / (1 + net.square).sqrt()))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("both", torch.zeros(2, 16, dtype=torch.float64))
    net.register_buffer("mean", net.both[0], persistent=False)
    net.register_buffer("square", net.both[1], persistent=False)
    return net


@plain("transformer", tokens(6, 20))
def keys_kept_in_buffers() -> nn.Module:
    """Writes its keys into a table and attends to that as well, in eval mode too."""

    def forward(net: Any, words: Tensor) -> Tensor:
        h = net.table(words)
        rows, length = words.shape
        keys = net.key(h)
        net.keys[:rows, :length] = keys.detach()
        both = torch.cat([keys, net.keys[:rows, :length] / 2], -1)
        weights = (net.query(h) @ both.transpose(1, 2)).softmax(-1)
        return net.head((h + weights @ net.value(h)).mean(1))

    parts = dict(key=nn.Linear(16, 16), query=nn.Linear(16, 32), value=nn.Linear(16, 16))
    net = module(forward, table=nn.Embedding(20, 16), **parts, head=nn.Linear(16, CLASSES))
    net.register_buffer("keys", torch.zeros(4 * BATCH, 8, 16), persistent=False)
    return net


# --- modes --------------------------------------------------------------------------------------------------


class _Merging(nn.Linear):
    """Adds its low-rank update to its weight when it is put into eval mode."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs) / 4), nn.Parameter(torch.randn(outputs, 2) / 4)
        self.weight.requires_grad_(False)
        self.merged = False

    def train(self, mode: bool = True) -> _Merging:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.b.data @ self.a.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        answer = super().forward(x)
        return answer if self.merged else answer + x @ self.a.t() @ self.b.t()


@plain("mlp", vectors(8))
def updates_merged_in_eval_mode() -> nn.Module:
    return nn.Sequential(_Merging(8, 16), nn.ReLU(), _Merging(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))


@plain("convolutional", images(8))
def norm_folded_in_eval_mode() -> nn.Module:
    """In eval mode one convolution with other weights, made anew in every call."""

    def forward(net: Any, x: Tensor) -> Tensor:
        if net.training:
            return net.head(F.relu(net.norm(net.conv(x))).mean((2, 3)))
        scale = net.norm.weight / (net.norm.running_var + net.norm.eps).sqrt()
        bias = net.norm.bias + (net.conv.bias - net.norm.running_mean) * scale
        return net.head(F.relu(F.conv2d(x, net.conv.weight * scale.view(-1, 1, 1, 1), bias)).mean((2, 3)))

    return module(forward, conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8), head=nn.Linear(8, CLASSES))


# --- steps and equations inside -----------------------------------------------------------------------------


@plain("mlp", vectors(8))
def inner_step_on_weights() -> nn.Module:
    """A layer's weights take a step before they are used, as meta-learners have it."""

    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            h = net.first(x)
            loss = (net.inner(h) - h).square().mean()
            slopes = torch.autograd.grad(loss, list(net.inner.parameters()), create_graph=True)
        weight, bias = [p - 0.5 * slope for p, slope in zip(net.inner.parameters(), slopes, strict=True)]
        return net.head(F.relu(F.linear(net.first(x), weight, bias)))

    return module(forward, first=nn.Linear(8, 16), inner=nn.Linear(16, 16), head=nn.Linear(16, CLASSES))


@plain("other", vectors(8))
def newton_steps() -> nn.Module:
    """Solves an equation that its own layer is part of, sample by sample."""

    def forward(net: Any, x: Tensor) -> Tensor:
        given = net.first(x)

        def off(y: Tensor, wanted: Tensor) -> Tensor:
            return y + 0.3 * torch.tanh(net.inner(y)) - wanted

        y = torch.zeros_like(given)
        for _ in range(4):
            slopes = torch.func.vmap(torch.func.jacrev(off))(y, given)
            y = y - torch.linalg.solve(slopes, off(y, given).unsqueeze(-1)).squeeze(-1)
        return net.head(y)

    return module(forward, first=nn.Linear(8, 6), inner=nn.Linear(6, 6), head=nn.Linear(6, CLASSES))


@plain("mlp", vectors(8))
def neighbours_in_the_batch() -> nn.Module:
    """A sample's answer depends on the others of its batch."""

    def forward(net: Any, x: Tensor) -> Tensor:
        z = F.normalize(net.body(x), dim=-1)
        alone = torch.eye(len(x), dtype=torch.bool)
        near = (z @ z.t()).masked_fill(alone, -1e9).softmax(-1)
        return net.head(torch.cat([z, near @ z], -1))

    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
    return module(forward, body=body, head=nn.Linear(12, CLASSES))


# --- other numbers, other weights -----------------------------------------------------------------------------


@plain("other", vectors(8))
def complex_layers_between_real_ones() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        z = net.one(torch.fft.fft(net.first(x)))
        z = net.two(torch.complex(F.relu(z.real), F.relu(z.imag)))
        return net.head(torch.fft.ifft(z).abs())

    complex_layers = dict(
        one=nn.Linear(12, 12, dtype=torch.complex128), two=nn.Linear(12, 12, dtype=torch.complex128)
    )
    return module(forward, first=nn.Linear(8, 12), **complex_layers, head=nn.Linear(12, CLASSES))


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).t()


@plain("mlp", vectors(8))
def parametrised_twice() -> nn.Module:
    """A weight that is first normed and then made symmetric."""
    middle = nn.Linear(16, 16)
    parametrizations.weight_norm(middle)
    parametrize.register_parametrization(middle, "weight", _Symmetric())
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), middle, nn.ReLU(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def noise_of_a_generator_of_its_own() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(7), dtype=x.dtype)
        return net.head(F.relu(net.first(x + 0.1 * noise)))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(5, 8))
def lstm_with_projection() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        outputs, _ = net.lstm(x)
        return net.head(outputs[:, -1])

    return module(forward, lstm=nn.LSTM(8, 16, proj_size=6, batch_first=True), head=nn.Linear(6, CLASSES))


def networks() -> list[Network]:
    """All of them."""
    return list(_FOUND)
