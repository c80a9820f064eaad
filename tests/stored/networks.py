"""The networks and data of the stored fixtures, by name: what `covey.load` and a resumed run must be given.

The fixtures hold no code, so these definitions belong to them and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def steady() -> None:
    """Make numbers repeat bit for bit: one thread, and each function of torch's vector library called once before.

    A process's first threaded call of one of these can be slightly off.
    """
    torch.set_num_threads(1)
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(torch.ones(1))


class Blocks(nn.Module):
    """Convolutions with norms and shortcuts, of any width and depth."""

    def __init__(self, width: int, blocks: int, channels: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * blocks))
        self.mix = nn.Conv2d(width, width + 2, 1)
        self.head = nn.Linear(width + 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x)).relu()
        return self.head(self.mix(x).mean((2, 3)))


class Auxiliary(nn.Module):
    """Answers with a dict, and has an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 3)
        self.aux = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.relu(self.norm(self.stem(x)))
        h = F.relu(self.conv(h) + h).mean((2, 3))
        return {"logits": self.fc(h), "aux": self.aux(h)}


class Twice(nn.Module):
    """One module used twice under two names; answers with a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.again = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.alias = self.again
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.alias(self.again(self.first(x)))
        return h, self.last(h)


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
        return self.decoder(self.norm(h))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.out = nn.Linear(6, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(x))[0])


class Transformer(nn.Module):
    """A small vision transformer, with bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.position
        n = self.norm1(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        h = h + self.mlp(self.norm2(h))
        return self.head(h[:, 0])


class Map(nn.Module):
    """Answers for every pixel, classes on axis 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.out = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.conv(x))))


class Frozen(nn.Module):
    """Bare parameters at the root, one of them a scalar and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8) * 0.5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.tanh(x @ self.weight) * self.scale * self.frozen))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def _mlp_of(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def _normed(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def _convnet(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3),
    )  # fmt: skip


def _pointwise() -> nn.Module:
    """Wide enough at half its width for two groups of 64 channels, small since its kernels are."""
    return nn.Sequential(
        nn.Conv2d(2, 256, 1), nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 256, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 3),
    )  # fmt: skip


def _two_groups() -> nn.Module:
    """Two pairs of layers of one shape each, and a first layer that stands alone."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 1), nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(6, 6, 1, bias=False), nn.ReLU(),
        nn.Conv2d(6, 6, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


_BUILDERS: dict[str, Callable[[], nn.Module | list[nn.Module]]] = {
    "mlp": _mlp,
    "mlp-double": lambda: _mlp().double(),
    "number": lambda: _mlp_of(1),
    "gaussian": lambda: _mlp_of(2),
    "normed": _normed,
    "dropout": lambda: _normed(0.3),
    "convnet": _convnet,
    "convnet-narrow": lambda: _convnet(4),
    "pointwise": _pointwise,
    "two-groups": _two_groups,
    "blocks": lambda: Blocks(6, 2),
    "shapes": lambda: [Blocks(6, 2), Blocks(4, 1), Blocks(9, 1)],
    "widths": lambda: [Blocks(4, 1), Blocks(8, 1), Blocks(6, 1)],
    "auxiliary": Auxiliary,
    "twice": Twice,
    "tied": Tied,
    "lstm": LSTM,
    "transformer": Transformer,
    "map": Map,
    "frozen": Frozen,
}


def build(name: str | None) -> nn.Module | list[nn.Module] | None:
    """A network by name, or several, initialised the same every time; None stays None, for covey.zoo's networks."""
    if name is None:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _BUILDERS[name]()
