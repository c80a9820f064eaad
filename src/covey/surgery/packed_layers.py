"""Layers for M members at once, with the channels of all members side by side, member after member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.surgery.packed_functions import row, stacked
from covey.surgery.torch_internals import (
    has_joint_projection,
    map_leaves,
    transposed_convolution_class,
)


def _parts(layers: Sequence[Any], name: str) -> list[Any]:
    """The same layer or tensor of each member's layer."""
    return [getattr(layer, name) for layer in layers]


def _joined(layers: Sequence[Any], name: str) -> nn.Parameter | None:
    """The layers' parameters of this name, one after another on the first axis; None if the layers have none."""
    first = getattr(layers[0], name, None)
    if first is None:
        return None
    values = torch.cat(_parts(layers, name))
    return nn.Parameter(values.detach(), first.requires_grad)


class PackedLinear(nn.Module):
    """M linear layers as one: a block for each member, (..., M in) -> (..., M out).

    Args:
        layers: the members' layers.
        shared: whether all members read the same input (a first layer), (..., in) -> (..., M out).
    """

    def __init__(self, layers: Sequence[nn.Linear], shared: bool) -> None:
        super().__init__()
        self.members = len(layers)
        self.shared = shared
        self.in_features = layers[0].in_features
        self.out_features = layers[0].out_features
        self.weight: Any = _joined(layers, "weight")
        self.bias = _joined(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """Members' outputs side by side."""
        if self.shared:
            return F.linear(x, self.weight, self.bias)
        # (M, samples, in) times (M, in, out): one product for all members
        blocks = self.weight.unflatten(0, (self.members, -1)).transpose(1, 2)
        inputs = x.unflatten(-1, (self.members, -1))
        inputs = inputs.flatten(0, -3).transpose(0, 1)
        outputs = torch.bmm(inputs, blocks).transpose(0, 1)
        outputs = outputs.reshape(*x.shape[:-1], -1)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs


class PackedNorm(nn.Module):
    """M LayerNorms or RMSNorms over the last axis as one, (..., M C)."""

    def __init__(self, layers: Sequence[nn.LayerNorm | nn.RMSNorm]) -> None:
        super().__init__()
        self.members = len(layers)
        self.eps = layers[0].eps
        self.centred = isinstance(layers[0], nn.LayerNorm)
        self.weight = _joined(layers, "weight")
        self.bias = _joined(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """Each member's channels normalised on their own."""
        parts = x.unflatten(-1, (self.members, -1))
        shape = parts.shape[-1:]
        if self.centred:
            parts = F.layer_norm(parts, shape, eps=self.eps or 1e-5)
        else:
            parts = F.rms_norm(parts, shape, eps=self.eps)
        y = parts.flatten(-2)
        if self.weight is not None:
            y = y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y


# --- attention ---------------------------------------------------------------------------------------------------


class PackedAttention(nn.Module):
    """M nn.MultiheadAttention layers as one: M times the heads, and packed projections; (B, L, M C)."""

    def __init__(self, layers: Sequence[nn.MultiheadAttention]) -> None:
        super().__init__()
        first = layers[0]
        self.members = len(layers)
        self.num_heads = first.num_heads
        self.head_dim = first.embed_dim // first.num_heads
        self.dropout = first.dropout
        self.batch_first = first.batch_first
        projections = map(_projections, layers)
        queries, keys, values = zip(*projections, strict=True)
        self.q = PackedLinear(queries, shared=False)
        self.k = PackedLinear(keys, shared=False)
        self.v = PackedLinear(values, shared=False)
        self.out = PackedLinear(_parts(layers, "out_proj"), shared=False)

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
            query = query.transpose(0, 1)
            key = key.transpose(0, 1)
            value = value.transpose(0, 1)
        q = self._heads(self.q(query))
        k = self._heads(self.k(key))
        v = self._heads(self.v(value))
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
        if not self.batch_first:
            out = out.transpose(0, 1)
        return out, None

    def _heads(self, x: Tensor) -> Tensor:
        """(B, L, M C) -> (B, M heads, L, head width): the last axis is (M, heads, head width) already."""
        heads = self.members * self.num_heads
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _projections(layer: nn.MultiheadAttention) -> list[nn.Linear]:
    """The projections of queries, keys and values as three linear layers."""
    if has_joint_projection(layer):
        weights = list(layer.in_proj_weight.chunk(3))
    else:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    biases: list[Tensor | None] = [None, None, None]
    if layer.in_proj_bias is not None:
        biases = list(layer.in_proj_bias.chunk(3))
    made = []
    for weight, bias in zip(weights, biases, strict=True):
        outputs, inputs = weight.shape
        linear = nn.Linear(
            inputs,
            outputs,
            bias=bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            linear.weight.copy_(weight)
            if bias is not None:
                linear.bias.copy_(bias)
        made.append(linear)
    return made


def _attention_mask(
    mask: Tensor | None,
    padding: Tensor | None,
    members: int,
    heads: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Masks of nn.MultiheadAttention (True hides) as what is added to scores, (B or 1, M heads or 1, L, S)."""
    total = None
    if mask is not None:
        total = _added_to_scores(mask, dtype)
        if mask.dim() == 3:  # (B heads, L, S)
            total = total.unflatten(0, (-1, heads))
            total = total.repeat(1, members, 1, 1)
    if padding is not None:
        hidden = _added_to_scores(padding, dtype)[:, None, None, :]
        total = hidden if total is None else total + hidden
    return total


def _added_to_scores(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


class PackedEncoderLayer(nn.Module):
    """M nn.TransformerEncoderLayers as one, (B, L, M C)."""

    def __init__(self, layers: Sequence[nn.TransformerEncoderLayer]) -> None:
        super().__init__()
        first = layers[0]
        self.norm_first = first.norm_first
        self.activation = first.activation
        self.self_attn = PackedAttention(_parts(layers, "self_attn"))
        self.linear1 = PackedLinear(_parts(layers, "linear1"), shared=False)
        self.linear2 = PackedLinear(_parts(layers, "linear2"), shared=False)
        self.norm1 = PackedNorm(_parts(layers, "norm1"))
        self.norm2 = PackedNorm(_parts(layers, "norm2"))
        self.drop = nn.Dropout(first.dropout.p)
        self.drop1 = nn.Dropout(first.dropout1.p)
        self.drop2 = nn.Dropout(first.dropout2.p)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As nn.TransformerEncoderLayer."""
        masks = (src_key_padding_mask, src_mask, is_causal)
        if self.norm_first:
            attended = self._attend(self.norm1(src), *masks)
            x = src + attended
            return x + self._feed(self.norm2(x))
        attended = self._attend(src, *masks)
        x = self.norm1(src + attended)
        return self.norm2(x + self._feed(x))

    def _attend(
        self,
        x: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        attended, _ = self.self_attn(
            x,
            x,
            x,
            key_padding_mask=padding,
            need_weights=False,
            attn_mask=mask,
            is_causal=is_causal,
        )
        return self.drop1(attended)

    def _feed(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.activation(self.linear1(x)))
        return self.drop2(self.linear2(hidden))


# --- layers without a grouped form -------------------------------------------------------------------------------


class PerMember(nn.Module):
    """Layers that have no grouped form (recurrent ones, a user's own leaf): one after another, members in front.

    Args:
        layers: the members' layers.
        mapped: for each positional argument whether it has members in front, or all members share it.
        keywords: the same for arguments by keyword.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        mapped: Sequence[bool],
        keywords: dict[str, bool],
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.mapped = list(mapped)
        self.keywords = dict(keywords)

    @property
    def call(self) -> tuple:
        """How it is called."""
        return self.mapped, self.keywords

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call each member's layer on its own row of the mapped arguments and stack what it returns."""
        answers = []
        for k, layer in enumerate(self.layers):
            given = []
            for value, is_mapped in zip(args, self.mapped, strict=True):
                given.append(row(value, k) if is_mapped else value)
            named = {}
            for name, value in kwargs.items():
                named[name] = row(value, k) if self.keywords[name] else value
            answers.append(layer(*given, **named))
        return map_leaves(stacked, *answers)


# --- plain layers with more channels -----------------------------------------------------------------------------


@torch.no_grad()
def convolution(layers: Sequence[Any], shared: bool) -> nn.Module:
    """M convolutions as one grouped convolution; a first layer, whose input is shared, is dense."""
    first = layers[0]
    members = len(layers)
    is_transposed = isinstance(first, transposed_convolution_class())
    options = {"output_padding": first.output_padding} if is_transposed else {}
    made = type(first)(
        first.in_channels if shared else first.in_channels * members,
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
    # Outputs are the second axis of a transposed convolution's weight; groups are always in the first.
    axis = 1 if is_transposed and shared else 0
    made.weight.copy_(torch.cat(_parts(layers, "weight"), axis))
    if first.bias is not None:
        made.bias.copy_(torch.cat(_parts(layers, "bias")))
    return made


@torch.no_grad()
def norm(layers: Sequence[Any]) -> nn.Module:
    """M BatchNorms, InstanceNorms or GroupNorms as one over M times the channels."""
    made = _wider_norm(layers[0], len(layers))
    for name, tensor in made.state_dict().items():
        if tensor.dim():
            tensor.copy_(torch.cat(_parts(layers, name)))
        else:  # the number of batches that were seen
            tensor.copy_(getattr(layers[0], name))
    return made


def _wider_norm(first: Any, members: int) -> nn.Module:
    where: dict[str, Any] = {}
    for tensor in first.state_dict().values():
        where.setdefault("device", tensor.device)
        if tensor.is_floating_point():
            where.setdefault("dtype", tensor.dtype)
    if isinstance(first, nn.GroupNorm):
        return nn.GroupNorm(
            first.num_groups * members,
            first.num_channels * members,
            first.eps,
            first.affine,
            **where,
        )
    return type(first)(
        first.num_features * members,
        first.eps,
        first.momentum,
        first.affine,
        first.track_running_stats,
        **where,
    )


def embedding(layers: Sequence[nn.Embedding]) -> nn.Embedding:
    """M embeddings as one of M times the width."""
    weight = torch.cat(_parts(layers, "weight"), 1)
    return nn.Embedding.from_pretrained(
        weight.detach(),
        freeze=False,
        padding_idx=layers[0].padding_idx,
    )
