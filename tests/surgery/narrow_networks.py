"""Networks whose width is an argument: narrowing one must give what building it narrow gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Squeeze(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class Residual(nn.Module):
    """Blocks with squeeze-excite, grouped and depthwise convolutions, nested in lists, with a flattening head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.ModuleList()
        for inputs, outputs in ((width, width), (width, 2 * width)):
            block = nn.ModuleDict(
                {
                    "conv1": nn.Conv2d(inputs, outputs, 3, padding=1, stride=2),
                    "grouped": nn.Conv2d(outputs, outputs, 3, padding="same", groups=4),
                    "deep": nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs),
                    "squeeze": Squeeze(outputs, outputs // 2),
                    "norm": nn.GroupNorm(4, outputs),
                    "short": nn.Conv2d(inputs, outputs, 1, stride=2, bias=False),
                }
            )
            self.stages.append(nn.ModuleList([block]))
        self.head = nn.Linear(2 * width * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            for b in stage:
                h = b["squeeze"](b["deep"](F.relu(b["grouped"](F.relu(b["conv1"](x))))))
                x = F.relu(b["norm"](h) + b["short"](x))
        return self.head(torch.flatten(x, 1))


class Dense(nn.Module):
    """Concatenations, transitions, and the raw input carried along."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + i * width, width, 3, padding=1) for i in range(3))
        self.norm = nn.BatchNorm2d(3 + 3 * width)
        self.transition = nn.Conv2d(3 + 3 * width, width, 1)
        self.last = nn.Conv2d(2 * width, width, 1)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, conv(x).relu()], dim=1)
        a = self.transition(F.avg_pool2d(self.norm(x), 2))
        x = self.last(torch.cat([a.tanh(), a.sigmoid()], 1))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class ViT(nn.Module):
    """Own attention, nn.MultiheadAttention and an encoder layer, class and register tokens, layer scale, gated MLP."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.registers = nn.Parameter(torch.randn(1, 3, width))
        self.position = nn.Parameter(torch.randn(1, 8, width))
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.layer_scale = nn.Parameter(torch.ones(width))
        self.gate, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.mha = nn.MultiheadAttention(width, heads, batch_first=True)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.registers.expand(len(x), -1, -1), x], 1)
        x = x + self.position
        x = x + self.layer_scale * self.attention(self.norm(x))
        a, b = self.gate(x).chunk(2, -1)
        x = x + self.out(F.gelu(a) * b)
        x = x + self.mha(x, x, x)[0]
        return self.head(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.cell = nn.LSTMCell(width, width)
        self.projected = nn.LSTM(width, 2 * width, proj_size=width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.gru(self.lstm(self.embedding(x))[0])
        h, _ = self.projected(h)
        return self.head(self.cell(h[:, -1])[0])


class Language(nn.Module):
    """Causal attention with shared keys, a tied decoder, a table of positions, and one norm used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.width = 4, width
        self.embedding = nn.Embedding(11, width)
        self.position = nn.Embedding(9, width)
        self.norm = nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width)
        self.decoder = nn.Linear(width, 11, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        n = self.norm(h)
        q = self.q(n).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads // 2, -1)).transpose(1, 2) for t in self.kv(n).chunk(2, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        h = h + self.o(a.transpose(1, 2).flatten(2))
        return self.decoder(self.norm(h))


class Bare(nn.Module):
    """No layers at all: parameters at the root, and a dot product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, width))
        self.shift = nn.Parameter(torch.randn(width))
        self.weights = nn.Parameter(torch.randn(width))
        self.b = nn.Parameter(torch.randn(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.a + self.shift)
        return h @ self.b + (h * self.weights).sum(-1, keepdim=True)


@dataclass(frozen=True)
class Case:
    make: Callable[[int], nn.Module]
    x: Callable[[int], Any]
    width: int = 16


def _images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 8, 8)


def _tokens(batch: int) -> Tensor:
    return torch.randint(0, 11, (batch, 7))


CASES = {
    "residual": Case(Residual, _images),
    "dense": Case(Dense, _images),
    "vit": Case(ViT, _images),
    "recurrent": Case(Recurrent, _tokens),
    "language": Case(Language, _tokens),
    "bare": Case(Bare, lambda batch: torch.randn(batch, 6)),
}
