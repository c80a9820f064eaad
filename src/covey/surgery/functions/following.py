"""Follows sizes through the functions that a network calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from covey.surgery.functions.given import arange, as_other, chunk, repeat_interleave
from covey.surgery.functions.layers import (
    bilinear,
    convolution,
    fold,
    linear,
    pad,
    transposed_convolution,
    unfold,
)
from covey.surgery.functions.norms import batch_norm, glu, group_norm, layer_norm, prelu, same
from covey.surgery.functions.products import (
    attention,
    einsum,
    grouped_matmul,
    matmul,
    multi_head_attention,
    reversed_matmul,
    without_content,
)
from covey.surgery.functions.space import (
    channel_shuffle,
    grid_sample,
    pixel_shuffle,
    pixel_unshuffle,
    resized,
)
from covey.surgery.operators import (
    Call,
    Facts,
    note_origin,
)
from covey.surgery.sizes import mark, product, sizes_of
from covey.surgery.source import is_torchs
from covey.surgery.torch_internals import grouped_products, leaves


class Following(TorchFunctionMode):
    """While active, every size that the network's code reads remembers where it comes from."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        named = kwargs or {}
        read = READ.get(func)
        if read is not None:
            return read(*args, **named)
        rule = RULES.get(func)
        with self.facts.during(Call(args, named), is_silent=rule is not None):
            # Fake tensors take long over norms, whose result looks like what they are given.
            run = INSTEAD.get(func, func)
            out = torch.empty_like(args[0]) if func in LIKE_INPUT else run(*args, **named)
        if rule is None:
            return out
        made = [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]
        sizes = rule(self.facts.recorder, made[0], *args, **named)
        every = sizes if isinstance(sizes, list) else [sizes]
        for tensor, its_sizes in zip(made, every, strict=False):
            mark(tensor, its_sizes)
        note_origin((args, named), made)
        return out


def _shape(tensor: Tensor) -> Any:
    return torch.Size(sizes_of(tensor))


def _size(tensor: Tensor, dim: int | None = None) -> Any:
    return _shape(tensor) if dim is None else sizes_of(tensor)[dim]


def _count(tensor: Tensor) -> int:
    return product(sizes_of(tensor))


def _truth(tensor: Tensor) -> bool:
    """PyTorch's own layers look whether a mask is causal, to run faster if it is; networks may not ask."""
    caller = sys._getframe(2).f_code.co_filename
    return False if is_torchs(caller) else Tensor.__bool__(tensor)


READ: dict[Callable, Callable[..., Any]] = {
    Tensor.shape.__get__: _shape,  # type: ignore[attr-defined]
    Tensor.size: _size,
    Tensor.numel: _count,
    Tensor.nelement: _count,
    torch.numel: _count,
    Tensor.__bool__: _truth,
}

RULES: dict[Callable, Callable[..., Any]] = {
    F.linear: linear,
    F.bilinear: bilinear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.conv_transpose1d: transposed_convolution,
    F.conv_transpose2d: transposed_convolution,
    F.conv_transpose3d: transposed_convolution,
    F.pad: pad,
    F.unfold: unfold,
    F.fold: fold,
    F.pixel_shuffle: pixel_shuffle,
    F.pixel_unshuffle: pixel_unshuffle,
    F.channel_shuffle: channel_shuffle,
    F.interpolate: resized,
    F.adaptive_avg_pool1d: resized,
    F.adaptive_avg_pool2d: resized,
    F.adaptive_avg_pool3d: resized,
    F.grid_sample: grid_sample,
    F.batch_norm: batch_norm,
    F.instance_norm: batch_norm,
    F.local_response_norm: same,
    F.layer_norm: layer_norm,
    F.rms_norm: layer_norm,
    F.group_norm: group_norm,
    torch.batch_norm: batch_norm,
    torch.instance_norm: batch_norm,
    torch.layer_norm: layer_norm,
    torch.group_norm: group_norm,
    F.prelu: prelu,
    F.normalize: same,
    F.dropout: same,
    F.glu: glu,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    Tensor.__rmatmul__: reversed_matmul,
    torch.einsum: einsum,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
    torch.chunk: chunk,
    Tensor.chunk: chunk,
    torch.repeat_interleave: repeat_interleave,
    Tensor.repeat_interleave: repeat_interleave,
    Tensor.reshape_as: as_other,
    Tensor.view_as: as_other,
    Tensor.expand_as: as_other,
    torch.arange: arange,
    **dict.fromkeys(grouped_products(), grouped_matmul),
}

INSTEAD: dict[Callable, Callable[..., Any]] = dict.fromkeys(grouped_products(), without_content)
"""What is run in place of functions that fake tensors cannot run."""

LIKE_INPUT = frozenset(
    {
        F.batch_norm,
        F.instance_norm,
        F.layer_norm,
        F.rms_norm,
        F.group_norm,
        F.local_response_norm,
        F.normalize,
        F.prelu,
        F.dropout,
        torch.batch_norm,
        torch.instance_norm,
        torch.layer_norm,
        torch.group_norm,
    }
)
