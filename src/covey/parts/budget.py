"""Which layers shared templates make, what each member has of its own, and what it may all cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.initial import fresh
from covey.networks.layers import Axes, Where, norms, owner_of
from covey.options import is_number
from covey.parts.plain import stack

Budget = int | float | Literal["auto"] | None
"""Parameters of all members together: a count, a ratio to the network's, or for the method to say."""


def unused(body: Anatomy) -> list[str]:
    """Parameters that the answer does not depend on, such as an auxiliary head's; none where there is no example."""
    if body.trace is None:
        return []
    used = body.trace.used()
    return [name for name, _ in body.network.named_parameters() if name not in used]


def layers_of(
    body: Anatomy, where: Where, linear: bool, method: str, idle: Collection[str] = ()
) -> dict[str, Axes]:
    """The weights that templates may make: convolutions, with `linear` all matrices; never norms or the head.

    Args:
        body: the network.
        where: which tensors to look among.
        linear: whether matrices count, and not only kernels.
        method: for error messages.
        idle: layers that the answer does not depend on (see `unused`); they would only use up templates.
    """
    everything = _matrices(body, where, method, idle)
    layers = {name: how for name, how in everything.items() if linear or _is_kernel(body, name)}
    if layers:
        return layers
    if everything:
        raise ConversionError(
            f"{method} makes the weights of convolutions before the head where linear=False, and where={where!r} names "
            "none. Leave linear out, or set linear=True, to make those of linear layers, attention and recurrences too."
        )
    raise ConversionError(
        f"{method} makes the weights of layers before the head, and where={where!r} names none. Name other layers."
    )


def linear_counts(
    bodies: Sequence[Anatomy], where: Where, method: str, idle: Sequence[Collection[str]]
) -> bool:
    """Whether templates should make matrices too: where most of the parameters are not in kernels."""
    kernels, total = 0, 0
    for body, without in zip(bodies, idle, strict=True):
        for name in _matrices(body, where, method, without):
            size = body.network.get_parameter(name).numel()
            total += size
            kernels += size if _is_kernel(body, name) else 0
    return 2 * kernels < total


def _matrices(body: Anatomy, where: Where, method: str, idle: Collection[str]) -> dict[str, Axes]:
    """Kernels and matrices of the network but for embeddings, norms, the head and idle layers."""
    if not body.head:
        raise ConversionError(
            f"{method} leaves the head out of its templates and so must know it: give convert() an example input, "
            "from which it is found, or name it with head='module.path'."
        )
    left_out = {*body.head, *norms(body.network), *idle}
    found = {}
    for name, how in body.matrices(where).items():
        if name not in left_out and how.inputs is not None:
            found[name] = how
    return _of_one_kind(body, found)


def _of_one_kind(body: Anatomy, layers: Mapping[str, Axes]) -> dict[str, Axes]:
    """Those in the type that most numbers are in, since a bank has one: complex and real weights need two."""
    sizes: Counter[torch.dtype] = Counter()
    for name in layers:
        weight = body.network.get_parameter(name)
        sizes[weight.dtype] += weight.numel()
    kind = max(sizes, key=sizes.__getitem__, default=None)
    return {name: how for name, how in layers.items() if body.network.get_parameter(name).dtype == kind}


def _is_kernel(body: Anatomy, name: str) -> bool:
    return body.network.get_parameter(name).ndim > 2


def own_names(body: Anatomy, made: Iterable[str], norms_of: str) -> list[str]:
    """What each member has of its own besides: its head, the biases of made layers, and its norms if asked."""
    normal = norms(body.network)
    chosen = set(body.head)
    if norms_of == "member":
        chosen |= normal
    owners = {owner_of(name) for name in made}
    for name, tensor in body.network.named_parameters():
        if tensor.ndim == 1 and owner_of(name) in owners and name not in normal:
            chosen.add(name)
    return [name for name in body.select("all") if name in chosen]


def own_copies(body: Anatomy, names: Sequence[str], members: int) -> dict[str, Tensor]:
    """Copies of each member's own tensors, (M, *shape). Heads after the first are drawn anew.

    Members that share all else would never come apart without that. Uses the global random state.
    """
    copies = {name: stack(tensor, members) for name, tensor in body.values(names).items()}
    for owner in dict.fromkeys(owner_of(name) for name in body.head):
        layer = body.network.get_submodule(owner)
        prefix = f"{owner}." if owner else ""
        redrawn = [name for name in names if name in body.head and owner_of(name) == owner]
        for k in range(1, members):
            drawn = dict(fresh(layer).named_parameters())
            for name in redrawn:
                copies[name][k] = drawn[name.removeprefix(prefix)].detach()
    return copies


def fixed_cost(body: Anatomy, made: Collection[str], own: Collection[str], members: int) -> int:
    """Parameters in everything that no bank makes."""
    total = 0
    for name, tensor in body.network.named_parameters():
        if name not in made:
            total += tensor.numel() * (members if name in own else 1)
    return total


def allowance(budget: int | float, networks: Sequence[nn.Module]) -> int:
    """A budget as a number of parameters: a count as it is, a float in units of the networks' mean size."""
    if isinstance(budget, int):
        return budget
    mean = sum(p.numel() for net in networks for p in net.parameters()) / len(networks)
    return math.floor(budget * mean)


def check_budget(budget: Budget) -> None:
    """A count (int) or a ratio (float), above zero; or left to the network."""
    if budget in (None, "auto"):
        return
    if not (is_number(budget) and budget > 0):  # type: ignore[operator]
        raise OptionError(
            "budget is a number of parameters (an int) or a ratio to the network's (a float), above 0, or 'auto'; "
            f"got {budget!r}."
        )


class TooSmallError(ConversionError):
    """A budget cannot hold what must be there.

    Args:
        method: the name of the method.
        budget: in parameters.
        minimum: how many it would take.
        layer: the one that takes the most of them.
        parameters: how many that layer takes.
    """

    def __init__(self, method: str, budget: int, minimum: int, layer: str, parameters: int) -> None:
        super().__init__(
            f"{method} needs at least {minimum:,} parameters here, and the budget is {budget:,}. "
            f"Of that minimum, {layer!r} alone takes {parameters:,}, the most of all layers. "
            f"Raise the budget to {minimum} or leave it out, take fewer members or a narrower network."
        )
        self.minimum = minimum
