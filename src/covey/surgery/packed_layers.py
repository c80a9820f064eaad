"""Layers for M members at once: channels of all members side by side, member after member.

Tensors are in one of three layouts: "shared" (what all members see, as the input), "side" (members side by side
on one axis, (B, M C, ...)), or "front" (members on an axis of their own in front, (M, B, C, ...)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """M linear layers as one: a block for each member, (..., M in) -> (..., M out).

    Args:
        layers: the members' layers.
        shared: whether all members read the same input (a first layer), (..., in) -> (..., M out).
    """

    def __init__(self, layers: Sequence[nn.Linear], shared: bool) -> None:
        super().__init__()
        self.members, self.shared = len(layers), shared
        self.in_features, self.out_features = layers[0].in_features, layers[0].out_features
        self.weight = _joined([layer.weight for layer in layers])
        self.bias = None if layers[0].bias is None else _joined([layer.bias for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        """Members' outputs side by side."""
        if self.shared:
            return F.linear(x, self.weight, self.bias)
        blocks = self.weight.unflatten(0, (self.members, -1))
        inputs = x.unflatten(-1, (self.members, -1)).flatten(0, -3).transpose(0, 1)
        outputs = torch.bmm(inputs, blocks.transpose(1, 2)).transpose(0, 1)
        outputs = outputs.reshape(*x.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


class PackedNorm(nn.Module):
    """M LayerNorms or RMSNorms over the last axis as one, (..., M C)."""

    def __init__(self, layers: Sequence[nn.LayerNorm | nn.RMSNorm]) -> None:
        super().__init__()
        first = layers[0]
        self.members, self.eps = len(layers), first.eps
        self.centred = isinstance(first, nn.LayerNorm)
        self.weight = None if first.weight is None else _joined([layer.weight for layer in layers])
        bias = getattr(first, "bias", None)
        self.bias = None if bias is None else _joined([layer.bias for layer in layers])  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        """Each member's channels normalised on their own."""
        parts = x.unflatten(-1, (self.members, -1))
        shape = parts.shape[-1:]
        if self.centred:
            parts = F.layer_norm(parts, shape, eps=self.eps or 1e-5)
        else:
            parts = F.rms_norm(parts, shape, eps=self.eps)
        y = parts.flatten(-2)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


class PackedAttention(nn.Module):
    """M nn.MultiheadAttention layers as one: M times the heads, and packed projections; (B, L, M C)."""

    def __init__(self, layers: Sequence[nn.MultiheadAttention]) -> None:
        super().__init__()
        first = layers[0]
        self.members, self.num_heads = len(layers), first.num_heads
        self.dropout, self.batch_first = first.dropout, first.batch_first
        width = first.embed_dim
        projections = [_projections(layer) for layer in layers]
        self.q, self.k, self.v = (
            PackedLinear([each[i] for each in projections], shared=False) for i in range(3)
        )
        self.out = PackedLinear([layer.out_proj for layer in layers], shared=False)
        self.head_dim = width // first.num_heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As nn.MultiheadAttention, without weights; masks are those that all members share."""
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        # the packed axis is (M, heads, head width): one split gives all members' heads
        q, k, v = (
            layer(t).unflatten(-1, (self.members * self.num_heads, -1)).transpose(1, 2)
            for layer, t in ((self.q, query), (self.k, key), (self.v, value))
        )
        mask = _attention_mask(attn_mask, key_padding_mask, self.members, self.num_heads, q.dtype)
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal and mask is None,
        )
        out = self.out(attended.transpose(1, 2).flatten(2))
        return (out if self.batch_first else out.transpose(0, 1)), None


