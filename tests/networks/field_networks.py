"""Networks as their fields write them: tables, time series, retrieval, speech, molecules, images of the last few years.

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

_FOUND: list[Network] = []
plain = functools.partial(listed, _FOUND)


# what is added to the input, or multiplied by it, is as wide as the input
_CROSSED = tuple((f"crosses.{k}.weight", (8, 8)) for k in range(2))
_CROSSED += tuple((f"crosses.{k}.bias", (8,)) for k in range(2))
_CROSSED += (("head.weight", (CLASSES, 16)),)
_PASTS = tuple((f"blocks.{k}.past.weight", (12, 8)) for k in range(3))
_PASTS += tuple((f"blocks.{k}.past.bias", (12,)) for k in range(3))
_PASTS += tuple((f"blocks.{k}.body.0.weight", (8, 12)) for k in range(1, 3))
_BESIDE = (("norm.weight", (8,)), ("norm.bias", (8,)), ("down.weight", (8, 8)), ("down.bias", (8,)))
_BESIDE += (("head.weight", (CLASSES, 8)),)


# --- tables -----------------------------------------------------------------------------------------------


@plain("mlp", vectors(8), narrow=_CROSSED)
def cross_network() -> nn.Module:
    """Deep and cross: each layer multiplies the input by a learned map of the last layer."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = x
        for cross in net.crosses:
            h = x * cross(h) + h
        return net.head(torch.cat([h, net.deep(x)], 1))

    return module(
        forward,
        crosses=nn.ModuleList(nn.Linear(8, 8) for _ in range(2)),
        deep=nn.Sequential(nn.Linear(8, 16), nn.ReLU()),
        head=nn.Linear(24, CLASSES),
    )


def _fields() -> Tensor:
    return torch.randint(0, 6, (BATCH, 4))


@plain("other", _fields)
def factorisation_machine() -> nn.Module:
    """The pairwise products of embeddings by the difference of squares, beside a deep part."""

    def forward(net: Any, fields: Tensor) -> Tensor:
        found = net.embedding(fields + net.offsets)
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1))
        return net.head(torch.cat([pairs, net.deep(found.flatten(1))], 1))

    net = module(
        forward,
        embedding=nn.Embedding(24, 8),
        deep=nn.Sequential(nn.Linear(32, 16), nn.ReLU()),
        head=nn.Linear(24, CLASSES),
    )
    net.register_buffer("offsets", 6 * torch.arange(4))
    return net


class _Gated(nn.Module):
    """A gated residual network with a skip, as temporal fusion transformers have it."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.gate, self.skip = nn.Linear(hidden, 2 * hidden), nn.Linear(inputs, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(F.elu(self.first(x)))
        return self.norm(self.skip(x) + F.glu(self.gate(h), dim=-1))


@plain("mlp", vectors(8))
def chosen_variables() -> nn.Module:
    """A network for each variable, weighed by a softmax over all of them."""

    def forward(net: Any, x: Tensor) -> Tensor:
        each = torch.stack([one(x[:, i : i + 1]) for i, one in enumerate(net.each)], 1)
        weights = net.choice(x).softmax(-1)
        return net.head((weights[..., None] * each).sum(1))

    return module(
        forward,
        each=nn.ModuleList(_Gated(1, 8) for _ in range(8)),
        choice=_Gated(8, 8),
        head=nn.Linear(8, CLASSES),
    )


class _OneToken(nn.Module):
    """Numbers as tokens: a weight and a bias of their own for each, behind a token for the class."""

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width))
        self.bias = nn.Parameter(torch.randn(numbers, width))
        self.first = nn.Parameter(torch.randn(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        found = x[..., None] * self.weight + self.bias
        return torch.cat([self.first.expand(len(x), -1, -1), found], 1)


@plain("transformer", vectors(6))
def numbers_as_tokens() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.body(net.tokens(x))[:, 0])

    return module(
        forward,
        tokens=_OneToken(6, 16),
        body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        head=nn.Sequential(nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, CLASSES)),
    )


# --- time series ------------------------------------------------------------------------------------------


class _Block(nn.Module):
    """A part of N-BEATS: what it explains of the past, and what it says of the future."""

    def __init__(self, length: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(length, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.past, self.future = nn.Linear(hidden, length), nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.past(h), self.future(h)


@plain("mlp", vectors(12), narrow=_PASTS)
def residuals_of_the_past() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        forecast = x.new_zeros(len(x), CLASSES)
        for block in net.blocks:
            past, future = block(x)
            x, forecast = x - past, forecast + future
        return forecast

    return module(forward, blocks=nn.ModuleList(_Block(12, 16) for _ in range(3)))


@plain("mlp", sequences(12, 3))
def trend_and_season() -> nn.Module:
    """A moving average and what is left, each with a linear map over time."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        ends = torch.cat([x[..., :1].expand(-1, -1, 2), x, x[..., -1:].expand(-1, -1, 2)], -1)
        trend = F.avg_pool1d(ends, 5, 1)
        return net.head((net.trend(trend) + net.season(x - trend)).flatten(1))

    return module(forward, trend=nn.Linear(12, 8), season=nn.Linear(12, 8), head=nn.Linear(24, CLASSES))


