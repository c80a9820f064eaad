"""Which layers shared templates make, what each member has of its own, and what it may all cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes, Where, axes, fresh, norms, owner_of
from covey.parts.plain import stack, values


def layers_of(body: Anatomy, where: Where, linear: bool, method: str, number: int = 0) -> dict[str, Axes]:
    """The weights that templates may make: convolutions, with `linear` all matrices; never norms or the head.

    Layers that the answer does not depend on (an auxiliary head) are left out, they would only use up templates. Which
    those are is kept with the ensemble, under the network's `number`: a stored one is built again without an example.
    """
    if not body.head:
        raise ConversionError(
            f"{method} gives every member a head of its own and so must know it: give convert() an example input, "
            "from which it is found, or name it with head='module.path'."
        )
    idle = f"idle {number}"
    if body.trace is not None:
        unused = {name for name, _ in body.network.named_parameters()} - body.trace.used()
        body.extra |= {idle: sorted(unused)} if unused else {}
    out = {*body.head, *norms(body.network), *body.extra.get(idle, ())}
    found = {
        name: how for name in body.select(where) if name not in out and (how := axes(body.network, name))
    }
    layers = {
        name: how
        for name, how in found.items()
        if how.inputs is not None and (linear or body.network.get_parameter(name).ndim > 2)
    }
    if not layers:
        raise ConversionError(
            f"{method} makes the weights of convolutions, and where={where!r} names none. "
            "Set linear=True to make those of linear layers, attention and recurrences too."
        )
    return layers


def own_names(body: Anatomy, made: Iterable[str], norms_of: str) -> list[str]:
    """What each member has of its own besides: its head, the biases of made layers, and its norms if asked."""
    names = set(body.head)
    if norms_of == "member":
        names |= norms(body.network)
    owners = {owner_of(name) for name in made}
    vectors = {
        name for name, t in body.network.named_parameters() if t.ndim == 1 and owner_of(name) in owners
    }
    return [name for name in body.select("all") if name in names | (vectors - norms(body.network))]


def own_copies(body: Anatomy, names: Sequence[str], members: int) -> dict[str, Tensor]:
    """Copies of each member's own tensors, (M, *shape). Heads after the first are drawn anew.

    Members that share all else would never come apart without that. Uses the global random state.
    """
    copies = {name: stack(tensor, members) for name, tensor in values(body.network, names).items()}
    for owner in dict.fromkeys(owner_of(name) for name in body.head):
        prefix = f"{owner}." if owner else ""
        layer = body.network.get_submodule(owner)
        for k in range(1, members):
            drawn = dict(fresh(layer, None)[0].named_parameters())
            for name in names:
                if name in body.head and owner_of(name) == owner:
                    copies[name][k] = drawn[name.removeprefix(prefix)].detach()
    return copies


def allowance(budget: int | float, networks: Sequence[nn.Module]) -> int:
    """A budget as a number of parameters: a count as it is, a float in units of the networks' mean size."""
    if isinstance(budget, int):
        return budget
    mean = sum(p.numel() for net in networks for p in net.parameters()) / len(networks)
    return math.floor(budget * mean)


def check_budget(budget: int | float | None) -> None:
    """A count (int) or a ratio (float), above zero."""
    fine = isinstance(budget, int | float) and not isinstance(budget, bool) and budget > 0
    if budget is not None and not (fine and math.isfinite(budget)):
        raise OptionError(
            "budget is a number of parameters (an int) or a ratio to the network's (a float), above 0; "
            f"got {budget!r}."
        )


def too_small(method: str, budget: int, minimum: int, layer: str, numbers: int) -> ConversionError:
    """The error for a budget that cannot hold what must be there."""
    return ConversionError(
        f"{method} needs at least {minimum:,} parameters here, and the budget is {budget:,}. "
        f"Of that minimum, {layer!r} alone takes {numbers:,}, the most of all layers. "
        "Raise the budget, take fewer members or a narrower network."
    )


def anatomies(ensemble: Ensemble, networks: Sequence[nn.Module]) -> list[Anatomy]:
    """What is known of an ensemble's networks, to build another ensemble out of networks like them."""
    return [
        Anatomy(
            network,
            tuple(record["head"]),
            tuple(record["stem"]),
            frozenset({*buffers.changing, *buffers.own.names}),
            output=ensemble.about.output,
            extra=ensemble.about.extra,
            given=record["tensors"],
            shared=frozenset(buffers.shared.names),
        )
        for network, record, buffers in zip(networks, ensemble.records, ensemble.state, strict=True)
    ]
