"""A network of the same architecture with other hidden widths.

    small = narrow(network, 0.5, x)        # half of every hidden width; inputs and outputs as before
    small.network                          # a plain network
    apply_edits(network, small.edits)      # the same again, without x

No architecture is known here: which axes go together is read off the equations between sizes that one run on
symbols gives (`probe`), solved (`equations`) for the new widths (`widths`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from covey.errors import ConversionError, OptionError
from covey.networks.calls import arguments
from covey.surgery.bound import Bound, check_bound, measure
from covey.surgery.checks import check_answers, problem_in_training
from covey.surgery.edits import Edits, apply_edits
from covey.surgery.equations import System, eliminate
from covey.surgery.probe import Probe, probe
from covey.surgery.recording import Rounded, finish_attributes, record_edits, rounded_sizes
from covey.surgery.slices import Channels, channels
from covey.surgery.subgroups import add_subgroups
from covey.surgery.torch_internals import leaves
from covey.surgery.widths import Chosen, choose, sizes_for

Heads = Literal["round", "exact", "keep"]


@dataclass(frozen=True)
class Narrowed:
    """A narrow network and how it came about.

    Args:
        network: the plain narrow network, with the leading channels of the original's weights.
        edits: shapes and attributes that changed, in plain data (see `apply_edits`).
        rounded: sizes that had to be rounded up: original, wanted and new size.
        channels: which original channels the narrow ones can be cut from, for `slice_weights`.
    """

    network: nn.Module
    edits: Edits
    rounded: Rounded
    channels: Channels


def narrow(
    network: nn.Module,
    ratio: float,
    example: Any,
    *,
    groups: int = 1,
    heads: Heads = "round",
    tolerance: float = 0.1,
    output: Callable[[Any], Any] | None = None,
) -> Narrowed:
    """Make a copy of `network` whose hidden widths are `ratio` times the original's.

    Args:
        network: any network that can be run on `example`; it stays as it was.
        ratio: new width over old width, above 0 (1 keeps the network, above 1 widens it).
        example: an input: a tensor, a tuple of positional inputs or a dict of inputs by keyword.
        groups: subgroups (the paper's gamma) in convolutions other than the first and the first of a residual block.
        heads: the number of attention heads is scaled and rounded up ("round"), must come out whole ("exact"), or is
            left alone ("keep"). Head width follows, so that heads x head width is ratio x the original's.
        tolerance: how many more parameters the narrow network may have than hidden widths of exactly ratio x the
            original's, not rounded, would give.
        output: picks the answer out of what the network returns; its sizes stay.

    Raises:
        ConversionError: the narrow network would be larger than the tolerance allows, because the network's code
            fixes a width or because of what must divide; no widths satisfy what must divide; or the narrow network
            does not run; the message names tensor, module and line.
        TorchChangedError: the installed PyTorch lacks a private part that the analysis needs.
    """
    _check_options(ratio, groups)
    args, kwargs = arguments(example)
    if not any(isinstance(leaf, Tensor) for leaf in leaves((args, kwargs))):
        raise OptionError(
            f"example must be a tensor, a tuple or a dict of inputs; got {type(example).__name__}."
        )
    found = probe(network, args, kwargs, output)
    narrowed = _narrowed(network, found, args, kwargs, ratio, groups, heads, tolerance)
    problem = problem_in_training(narrowed.network, network, args, kwargs, output)
    if problem is not None:
        # in train mode it does something else, which ties other sizes together (a draw that both of its parts enter)
        found = probe(network, args, kwargs, output, in_training=True)
        narrowed = _narrowed(network, found, args, kwargs, ratio, groups, heads, tolerance)
        problem = problem_in_training(narrowed.network, network, args, kwargs, output)
    check_answers(narrowed.network, network, args, kwargs, output)
    if problem is not None:
        raise problem
    return narrowed


def _narrowed(
    network: nn.Module,
    found: Probe,
    args: tuple,
    kwargs: dict[str, Any],
    ratio: float,
    groups: int,
    heads: Heads,
    tolerance: float,
) -> Narrowed:
    """A narrow network, by what a run on symbols told."""
    system = eliminate(found)
    chosen, bound = _cheapest(network, found, system, ratio, heads, tolerance)
    check_bound(bound, found, system, ratio, tolerance)
    size_of = sizes_for(system, chosen)
    _check_apart(found, system, size_of)
    edits = record_edits(network, found, size_of)
    small = apply_edits(network, edits)
    finish_attributes(small, network, edits)
    if groups > 1:
        small = add_subgroups(network, small, edits, args, kwargs, groups)
    rounded = rounded_sizes(found, system, chosen, size_of, ratio)
    return Narrowed(small, edits, rounded, channels(found, system, size_of))


def _check_apart(found: Probe, system: System, size_of: Callable[[Any], int]) -> None:
    """Sizes that the network's code tells apart may not become the same, or it would take the other branch."""
    for one, other in system.apart:
        if size_of(one) == size_of(other):
            raise ConversionError(
                f"'{found.recorder.labels[one]}' is {system.original[one]}, which the network's code tells apart from "
                f"another width, and both would be {size_of(one)}. Choose another alpha or number of members, or give "
                "the narrow network yourself (narrow=...)."
            )


def _check_options(ratio: float, groups: int) -> None:
    if not (math.isfinite(ratio) and ratio > 0):
        raise OptionError(f"ratio must be a number above 0 (new width over old width); got {ratio}.")
    if groups < 1:
        raise OptionError(f"groups (gamma) must be at least 1; got {groups}.")


def _cheapest(
    network: nn.Module,
    found: Probe,
    system: System,
    ratio: float,
    heads: Heads,
    tolerance: float,
) -> tuple[Chosen, Bound]:
    """Widths within the tolerance, or the nearest: where scaled heads stand in the way, their number is kept."""
    policies: list[str] = [heads]
    if heads == "round" and system.widths & system.heads:
        policies.append("keep")
    found_widths: list[tuple[Chosen, Bound]] = []
    problem: ConversionError | None = None
    for policy in policies:
        try:
            chosen = choose(found, system, ratio, policy)
            bound = measure(network, found, system, chosen, ratio)
        except ConversionError as refused:
            problem = problem or refused
            continue
        if bound.excess <= tolerance:
            return chosen, bound
        found_widths.append((chosen, bound))
    if not found_widths:
        assert problem is not None
        raise problem
    return min(found_widths, key=lambda pair: pair[1].excess)
