"""What narrowing changed, as plain data, and how to change it again.

    {"tensors": {"conv1.weight": [32, 3, 3, 3], ...}, "attributes": {"conv1": {"out_channels": 32}, ...}}

A stored ensemble keeps its edits, so loading needs the original architecture only: no example, no analysis.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError, suggest

Edits = dict[str, Any]


def apply_edits(network: nn.Module, edits: Edits) -> nn.Module:
    """A copy of `network` with the shapes and attributes that `edits` lists; ties are kept.

    Each tensor keeps its leading channels (and repeats them where it grows), so the copy has sensible values but is
    not meant to be used before it is initialised or given its stored weights.

    Args:
        network: the original network, as it was when the edits were made.
        edits: what `narrow` recorded, possibly read back from JSON.
    """
    tensors: dict[str, Tensor] = dict(network.named_parameters(remove_duplicate=False))
    tensors.update(network.named_buffers(remove_duplicate=False))
    memo: dict[int, Any] = {}
    for name, shape in edits["tensors"].items():
        if name not in tensors:
            raise ConversionError(
                f"The edits name a tensor '{name}' that the network lacks{suggest(name, tensors)}."
            )
        if len(shape) != tensors[name].dim():
            raise ConversionError(
                f"The edits give '{name}' the shape {tuple(shape)}, but the network's has {tensors[name].dim()} axes; "
                "it is not the network that was narrowed."
            )
        memo[id(tensors[name])] = _resized(tensors[name], shape)
    narrow = copy.deepcopy(network, memo)
    for path, attributes in edits["attributes"].items():
        module = narrow.get_submodule(path)
        for name, value in attributes.items():
            old = getattr(module, name)
            setattr(module, name, type(old)(value) if isinstance(old, tuple) else value)
    return narrow


def known_attributes(module: nn.Module) -> dict[str, Any]:
    """The sizes that PyTorch's own layers write down about themselves, read off their tensors."""
    if isinstance(module, nn.Linear):
        return {"in_features": module.weight.shape[1], "out_features": module.weight.shape[0]}
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return {"in_channels": module.weight.shape[0], "out_channels": module.weight.shape[1] * module.groups}
    if isinstance(module, nn.modules.conv._ConvNd):
        return {"in_channels": module.weight.shape[1] * module.groups, "out_channels": module.weight.shape[0]}
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return {"embedding_dim": module.weight.shape[1]}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        tensor = module.weight if module.weight is not None else module.running_mean
        return {} if tensor is None else {"num_features": tensor.shape[0]}
    if isinstance(module, nn.GroupNorm) and module.weight is not None:
        return {"num_channels": module.weight.shape[0]}
    if isinstance(module, nn.MultiheadAttention):
        width = module.out_proj.weight.shape[1]
        same = module._qkv_same_embed_dim
        return {
            "embed_dim": width,
            "head_dim": width // module.num_heads,
            "kdim": width if same else module.k_proj_weight.shape[1],
            "vdim": width if same else module.v_proj_weight.shape[1],
        }
    return {}


def _resized(tensor: Tensor, shape: list[int]) -> Tensor:
    values = tensor.detach()
    for axis, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
        if new < old:
            values = values.narrow(axis, 0, new)
        elif new > old:
            values = values.index_select(axis, torch.arange(new, device=values.device) % old)
    values = values.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
