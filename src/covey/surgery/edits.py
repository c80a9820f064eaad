"""What narrowing changed, as plain data, and how to change it again.

    {"tensors": {"conv1.weight": [32, 3, 3, 3], ...}, "attributes": {"conv1": {"out_channels": 32}, ...}}

A stored ensemble keeps its edits, so loading needs the original architecture only: no example, no analysis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError, suggest
from covey.networks.copies import duplicate
from covey.surgery.torch_internals import (
    batch_norm_class,
    convolution_class,
    has_joint_projection,
    transposed_convolution_class,
)

Edits = dict[str, Any]
Tensors = dict[str, Tensor]
Attributes = dict[str, Any]  # a module's attributes by name


def apply_edits(network: nn.Module, edits: Edits) -> nn.Module:
    """Make a copy of `network` with the shapes and attributes that `edits` lists; ties are kept.

    Each tensor keeps its leading channels (and repeats them where it grows), so the copy has sensible values but is
    not meant to be used before it is initialised or given its stored weights.

    Args:
        network: the original network, as it was when the edits were made.
        edits: what `narrow` recorded, possibly read back from JSON.
    """
    tensors = named_tensors(network)
    # deepcopy takes what the memo holds for a tensor in every place where it finds it, so ties stay ties.
    memo: dict[int, Any] = {}
    for name, shape in edits["tensors"].items():
        _check_tensor(name, shape, tensors)
        tensor = tensors[name]
        memo[id(tensor)] = _resized(tensor, shape)
    narrow = duplicate(network, memo)
    for path, attributes in edits["attributes"].items():
        module = narrow.get_submodule(path)
        for name, value in attributes.items():
            _set_attribute(module, name, value)
    return narrow


def named_tensors(network: nn.Module) -> Tensors:
    """All parameters and buffers under all their names."""
    tensors: Tensors = dict(network.named_parameters(remove_duplicate=False))
    tensors.update(network.named_buffers(remove_duplicate=False))
    return tensors


def _check_tensor(name: str, shape: list[int], tensors: Tensors) -> None:
    if name not in tensors:
        raise ConversionError(
            f"The edits name a tensor '{name}' that the network lacks{suggest(name, tensors)}."
        )
    axes = tensors[name].dim()
    if len(shape) != axes:
        raise ConversionError(
            f"The edits give '{name}' the shape {tuple(shape)}, but the network's has {axes} axes; "
            "it is not the network that was narrowed."
        )


def _resized(tensor: Tensor, shape: list[int]) -> Tensor:
    values = tensor.detach()
    for axis, new in enumerate(shape):
        old = tensor.shape[axis]
        if new < old:
            values = values.narrow(axis, 0, new)
        elif new > old:
            repeated = torch.arange(new, device=values.device) % old
            values = values.index_select(axis, repeated)
    values = values.clone(memory_format=torch.contiguous_format)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, tensor.requires_grad)
    return values


def _set_attribute(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute, or what is inside one ("config.hidden_size", "widths.2")."""
    *way, last = name.split(".")
    holder: Any = module
    for step in way:
        holder = _inside(holder, step)
    old = _inside(holder, last)
    if isinstance(old, tuple):  # JSON knows lists only
        value = type(old)(*value) if hasattr(old, "_fields") else type(old)(value)
    if isinstance(holder, list):
        holder[int(last)] = value
    elif isinstance(holder, dict):
        holder[_key(holder, last)] = value
    elif way:
        vars(holder)[last] = value  # a config's own checks of one value at a time have no place here
    else:
        setattr(holder, last, value)


def _inside(holder: Any, step: str) -> Any:
    if isinstance(holder, list):
        return holder[int(step)]
    if isinstance(holder, dict):
        return holder[_key(holder, step)]
    return getattr(holder, step)


def _key(holder: dict, step: str) -> Any:
    """A dict's key from its name; keys may be numbers."""
    return next(key for key in holder if str(key) == step)


# --- what layers write down about themselves ---------------------------------------------------------------------


def known_attributes(module: nn.Module) -> Attributes:
    """The sizes that PyTorch's own layers write down about themselves, read off their tensors."""
    readers: dict[type, Callable[[Any], Attributes]] = {
        nn.Linear: _of_linear,
        transposed_convolution_class(): _of_transposed_convolution,
        convolution_class(): _of_convolution,
        nn.Embedding: _of_embedding,
        nn.EmbeddingBag: _of_embedding,
        batch_norm_class(): _of_batch_norm,
        nn.GroupNorm: _of_group_norm,
        nn.MultiheadAttention: _of_attention,
    }
    for kind, read in readers.items():  # the first that fits: a transposed convolution is a convolution too
        if isinstance(module, kind):
            return read(module)
    return {}


def _of_linear(layer: nn.Linear) -> Attributes:
    outputs, inputs = layer.weight.shape[:2]
    return {"in_features": inputs, "out_features": outputs}


def _of_convolution(layer: Any) -> Attributes:
    outputs, inputs_per_group = layer.weight.shape[:2]
    return {"in_channels": inputs_per_group * layer.groups, "out_channels": outputs}


def _of_transposed_convolution(layer: Any) -> Attributes:
    inputs, outputs_per_group = layer.weight.shape[:2]
    return {"in_channels": inputs, "out_channels": outputs_per_group * layer.groups}


def _of_embedding(layer: nn.Embedding | nn.EmbeddingBag) -> Attributes:
    return {"embedding_dim": layer.weight.shape[1]}


def _of_batch_norm(layer: Any) -> Attributes:
    tensor = layer.weight if layer.weight is not None else layer.running_mean
    if tensor is None:
        return {}
    return {"num_features": tensor.shape[0]}


def _of_group_norm(layer: nn.GroupNorm) -> Attributes:
    if layer.weight is None:
        return {}
    return {"num_channels": layer.weight.shape[0]}


def _of_attention(layer: nn.MultiheadAttention) -> Attributes:
    width = layer.out_proj.weight.shape[1]
    key_width = value_width = width
    if not has_joint_projection(layer):
        key_width = layer.k_proj_weight.shape[1]
        value_width = layer.v_proj_weight.shape[1]
    return {
        "embed_dim": width,
        "head_dim": width // layer.num_heads,
        "kdim": key_width,
        "vdim": value_width,
    }
