"""Networks that no ensemble can be made of as they are, found out before anything is built, and what to do instead."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from covey.errors import ConversionError
from covey.networks.held import Held, held

RESERVED = ("members", "per_member", "check")
"""Arguments that an ensemble takes for itself when it is called or asked to predict."""


def check_network(network: nn.Module) -> None:
    """Raise a ConversionError if the network must be changed before it can become an ensemble."""
    _check_wrappers(network)
    _check_arguments(network)
    _check_tensors(network)
    _check_memory(network)
    _check_gradient_hooks(network)
    _check_held(network)


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Refuse keyword arguments of an example that an ensemble would take for itself."""
    for name in RESERVED:
        if name in keywords:
            raise _reserved(name)


# --- what it is -------------------------------------------------------------------------------------------------------


def _check_wrappers(network: nn.Module) -> None:
    """Modules that run others in a way that cannot be given other tensors."""
    for path, module in network.named_modules():
        for is_one, what, advice in _WRAPPERS:
            if is_one(module):
                where = f"its part {path!r}" if path else "the network"
                raise ConversionError(f"{where} is {what}. {advice}")


def _is_parallel(module: nn.Module) -> bool:
    return isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules and type(module).__name__ == "OptimizedModule"


def _is_sharded(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # who has one has imported this
    if fsdp is None:
        return False
    kinds = [getattr(fsdp, name, None) for name in ("FullyShardedDataParallel", "FSDPModule")]
    return isinstance(module, tuple(kind for kind in kinds if kind is not None))


_QUANTISERS = (
    "torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torchao.", "bitsandbytes.", "auto_gptq.", "gptqmodel.",
    "awq.", "hqq.", "optimum.quanto.", "compressed_tensors.", "aqlm.", "transformers.integrations.",
)  # fmt: skip
"""Where the layers and weights of quantised networks come from."""


def _is_quantised(module: nn.Module) -> bool:
    homes = [type(module).__module__]
    # some quantise the layer, others only its weight, which is then a tensor of their own
    homes += [type(tensor).__module__ for tensor in module.parameters(recurse=False)]
    return any(home.startswith(_QUANTISERS) for home in homes)


_WRAPPERS: list[tuple[Callable[[nn.Module], bool], str, str]] = [
    (
        _is_parallel,
        "wrapped in DataParallel or DistributedDataParallel",
        "Take what is inside, its `.module`, and wrap the ensemble instead.",
    ),
    (
        lambda module: isinstance(module, torch.jit.ScriptModule),
        "scripted or traced (torch.jit), so its tensors are fixed in compiled code",
        "Convert the Python network that it was made of.",
    ),
    (
        _is_compiled,
        "compiled (torch.compile)",
        "Take what is inside, its `._orig_mod`, and compile the ensemble instead: torch.compile(ensemble).",
    ),
    (
        _is_sharded,
        "sharded over processes (FSDP)",
        "Convert the network before it is sharded, and shard the ensemble.",
    ),
    (
        _is_quantised,
        "quantised, so its weights are packed integers that cannot be trained",
        "Convert the network before it is quantised, and quantise ensemble.member(k); a large base may be in bfloat16 "
        "or float16.",
    ),
]


def _check_arguments(network: nn.Module) -> None:
    try:
        parameters = inspect.signature(network.forward).parameters
    except (TypeError, ValueError):  # no signature to read
        return
    for name in RESERVED:
        if name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY:
            raise _reserved(name)


def _reserved(name: str) -> ConversionError:
    return ConversionError(
        f"the network takes an argument called {name!r}, which an ensemble takes for itself. Rename it, or wrap the "
        "network in a module that takes it under another name."
    )


# --- what it holds ----------------------------------------------------------------------------------------------------


def _check_tensors(network: nn.Module) -> None:
    tensors = [*network.named_parameters(), *network.named_buffers()]
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ConversionError(
                f"{name!r} has no shape yet, because its lazy module was never run. Call the network once on an input."
            )
        if tensor.layout != torch.strided:
            raise ConversionError(
                f"{name!r} is a sparse tensor ({tensor.layout}), and members' tensors are dense. Register its indices "
                "and values as buffers and make the sparse tensor of them in the forward pass; or, if it is a "
                "constant, keep it as a plain attribute."
            )
    if not any(isinstance(tensor, nn.Parameter) for _, tensor in tensors):
        raise ConversionError("the network has no parameters, so there is nothing to make an ensemble of.")
    for name, tensor in tensors:
        if not tensor.is_floating_point() or tensor.device.type == "meta":
            continue
        # a buffer may well hold infinities: attention masks do, and observers of ranges that have seen nothing yet
        broken = ~torch.isfinite(tensor) if isinstance(tensor, nn.Parameter) else torch.isnan(tensor)
        count = int(broken.sum())
        if count:
            raise ConversionError(
                f"{name!r} holds {count} of {tensor.numel()} values that are NaN or infinite; "
                "repair or re-initialise the network before converting it."
            )


def _check_memory(network: nn.Module) -> None:
    """Two tensors in one memory change together in the network, and would be two in its members."""
    learnt = {name for name, _ in network.named_parameters()}
    for one, other in sharing([*network.named_parameters(), *network.named_buffers()]):
        # constants may well share theirs, as the rows of one table do
        if one in learnt or other in learnt:
            raise ConversionError(
                f"{one!r} and {other!r} share memory, so training one changes the other, and torch has them as two "
                "tensors. Members' are made one by one and would no longer be tied. Use one parameter in both places "
                "(decoder.weight = encoder.weight, without .data), or a copy (.clone()) if they should differ."
            )


def sharing(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Names of tensors that are neighbours in memory and have numbers in common, in pairs."""
    named = {name: tensor for name, tensor in tensors if has_memory(tensor)}
    in_order = sorted(named, key=lambda name: named[name].data_ptr())
    for one, other in itertools.pairwise(in_order):
        if share_memory(named[one], named[other]):
            yield one, other


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether a number of one tensor is a number of the other."""
    if not (has_memory(one) and has_memory(other)):
        return False
    (start, end), (other_start, other_end) = _reach(one), _reach(other)
    if start >= other_end or other_start >= end:
        return False
    # columns of one table reach over each other and have nothing in common
    return bool(torch.isin(_addresses(one), _addresses(other)).any())


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor holds numbers of its own or another's."""
    return tensor.device.type != "meta" and tensor.layout == torch.strided and tensor.numel() > 0


def _reach(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory begins, and where it ends."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _addresses(tensor: Tensor) -> Tensor:
    start, end = _reach(tensor)
    every = torch.arange(start, end, tensor.element_size())
    return every.as_strided(tensor.shape, tensor.stride()).flatten()


def _check_gradient_hooks(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ConversionError(
                f"{name!r} has a hook on its gradient (register_hook), which copies of a tensor do not have, so that "
                "members would train without it. Remove it, and do in the forward pass what it is for, such as "
                "`weight * mask` for a gradient that is masked; or put hooks on the ensemble's parameters."
            )


def _check_held(network: nn.Module) -> None:
    """Parameters that torch does not know of, and functions that would go on using the original network."""
    registered = {id(part) for part in [*network.modules(), *network.parameters(), *network.buffers()]}
    for found in held(network):
        if id(found.value) in registered:
            raise ConversionError(
                f"a function or a weak reference in {found.path!r} leads to a layer or tensor of the network itself. "
                "Copies of the network share it, so that every member would go on using the original. Make it a "
                "method, a function that is given the module, or an ordinary reference."
            )
        _check_trainable(found, registered)


def _check_trainable(found: Held, registered: set[int]) -> None:
    if isinstance(found.value, Tensor):
        if _is_trainable(found.value):
            raise ConversionError(
                f"{found.path!r} holds a tensor that wants a gradient and is no parameter of the network for torch, so "
                "it would be neither trained nor a member's own. Make it an nn.Parameter, several an nn.ParameterList "
                "or nn.ParameterDict; or, if it is a constant, call requires_grad_(False) on it."
            )
        return
    for name, tensor in found.value.named_parameters():
        if id(tensor) not in registered and _is_trainable(tensor):
            raise ConversionError(
                f"{found.path!r} holds a module that torch does not know as a part of the network, so its {name!r} "
                "would be neither trained nor a member's own. Keep it as an attribute, several in an nn.ModuleList or "
                "nn.ModuleDict; or, if it is a constant, call requires_grad_(False) on it."
            )


def _is_trainable(tensor: Tensor) -> bool:
    """Whether an optimiser would have it; a tensor that was computed (an activation kept) is none."""
    return tensor.requires_grad and tensor.is_leaf
