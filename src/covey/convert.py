"""convert(): any network becomes an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from covey.coverage import Coverage
from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Output, examine
from covey.networks.layers import Where

TASKS = ("classification", "regression", "gaussian")


@overload
def convert(
    network: nn.Module | Sequence[nn.Module],
    method: Method,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
    task: str = "classification",
    class_dim: int | None = None,
    seed: int = 0,
    dry_run: Literal[False] = False,
) -> Ensemble: ...
@overload
def convert(
    network: nn.Module | Sequence[nn.Module],
    method: Method,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
    task: str = "classification",
    class_dim: int | None = None,
    seed: int = 0,
    dry_run: Literal[True],
) -> Coverage: ...
def convert(
    network: nn.Module | Sequence[nn.Module],
    method: Method,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
    task: str = "classification",
    class_dim: int | None = None,
    seed: int = 0,
    dry_run: bool = False,
) -> Ensemble | Coverage:
    """Turn a network into an ensemble. The network stays as it was, and so does the global random state.

    Args:
        network: any module, or several where the method takes members that differ.
        method: what kind of ensemble, with its options.
        example: an input the network takes: a tensor, a tuple of positional or a dict of keyword arguments.
            From it the head, the first layer and the shared prefix are found.
        output: which part of the network's output is the answer: a key, an attribute or a position.
        head: the answering layer by name, if it should not be found from `example`.
        stem: the first layer by name, likewise.
        task: "classification" (logits), "regression" (points) or "gaussian" (means and raw variances).
        class_dim: the class axis of the network's output; by default where the head puts it, or if the head is not
            known 1 for (B, C, H, W) and more, else the last.
        seed: of all random choices that conversion makes.
        dry_run: return only the coverage table.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> from covey.methods import BatchEnsemble
    >>> ensemble = convert(network, BatchEnsemble(members=4), example=torch.zeros(2, 4))
    >>> ensemble(torch.zeros(2, 4)).shape
    torch.Size([4, 2, 3])
    """
    networks: list[nn.Module] = list(network) if isinstance(network, Sequence) else [network]
    _check(networks, method, task)
    bodies = [examine(net, example=example, output=output, head=head, stem=stem) for net in networks]
    device_ids = sorted(
        {p.device.index for net in networks for p in net.parameters() if p.device.type == "cuda"}
    )
    with torch.random.fork_rng(devices=device_ids):
        torch.manual_seed(seed)
        ensemble = method.build(bodies)
    if (
        method.members > 1
        and not any(part.varies for part in ensemble.parts.values())
        and not bodies[0].random
        and getattr(method, "where", None) != ()  # asked for: a control that only adds up gradients
    ):
        raise ConversionError(
            f"{type(method).__name__} gives this network no tensor of the members' own and nothing in it is random, so "
            "all members would be one. See the coverage table (dry_run=True) and the method's `where`."
        )
    if class_dim is None and bodies[0].head:
        is_map = any(bodies[0].network.get_parameter(name).ndim > 2 for name in bodies[0].head)
        class_dim = 1 if is_map else -1  # a convolution's outputs are on axis 1, a linear layer's on the last
    ensemble.about.task, ensemble.about.class_dim, ensemble.about.seed = task, class_dim, seed
    return ensemble.coverage if dry_run else ensemble


def _check(networks: Sequence[nn.Module], method: Method, task: str) -> None:
    if isinstance(method, type):
        raise OptionError(
            f"method is an object with options, such as {method.__name__}(); got the class itself."
        )
    if not isinstance(method, Method):
        raise OptionError(
            f"method is one of covey.METHODS' classes with options; got {type(method).__name__}."
        )
    if task not in TASKS:
        raise OptionError(f"task is one of {', '.join(map(repr, TASKS))}; got {task!r}.")
    if not networks:
        raise OptionError("no network was given.")
    for network in networks:
        _check_network(network)


def _check_network(network: nn.Module) -> None:
    if not isinstance(network, nn.Module):
        raise OptionError(f"network is a torch.nn.Module; got {type(network).__name__}.")
    if isinstance(network, Ensemble):
        raise OptionError(
            "network is an ensemble already; convert one plain network, such as ensemble.member(0)."
        )
    tensors = [*network.named_parameters(), *network.named_buffers()]
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ConversionError(
                f"{name!r} has no shape yet, because its lazy module was never run. Call the network once on an input."
            )
    if not any(isinstance(tensor, nn.Parameter) for _, tensor in tensors):
        raise ConversionError("the network has no parameters, so there is nothing to make an ensemble of.")
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.device.type != "meta" and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            raise ConversionError(
                f"{name!r} holds {count} of {tensor.numel()} numbers that are NaN or infinite; "
                "repair or re-initialise the network before converting it."
            )
