"""Find and address a network's tensors; hollow a network out and fill it again.

Tensors are addressed by the names of `named_parameters()`; a tensor with several names (tied weights, a
module used twice) goes by the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from covey.errors import ConversionError, suggest

Where = str | Sequence[str]

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, *_RECURRENT, *_TRANSPOSED, *_CONVOLUTION)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Axes:
    """How a weight is a matrix: which axis counts inputs and which outputs, (out, in, ...) or (in, out, ...).

    With `groups`, the second axis counts the features of one group. `inputs` is None for an embedding.
    """

    outputs: int
    inputs: int | None
    groups: int = 1
    inputs_first: bool = False


def owner_of(name: str) -> str:
    """The path of the module that a tensor belongs to; a reparametrised weight belongs to its layer."""
    return re.split(r"\.parametrizations\.|\.(?=[^.]*$)", "." + name, maxsplit=1)[0].removeprefix(".")


def canonical(network: nn.Module) -> dict[str, str]:
    """Every name of every parameter -> the name it goes by."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(tensor), name)
        for name, tensor in network.named_parameters(remove_duplicate=False)
    }


def slots(network: nn.Module) -> dict[str, str]:
    """Every place that holds a tensor -> the name the tensor goes by.

    A tied tensor has several places; a place that several paths lead to (a module used twice) stands once.
    """
    named = {id(t): name for name, t in [*network.named_parameters(), *network.named_buffers()]}
    return {
        f"{path}.{leaf}".removeprefix("."): named[id(tensor)]
        for path, module in network.named_modules()
        for leaf, tensor in [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
    }


def ties(network: nn.Module) -> dict[str, str]:
    """Further names of tied parameters -> the name that the tensor goes by."""
    return {name: first for name, first in canonical(network).items() if name != first}


def with_sparse_gradients(network: nn.Module) -> tuple[str, ...]:
    """Names of the tables of words whose gradients are sparse."""
    found = []
    for place, name in slots(network).items():
        owner = network.get_submodule(owner_of(place))
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.sparse:
            found.append(name)
    return tuple(dict.fromkeys(found))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: one of torch's, or one that is called so and has only vectors."""
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return True
    tensors = list(module.parameters(recurse=False))
    return "norm" in type(module).__name__.lower() and all(map(_is_vector, tensors)) and bool(tensors)


def _is_vector(tensor: Tensor) -> bool:
    """Whether a tensor has one axis, or is one laid out for images or sequences, such as (1, C, 1, 1)."""
    return tensor.ndim == 1 or (tensor.ndim > 2 and sum(size > 1 for size in tensor.shape) <= 1)


def norms(network: nn.Module) -> set[str]:
    """Names of the parameters of all normalisation layers."""
    return {name for name in canonical(network).values() if is_norm(network.get_submodule(owner_of(name)))}


def axes(network: nn.Module, name: str) -> Axes | None:
    """How the parameter is a matrix, or None if it is not one (a bias, a norm's scale, a class token)."""
    owner, leaf = network.get_submodule(owner_of(name)), name.rpartition(".")[2]
    tensor = network.get_parameter(name)
    if tensor.ndim < 2 or not _holds_the_weight(network, name):
        return None
    if isinstance(owner, nn.Bilinear):
        return Axes(tensor.shape[0], tensor.shape[1])
    if isinstance(owner, _CONVOLUTION):
        return Axes(tensor.shape[0], tensor.shape[1] * owner.groups, owner.groups)
    if isinstance(owner, _TRANSPOSED):
        return Axes(tensor.shape[1] * owner.groups, tensor.shape[0], owner.groups, inputs_first=True)
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        return Axes(tensor.shape[1], None, inputs_first=True)
    if isinstance(owner, nn.MultiheadAttention) and leaf not in _ATTENTION_WEIGHTS:
        return None  # bias_k and bias_v
    is_layer = isinstance(owner, (nn.Linear, nn.MultiheadAttention, *_RECURRENT))
    if tensor.ndim == 2 and (is_layer or min(tensor.shape) > 1):
        return Axes(tensor.shape[0], tensor.shape[1])
    return None


def is_of_a_layer(network: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to one of torch's own layers that multiply data by a weight."""
    return isinstance(network.get_submodule(owner_of(name)), _LAYERS)


def _holds_the_weight(network: nn.Module, name: str) -> bool:
    """Whether a parameter is a weight, or has the numbers that a weight is computed from.

    Of a reparametrised weight that is the largest original: a weight norm's direction, and not its lengths.
    """
    path, inside, leaf = name.rpartition(".")
    if ".parametrizations." not in "." + name:
        return True
    originals = dict(network.get_submodule(path).named_parameters(recurse=False)) if inside else {}
    largest = max(originals, key=lambda each: originals[each].numel(), default="")
    return leaf == largest


def select(
    network: nn.Module,
    where: Where,
    *,
    head: Iterable[str] = (),
    stem: Iterable[str] = (),
    option: str = "where",
) -> list[str]:
    """Names of the parameters that `where` means, in the network's order.

    Args:
        network: where to look.
        where: "all", "head", "stem", "norms", a parameter's name, a module's path, a regular expression
            that is searched for in the names, or a sequence of these.
        head: names of the head's parameters.
        stem: names of the first layers' parameters.
        option: what errors call `where`.

    >>> select(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), ["norms", "0.bias"])
    ['0.bias', '1.weight', '1.bias']
    """
    names = canonical(network)
    known = dict.fromkeys(names.values())
    sets = {"all": set(known), "head": set(head), "stem": set(stem), "norms": norms(network)}
    chosen: set[str] = set()
    for part in [where] if isinstance(where, str) else where:
        chosen |= (
            sets[part] if part in sets and (sets[part] or part == "norms") else _named(part, names, option)
        )
        if part == "norms" and not sets["norms"]:
            raise ConversionError(
                f"{option}='norms' matches nothing: the network has no normalisation layer "
                "(BatchNorm, LayerNorm, GroupNorm, RMSNorm). Name other tensors, or take another method."
            )
    return [name for name in known if name in chosen]


def _named(part: str, names: Mapping[str, str], option: str) -> set[str]:
    if part in ("head", "stem"):
        raise ConversionError(
            f"{option}={part!r} needs to know the network's {part}: give convert() an example input, "
            f"from which it is found, or name it with {part}='module.path'."
        )
    found = {first for name, first in names.items() if name == part or name.startswith(part + ".")}
    if found:
        return found
    try:
        found = {first for name, first in names.items() if re.search(part, name)}
    except re.error as error:
        raise ConversionError(
            f"{option}={part!r} is no tensor's name and no regular expression: {error}"
        ) from None
    if not found:
        raise ConversionError(
            f"{option}={part!r} matches none of the network's {len(names)} parameters{suggest(part, names)}."
        )
    return found


def origin_of(network: nn.Module) -> dict[str, Any] | None:
    """The name and arguments with which `covey.zoo` made a network, or None if it is not one of the zoo's."""
    return getattr(network, "covey_zoo", None)
