"""The networks that the laws run on: small, in float64, each hard in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stranger  # noqa: F401  a method of somebody else's, under the laws like covey's own
from vision import declare_operators


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)
        )
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.body(x)).relu().mean((2, 3)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.short(x))


class ResNet(nn.Module):
    """Its auxiliary head is defined and run last, to fool whoever goes by order."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 12))
        self.fc = nn.Linear(12, 4)
        self.aux = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.blocks(self.stem(x)).mean((2, 3))
        return {"logits": self.fc(h), "aux": self.aux(h)}


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(n, 6, 3, padding=1) for n in (2, 8, 14))
        self.norms = nn.ModuleList(nn.GroupNorm(2, 6) for _ in range(3))
        self.out = nn.Conv2d(20, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.cat([x, F.relu(norm(layer(x)))], 1)
        return self.out(x)  # (B, C, H, W)


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(2, 8, 1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.grouped = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.deep(F.silu(self.expand(x))))
        return self.fc(self.grouped(F.silu(h)).mean((2, 3)))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.position
        n = self.norm1(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        h = h + self.mlp(self.norm2(h))
        return self.head(h[:, 0])


class Tied(nn.Module):
    """A language model whose decoder is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.mix = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.decoder = nn.Linear(8, 11)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(self.embedding(x).transpose(1, 2)).transpose(1, 2)
        return self.decoder(self.norm(h))  # (B, T, C)


class Twice(nn.Module):
    """One module used twice, under two names, with a norm in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.again = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.alias = self.again
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.alias(self.again(self.first(x)))
        return h, self.last(h)


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.lstm(self.embedding(x))[0]))


class Bare(nn.Module):
    """Bare parameters at the root, a scalar, an unused-in-eval buffer, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8) * 0.5)
        self.shift = nn.Parameter(torch.zeros(8))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.norm = nn.LayerNorm(8)
        self.middle = nn.Linear(8, 8, bias=False)
        self.out = nn.Parameter(torch.randn(8, 4) * 0.5)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + len(x)  # a buffer that is replaced, not changed in place
        h = torch.tanh(x @ self.weight + self.shift) * self.scale * self.frozen
        return self.middle(self.norm(h)).tanh() @ self.out


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    )


def _bert() -> nn.Module:
    declare_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=8, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


@dataclass(frozen=True)
class Law:
    """A network, how to make an input of B samples, and what convert() must be told."""

    make: Callable[[], nn.Module]
    x: Callable[[int], Any]
    drop: str  # a module to put dropout behind, for MC-dropout
    output: str | int | None = None
    has_norms: bool = True


def _images(size: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, 2, size, size, dtype=torch.float64)


def _vectors(batch: int) -> Tensor:
    return torch.randn(batch, 6, dtype=torch.float64)


def _tokens(batch: int) -> Tensor:
    return torch.randint(0, 11, (batch, 5))


NETWORKS: dict[str, Law] = {
    "mlp": Law(_mlp, _vectors, "3"),
    "convnet": Law(ConvNet, _images(8), "body.3"),
    "resnet": Law(ResNet, _images(6), "blocks.0.conv1", output="logits"),
    "densenet": Law(DenseNet, _images(5), "layers.1"),
    "depthwise": Law(Depthwise, _images(6), "deep"),
    "vit": Law(ViT, _images(8), "mlp"),
    "tied": Law(Tied, _tokens, "mix"),
    "twice": Law(Twice, _vectors, "first", output=1),
    "lstm": Law(LSTM, _tokens, "embedding"),
    "bare": Law(Bare, _vectors, "middle"),
    "bert": Law(
        _bert, lambda batch: {"input_ids": torch.randint(0, 17, (batch, 5))}, "bert.embeddings.LayerNorm"
    ),
}


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name].make().to(dtype)


def call(function: Callable, x: Any, **options: Any) -> Any:
    """Call with a tensor or a dict of keyword arguments."""
    return function(**x, **options) if isinstance(x, dict) else function(x, **options)