class PackedEncoderLayer(nn.Module):
    """M nn.TransformerEncoderLayers as one, (B, L, M C)."""

    def __init__(self, layers: Sequence[nn.TransformerEncoderLayer]) -> None:
        super().__init__()
        first = layers[0]
        self.norm_first, self.activation = first.norm_first, first.activation
        self.self_attn = PackedAttention([layer.self_attn for layer in layers])
        self.linear1 = PackedLinear([layer.linear1 for layer in layers], shared=False)
        self.linear2 = PackedLinear([layer.linear2 for layer in layers], shared=False)
        self.norm1 = PackedNorm([layer.norm1 for layer in layers])
        self.norm2 = PackedNorm([layer.norm2 for layer in layers])
        self.drop, self.drop1, self.drop2 = (
            nn.Dropout(d.p) for d in (first.dropout, first.dropout1, first.dropout2)
        )

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As nn.TransformerEncoderLayer."""

        def attend(x: Tensor) -> Tensor:
            return self.drop1(
                self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, True, is_causal)[0]
            )

        def feed(x: Tensor) -> Tensor:
            return self.drop2(self.linear2(self.drop(self.activation(self.linear1(x)))))

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + feed(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + feed(x))


class PerMember(nn.Module):
    """Layers that have no grouped form (recurrent ones, a user's own leaf): one after another, members in front."""

    def __init__(
        self, layers: Sequence[nn.Module], mapped: Sequence[bool], keywords: dict[str, bool]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.mapped, self.keywords = list(mapped), dict(keywords)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call each member's layer on its own row of the mapped arguments and stack what it returns."""
        from torch.utils._pytree import tree_map

        answers = []
        for k, layer in enumerate(self.layers):
            given = [
                tree_map(lambda t, k=k: t[k], a) if m else a for a, m in zip(args, self.mapped, strict=True)
            ]
            named = {
                n: tree_map(lambda t, k=k: t[k], a) if self.keywords[n] else a for n, a in kwargs.items()
            }
            answers.append(layer(*given, **named))
        return tree_map(lambda *each: torch.stack(each), *answers)


class OverMembers:
    """A function that was written for one member, applied to all: members in front, by `torch.func.vmap`."""

    def __init__(
        self, function: Callable[..., Any], in_dims: tuple, names: tuple[str, ...], constants: dict
    ) -> None:
        self.function, self.in_dims, self.names, self.constants = function, in_dims, names, constants
        self.__name__ = f"over_members_{getattr(function, '__name__', 'function')}"
        self.__module__ = __name__

    def __call__(self, *args: Any) -> Any:
        """Positional arguments first, then those that have names."""
        count = len(args) - len(self.names)

        def one(*values: Any) -> Any:
            named = dict(zip(self.names, values[count:], strict=True))
            return self.function(*values[:count], **named, **self.constants)

        return torch.func.vmap(one, in_dims=self.in_dims, randomness="different")(*args)


def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Attention of all members, (M, B, heads, L, C): they count as further samples, so that fused kernels serve."""
    members = len(query)
    mask = rest[0] if rest else options.get("attn_mask")
    if mask is not None:
        return F.scaled_dot_product_attention(query, key, value, *rest, **options)
    query, key, value = (t.flatten(0, 1) for t in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, *rest, **options).unflatten(0, (members, -1))


class MemberShape:
    """The shape that a tensor has for one member."""

    def __init__(self, layout: str | int, members: int) -> None:
        self.layout, self.members = layout, members
        self.__name__, self.__module__ = "member_shape", __name__

    def __call__(self, x: Tensor) -> torch.Size:
        """(B, M C, ...) or (M, B, C, ...) -> (B, C, ...)."""
        if self.layout == "front":
            return x.shape[1:]
        sizes = list(x.shape)
        sizes[int(self.layout)] //= self.members
        return torch.Size(sizes)


def convolution(layers: Sequence[Any], shared: bool) -> nn.Module:
    """M convolutions as one grouped convolution; a first layer, whose input is shared, is dense."""
    first, members = layers[0], len(layers)
    transposed = isinstance(first, nn.modules.conv._ConvTransposeNd)
    options = {"output_padding": first.output_padding} if transposed else {}
    made = type(first)(
        first.in_channels * (1 if shared else members),
        first.out_channels * members,
        first.kernel_size,
        first.stride,
        first.padding,
        groups=first.groups if shared else first.groups * members,
        bias=first.bias is not None,
        dilation=first.dilation,
        padding_mode=first.padding_mode,
        device=first.weight.device,
        dtype=first.weight.dtype,
        **options,
    )
    with torch.no_grad():
        if transposed and shared:
            made.weight.copy_(torch.cat([layer.weight for layer in layers], 1))
        else:
            made.weight.copy_(torch.cat([layer.weight for layer in layers]))
        if first.bias is not None:
            made.bias.copy_(torch.cat([layer.bias for layer in layers]))
    return made


def norm(layers: Sequence[Any]) -> nn.Module:
    """M BatchNorms, InstanceNorms or GroupNorms as one over M times the channels."""
    first, members = layers[0], len(layers)
    where: dict[str, Any] = {"device": _device(first), "dtype": _dtype(first)}
    if isinstance(first, nn.GroupNorm):
        made: nn.Module = nn.GroupNorm(
            first.num_groups * members, first.num_channels * members, first.eps, first.affine, **where
        )
    else:
        made = type(first)(
            first.num_features * members,
            first.eps,
            first.momentum,
            first.affine,
            first.track_running_stats,
            **where,
        )
    state = [layer.state_dict() for layer in layers]
    with torch.no_grad():
        for name, tensor in made.state_dict().items():
            tensor.copy_(torch.cat([s[name] for s in state]) if tensor.dim() else state[0][name])
    return made


def embedding(layers: Sequence[nn.Embedding]) -> nn.Embedding:
    """M embeddings as one of M times the width."""
    first = layers[0]
    weight = torch.cat([layer.weight.detach() for layer in layers], 1)
    return nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=first.padding_idx)


def _joined(tensors: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([t.detach() for t in tensors]), tensors[0].requires_grad)


def _projections(layer: nn.MultiheadAttention) -> list[nn.Linear]:
    if layer._qkv_same_embed_dim:
        weights = list(layer.in_proj_weight.chunk(3))
    else:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    biases = [None] * 3 if layer.in_proj_bias is None else list(layer.in_proj_bias.chunk(3))
    made = []
    for weight, bias in zip(weights, biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device, weight.dtype)
        with torch.no_grad():
            linear.weight.copy_(weight)
            if bias is not None:
                linear.bias.copy_(bias)
        made.append(linear)
    return made


def _attention_mask(
    mask: Tensor | None, padding: Tensor | None, members: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Masks of nn.MultiheadAttention (True hides) as what is added to scores, (B or 1, M heads or 1, L, S)."""

    def added(t: Tensor) -> Tensor:
        if t.dtype != torch.bool:
            return t
        return torch.zeros_like(t, dtype=dtype).masked_fill(t, float("-inf"))

    total = None
    if mask is not None:
        total = added(mask)
        if mask.dim() == 3:  # (B heads, L, S)
            total = total.unflatten(0, (-1, heads)).repeat(1, members, 1, 1)
    if padding is not None:
        hidden = added(padding)[:, None, None, :]
        total = hidden if total is None else total + hidden
    return total


def _device(module: nn.Module) -> torch.device | None:
    return next((t.device for t in module.state_dict().values()), None)


def _dtype(module: nn.Module) -> torch.dtype | None:
    return next((t.dtype for t in module.state_dict().values() if t.is_floating_point()), None)