@plain("transformer", sequences(16, 3))
def patches_of_a_series() -> nn.Module:
    """Each channel on its own: scaled by its mean and deviation, cut into patches that overlap."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(net: Any, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        patches = ((x - mean) / std).unfold(-1, 8, 4)
        batch, channels = patches.shape[:2]
        h = net.body(net.embed(patches).flatten(0, 1) + net.places)
        return net.head(h.reshape(batch, channels, -1).mean(1))

    return module(
        forward,
        embed=nn.Linear(8, 16),
        places=nn.Parameter(torch.randn(3, 16)),
        body=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        head=nn.Linear(48, CLASSES),
    )


@plain("convolutional", sequences(16, 3))
def periods_by_spectrum() -> nn.Module:
    """A series as an image of its strongest frequency's periods."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        share = torch.fft.rfft(h, dim=1).abs().mean((0, 2))
        period = 16 // (1 + int(share[1:5].argmax()))
        period = max(1, 16 // max(1, 16 // period))
        rows = 16 // period
        image = h[:, : rows * period].reshape(len(h), rows, period, 8).permute(0, 3, 1, 2)
        return net.head(net.conv(image).mean((2, 3)))

    return module(
        forward, first=nn.Linear(3, 8), conv=nn.Conv2d(8, 8, 3, padding=1), head=nn.Linear(8, CLASSES)
    )


# --- retrieval, speech, text ------------------------------------------------------------------------------


class _Margin(nn.Module):
    """A head of cosines with a learned scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, width))
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


@plain("convolutional", images(8))
def head_of_cosines() -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.PReLU(8), nn.Conv2d(8, 16, 3), nn.PReLU(16)
    )

    def forward(net: Any, x: Tensor) -> Tensor:
        pooled = net.body(x).clamp_min(1e-3).pow(net.power).mean((2, 3)).pow(1 / net.power)
        return net.head(net.neck(pooled))

    return module(
        forward,
        body=body,
        power=nn.Parameter(torch.tensor(3.0)),
        neck=nn.BatchNorm1d(16),
        head=_Margin(16),
    )


@plain("convolutional", images(8), narrow=(("head.weight", (CLASSES, 8)),))
def places_gathered_by_centres() -> nn.Module:
    """NetVLAD: differences from learned centres, weighed by a softmax over them."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.normalize(net.body(x), dim=1)
        weights = net.assign(h).flatten(2).softmax(1)
        found = weights @ h.flatten(2).transpose(1, 2) - weights.sum(-1, keepdim=True) * net.centres
        return net.head(F.normalize(found, dim=2).flatten(1))

    return module(
        forward,
        body=nn.Conv2d(3, 8, 3),
        assign=nn.Conv2d(8, 4, 1),
        centres=nn.Parameter(torch.randn(4, 8)),
        head=nn.Linear(32, CLASSES),
    )


@plain("convolutional", lambda: torch.randn(BATCH, 1, 64))
def speech_by_statistics() -> nn.Module:
    """Dilated convolutions, squeeze and excite, and the mean and deviation that attention weighs."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.frames(x)
        h = h * net.squeeze(h.mean(-1, keepdim=True)).sigmoid()
        weights = net.attention(h).softmax(-1)
        mean = (weights * h).sum(-1)
        deviation = ((weights * h.square()).sum(-1) - mean.square()).clamp_min(1e-6).sqrt()
        return net.head(torch.cat([mean, deviation], 1))

    frames = nn.Sequential(
        nn.Conv1d(1, 8, 5, stride=2), nn.ReLU(), nn.BatchNorm1d(8), nn.Conv1d(8, 8, 3, dilation=2), nn.ReLU()
    )
    return module(
        forward,
        frames=frames,
        squeeze=nn.Sequential(nn.Conv1d(8, 4, 1), nn.ReLU(), nn.Conv1d(4, 8, 1)),
        attention=nn.Sequential(nn.Conv1d(8, 4, 1), nn.Tanh(), nn.Conv1d(4, 8, 1)),
        head=nn.Linear(16, CLASSES),
    )


class _Rotary(nn.Module):
    """Attention with turned queries and fewer keys than queries; its table of angles grows with the length."""

    def __init__(self, width: int, heads: int, keys: int) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, keys * self.size, bias=False)
        self.v = nn.Linear(width, keys * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def turned(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rates = 100.0 ** -(torch.arange(half, dtype=x.dtype, device=x.device) / half)
        angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * rates
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.keys, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.keys, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class _RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@plain("transformer", tokens(7, 20))
def rotary_attention_with_few_keys() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        h = net.embedding(words)
        h = h + net.attention(net.norm1(h))
        gate, value = net.up(net.norm2(h)).chunk(2, -1)
        h = h + net.down(F.silu(gate) * value)
        return net.head(net.norm3(h)[:, -1])

    return module(
        forward,
        embedding=nn.Embedding(20, 32),
        attention=_Rotary(32, 8, 4),
        norm1=_RootMeanSquare(32),
        norm2=_RootMeanSquare(32),
        norm3=_RootMeanSquare(32),
        up=nn.Linear(32, 96, bias=False),
        down=nn.Linear(48, 32, bias=False),
        head=nn.Linear(32, CLASSES),
    )


@plain("transformer", tokens(6, 20))
def distances_as_biases() -> nn.Module:
    """Attention by einsum whose scores fall with the distance, each head at its own rate."""

    def forward(net: Any, words: Tensor) -> Tensor:
        h = net.embedding(words)
        q, k, v = net.project(h).unflatten(-1, (3, 4, -1)).unbind(2)
        places = torch.arange(words.shape[1], device=words.device)
        distance = (places[:, None] - places).abs().to(h.dtype)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = scores - net.slopes[:, None, None] * distance
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        return net.head((h + net.out(mixed)).mean(1))

    net = module(
        forward,
        embedding=nn.Embedding(20, 16),
        project=nn.Linear(16, 48),
        out=nn.Linear(16, 16),
        head=nn.Linear(16, CLASSES),
    )
    net.register_buffer("slopes", 2.0 ** -torch.arange(1.0, 5.0))
    return net


@plain("recurrent", sequences(6, 8))
def selective_scan() -> nn.Module:
    """A state space whose step, input and output are functions of the input; a loop over time."""

    def forward(net: Any, x: Tensor) -> Tensor:
        u, gate = net.enter(x).chunk(2, -1)
        u = F.silu(net.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step = F.softplus(net.step(u))
        b, c = net.inputs(u), net.outputs(u)
        rates = -net.log_rates.exp()
        state = u.new_zeros(len(u), u.shape[-1], rates.shape[-1])
        found = []
        for t in range(x.shape[1]):
            decay = torch.exp(step[:, t, :, None] * rates)
            state = decay * state + (step[:, t] * u[:, t])[..., None] * b[:, t, None]
            found.append((state * c[:, t, None]).sum(-1))
        return net.head((torch.stack(found, 1) * F.silu(gate)).mean(1))

    return module(
        forward,
        enter=nn.Linear(8, 32),
        conv=nn.Conv1d(16, 16, 3, padding=2, groups=16),
        step=nn.Linear(16, 16),
        inputs=nn.Linear(16, 4),
        outputs=nn.Linear(16, 4),
        log_rates=nn.Parameter(torch.rand(16, 4)),
        head=nn.Linear(16, CLASSES),
    )


@plain("mlp", sequences(6, 8), unscaled=(6,), narrow=_BESIDE)
def spatial_gating() -> nn.Module:
    """gMLP: half of the channels gate the other half after a map over places."""

    def forward(net: Any, x: Tensor) -> Tensor:
        u, v = F.gelu(net.up(net.norm(x))).chunk(2, -1)
        v = net.places(net.gate_norm(v).transpose(1, 2)).transpose(1, 2)
        return net.head((x + net.down(u * v)).mean(1))

    return module(
        forward,
        norm=nn.LayerNorm(8),
        up=nn.Linear(8, 32),
        gate_norm=nn.LayerNorm(16),
        places=nn.Linear(6, 6),
        down=nn.Linear(16, 8),
        head=nn.Linear(8, CLASSES),
    )


# --- images -----------------------------------------------------------------------------------------------


class _TwoBranches(nn.Module):
    """A 3 x 3 and a 1 x 1 convolution and the input itself, each with a norm, summed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.large, self.small = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleDict({name: nn.BatchNorm2d(width) for name in ("large", "small", "same")})

    def forward(self, x: Tensor) -> Tensor:
        branches = {"large": self.large(x), "small": self.small(x), "same": x}
        return F.relu(sum(self.norms[name](branch) for name, branch in branches.items()))


@plain("convolutional", images(8))
def branches_that_will_be_folded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        _TwoBranches(8),
        _TwoBranches(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class _Involution(nn.Module):
    """A kernel for each place, made from its features and shared by a group's channels."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.reduce, self.span = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, 9 * groups, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, h, w = x.shape
        kernel = self.span(F.relu(self.reduce(x))).view(batch, self.groups, 1, 9, h, w)
        patches = F.unfold(x, 3, padding=1).view(batch, self.groups, width // self.groups, 9, h, w)
        return (kernel * patches).sum(3).view(batch, width, h, w)


@plain("convolutional", images(6))
def kernels_from_features() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        _Involution(8, 2),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


@plain("convolutional", images(8))
def coordinates_as_channels() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        rows = torch.linspace(-1, 1, height, dtype=x.dtype, device=x.device)[:, None].expand(height, width)
        columns = torch.linspace(-1, 1, width, dtype=x.dtype, device=x.device).expand(height, width)
        places = torch.stack([rows, columns]).expand(len(x), -1, -1, -1)
        h = F.relu(net.first(torch.cat([x, places], 1)))
        return net.head(F.relu(net.second(h)).amax((2, 3)))

    return module(
        forward,
        first=nn.Conv2d(5, 8, 3, padding=1, padding_mode="reflect"),
        second=nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        head=nn.Linear(8, CLASSES),
    )


@plain("convolutional", images(9))
def pyramid_of_features() -> nn.Module:
    """Sizes that do not divide: what comes down is brought to the size of what comes across."""

    def forward(net: Any, x: Tensor) -> Tensor:
        fine = F.relu(net.one(x))
        middle = F.relu(net.two(fine))
        coarse = F.relu(net.three(middle))
        top = net.side3(coarse)
        below = net.side2(middle) + F.interpolate(top, size=middle.shape[-2:], mode="nearest")
        last = net.side1(fine) + F.interpolate(
            below, size=fine.shape[-2:], mode="bilinear", align_corners=False
        )
        pooled = [level.mean((2, 3)) for level in (last, below, top)]
        return net.head(torch.cat(pooled, 1))

    return module(
        forward,
        one=nn.Conv2d(3, 8, 3, padding=1),
        two=nn.Conv2d(8, 16, 3, stride=2, padding=1),
        three=nn.Conv2d(16, 16, 3, stride=2, padding=1),
        side1=nn.Conv2d(8, 8, 1),
        side2=nn.Conv2d(16, 8, 1),
        side3=nn.Conv2d(16, 8, 1),
        head=nn.Linear(24, CLASSES),
    )


@plain("convolutional", images(8))
def fixed_blur_before_striding() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        kernel = net.blur.expand(h.shape[1], 1, 3, 3)
        h = F.conv2d(F.pad(h, (1, 1, 1, 1), mode="replicate"), kernel, stride=2, groups=h.shape[1])
        return net.head(F.relu(net.second(h)).flatten(2).mean(-1))

    net = module(forward, first=nn.Conv2d(3, 8, 3), second=nn.Conv2d(8, 8, 3), head=nn.Linear(8, CLASSES))
    row = torch.tensor([1.0, 2.0, 1.0]) / 4
    net.register_buffer("blur", (row[:, None] * row)[None, None])
    return net


@plain("convolutional", lambda: {"image": torch.randn(BATCH, 3, 8, 8), "condition": torch.randn(BATCH, 4)})
def scaled_and_shifted_by_a_condition() -> nn.Module:
    def forward(net: Any, image: Tensor, condition: Tensor) -> Tensor:
        h = net.norm(net.first(image))
        scale, shift = net.film(condition).unsqueeze(-1).unsqueeze(-1).chunk(2, dim=1)
        return net.head(F.relu((1 + scale) * h + shift).mean((2, 3)))

    return module(
        forward,
        first=nn.Conv2d(3, 8, 3),
        norm=nn.GroupNorm(2, 8, affine=False),
        film=nn.Linear(4, 16),
        head=nn.Linear(8, CLASSES),
    )


@plain("recurrent", lambda: torch.randn(BATCH, 3, 2, 6, 6))
def convolutional_memory() -> nn.Module:
    """A convolutional LSTM over frames."""

    def forward(net: Any, frames: Tensor) -> Tensor:
        batch, length, _, height, width = frames.shape
        h = c = frames.new_zeros(batch, 8, height, width)
        for t in range(length):
            i, f, o, g = net.gates(torch.cat([frames[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return net.head(h.mean((2, 3)))

    return module(forward, gates=nn.Conv2d(10, 32, 3, padding=1), head=nn.Linear(8, CLASSES))


# --- molecules --------------------------------------------------------------------------------------------


def _atoms() -> dict[str, Tensor]:
    return {"kinds": torch.randint(0, 5, (BATCH, 6)), "places": torch.randn(BATCH, 6, 3)}


@plain("other", _atoms)
def filters_of_distances() -> nn.Module:
    """SchNet: atoms exchange features that are weighed by a function of their distance."""

    def forward(net: Any, kinds: Tensor, places: Tensor) -> Tensor:
        distance = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-6).sqrt()
        bases = torch.exp(-4 * (distance[..., None] - net.centres).square())
        h = net.embedding(kinds)
        for mix, weigh in zip(net.mixes, net.filters, strict=True):
            weights = weigh(bases) * (distance < 2.5)[..., None]
            h = h + mix((weights * h[:, None]).sum(2))
        return net.head(h).sum(1)

    net = module(
        forward,
        embedding=nn.Embedding(5, 16),
        mixes=nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Softplus()) for _ in range(2)),
        filters=nn.ModuleList(
            nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 16)) for _ in range(2)
        ),
        head=nn.Linear(16, CLASSES),
    )
    net.register_buffer("centres", torch.linspace(0, 3, 6))
    return net


@plain("other", _atoms)
def places_that_move_with_features() -> nn.Module:
    """Equivariant: messages move the places, and only distances enter the features."""

    def forward(net: Any, kinds: Tensor, places: Tensor) -> Tensor:
        h = net.embedding(kinds)
        for _ in range(2):
            apart = places[:, :, None] - places[:, None]
            squares = apart.square().sum(-1, keepdim=True)
            pairs = torch.cat(
                [h[:, :, None].expand(-1, -1, 6, -1), h[:, None].expand(-1, 6, -1, -1), squares], -1
            )
            messages = F.silu(net.message(pairs))
            places = places + (apart * net.move(messages)).mean(2)
            h = h + net.update(torch.cat([h, messages.sum(2)], -1))
        return net.head(h.mean(1))

    return module(
        forward,
        embedding=nn.Embedding(5, 8),
        message=nn.Linear(17, 16),
        move=nn.Linear(16, 1),
        update=nn.Linear(24, 8),
        head=nn.Linear(8, CLASSES),
    )


# --- of several fields --------------------------------------------------------------------------------------


class _Neighbourhoods(nn.Module):
    """Centres far from each other, each with the features of the points around it."""

    def __init__(self, centres: int, near: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.centres, self.near = centres, near
        self.mlp = nn.Sequential(nn.Conv2d(inputs + 3, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, places: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(places))
        distance = torch.full(places.shape[:2], 1e10, dtype=places.dtype)
        furthest, chosen = torch.zeros(len(places), dtype=torch.long), []
        for _ in range(self.centres):
            chosen.append(furthest)
            apart = (places - places[rows, furthest].unsqueeze(1)).square().sum(-1)
            distance = torch.minimum(distance, apart)
            furthest = distance.argmax(-1)
        centres = places[rows[:, None], torch.stack(chosen, 1)]
        near = torch.cdist(centres, places).topk(self.near, largest=False).indices
        around = places[rows[:, None, None], near] - centres.unsqueeze(2)
        grouped = torch.cat([around, features[rows[:, None, None], near]], -1)
        return centres, self.mlp(grouped.permute(0, 3, 1, 2)).amax(-1).transpose(1, 2)


_POINTS = (("first.mlp.0.weight", (8, 7, 1, 1)), ("second.mlp.0.weight", (8, 11, 1, 1)))


@plain("other", lambda: (torch.randn(BATCH, 10, 3), torch.randn(BATCH, 10, 4)), narrow=_POINTS)
def points_around_centres() -> nn.Module:
    def forward(net: Any, places: Tensor, features: Tensor) -> Tensor:
        _, features = net.second(*net.first(places, features))
        return net.head(features.amax(1))

    parts = dict(first=_Neighbourhoods(6, 3, 4, 16), second=_Neighbourhoods(3, 2, 16, 16))
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("transformer", sequences(6, 8))
def retention() -> nn.Module:
    """Attention without a softmax, which forgets by its distance, each head at its own rate."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        batch, length, width = h.shape
        q, k, v = (layer(h).view(batch, length, 4, -1).transpose(1, 2) for layer in net.qkv)
        steps = torch.arange(length)
        kept = (net.rates[:, None, None] ** (steps[:, None] - steps).clamp(min=0)).tril()
        y = ((q @ k.transpose(-1, -2)) * kept) @ v
        y = net.norm(y.transpose(1, 2).reshape(-1, width)).view(batch, length, width)
        return net.head((h + net.out(F.silu(net.gate(h)) * y))[:, -1])

    qkv = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))
    parts = dict(first=nn.Linear(8, 16), qkv=qkv, gate=nn.Linear(16, 16), out=nn.Linear(16, 16))
    net = module(forward, **parts, norm=nn.GroupNorm(4, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("rates", 1 - torch.exp2(-5.0 - torch.arange(4)))
    return net


class _Gate(nn.Module):
    """Lets through of a map what a coarser one points at."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(fine, fine // 2, 1), nn.Conv2d(coarse, fine // 2, 1)
        self.weigh = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(fine // 2, 1, 1), nn.Sigmoid())

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        up = F.interpolate(self.coarse(coarse), size=fine.shape[2:], mode="bilinear", align_corners=False)
        return fine * self.weigh(self.fine(fine) + up)


def _normed(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


@plain("convolutional", images(16))
def unet_with_gates_of_attention() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        fine = net.fine(x)
        coarse = net.coarse(F.max_pool2d(fine, 2))
        both = torch.cat([net.gate(fine, coarse), F.interpolate(coarse, scale_factor=2.0)], 1)
        return net.head(net.up(both))

    parts = dict(fine=_normed(3, 8), coarse=_normed(8, 16), gate=_Gate(8, 16), up=_normed(24, 8))
    return module(forward, **parts, head=nn.Conv2d(8, CLASSES, 1))


@plain("mlp", sequences(5, 8))
def experts_that_add_to_rows() -> nn.Module:
    """Each token goes to two of four experts, whose answers are added to its row."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        rows = net.norm(h).flatten(0, 1)
        weights, chosen = net.gate(rows).softmax(-1).topk(2)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(net.experts):
            row, place = torch.where(chosen == number)
            mixed.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return net.head((h + mixed.view_as(h)).mean(1))

    experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
    parts = dict(first=nn.Linear(8, 16), norm=nn.LayerNorm(16), gate=nn.Linear(16, 4), experts=experts)
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


def networks() -> list[Network]:
    """All of them."""
    return _FOUND
