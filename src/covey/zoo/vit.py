"""A vision transformer (Dosovitskiy et al., 2021) with class token and learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covey.errors import OptionError
from covey.zoo.check import whole
from covey.zoo.layers import dropout as dropout_layer
from covey.zoo.layers import named


class ViT(nn.Module):
    """Patches, a class token and positions through pre-norm blocks; the head reads the class token.

    Args:
        classes: outputs.
        channels: of the images.
        image_size: height and width of the images, a multiple of `patch`.
        patch: height and width of a patch.
        width: of the embedding, a multiple of `heads`.
        depth: transformer blocks.
        heads: attention heads in a block.
        dropout: probability of an activation to be zeroed in training, after positions, attention and MLP.

    Takes (B, channels, image_size, image_size), returns (B, C).
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        image_size: int,
        patch: int = 4,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_multiple("image_size", whole("image_size", image_size), "patch", whole("patch", patch))
        _check_multiple("width", whole("width", width), "heads", whole("heads", heads))
        self.stem = nn.Conv2d(whole("channels", channels), width, patch, patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (image_size // patch) ** 2, width))
        self.dropout = dropout_layer(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(whole("depth", depth))))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, whole("classes", classes))
        self._init()

    def _init(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.token, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) for images (B, channels, image_size, image_size)."""
        patches = self.stem(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), -1, -1), patches), 1) + self.positions
        return self.head(self.norm(self.blocks(self.dropout(tokens))[:, 0]))


class Block(nn.Module):
    """x + attention(norm1(x)), then x + mlp(norm2(x)) with four times as many hidden units."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = named(
            linear1=nn.Linear(width, 4 * width), gelu=nn.GELU(), linear2=nn.Linear(4 * width, width)
        )
        self.dropout = dropout_layer(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, width) for tokens (B, T, width)."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Attention(nn.Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(d)) v in each head.

    Own code because `nn.MultiheadAttention` in evaluation and `scaled_dot_product_attention` on CPUs call
    fused operators that `torch.func.vmap` has no rule for.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, width) for tokens (B, T, width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.projection((weights @ v).transpose(1, 2).flatten(2))


def _check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise OptionError(f"{name} must be a multiple of {divisor_name}, got {value} and {divisor}")
