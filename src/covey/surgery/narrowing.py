"""A network of the same architecture with other hidden widths.

    small = narrow(network, 0.5, x)        # half of every hidden width; inputs and outputs as before
    small.network                          # a plain network
    apply_edits(network, small.edits)      # the same again, without x

No architecture is known here: which axes go together is read off the equations between sizes that one run on
symbols gives (see `symbols`), solved for the new widths (see `sizes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from covey.errors import ConversionError, OptionError
from covey.surgery.edits import Edits, apply_edits, known_attributes
from covey.surgery.probe import Probe, failure, probe
from covey.surgery.sizes import System, choose, eliminate, hard_coded, new_size
from covey.surgery.slices import Channels, channels
from covey.surgery.subgroups import add_subgroups
from covey.surgery.symbols import Size, as_int, expression

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
    rounded: dict[str, tuple[int, float, int]]
    channels: Channels


def narrow(
    network: nn.Module,
    ratio: float,
    example: Any,
    *,
    groups: int = 1,
    heads: Heads = "round",
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
        output: picks the answer out of what the network returns; its sizes stay.

    Raises:
        ConversionError: the network's code fixes a width, no widths satisfy what must divide, or the narrow
            network does not run; the message names tensor, module and line.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        raise OptionError(f"ratio must be a number above 0 (new width over old width); got {ratio}.")
    if groups < 1:
        raise OptionError(f"groups (gamma) must be at least 1; got {groups}.")
    args, kwargs = as_inputs(example)
    found = probe(network, args, kwargs, output)
    system = eliminate(found)
    fixed = hard_coded(found, system)
    if fixed is not None and ratio != 1:
        name, where = fixed
        raise ConversionError(
            f"The width of '{name}' is written as a number in the network's code ({where}); "
            "read it from a tensor's shape or an attribute instead, or give the narrow network yourself (narrow=...)."
        )
    chosen = choose(found, system, ratio, heads)

    def size_of(size: Size) -> int:
        return new_size(system, size, chosen)

    edits = _edits(network, found, size_of)
    small = apply_edits(network, edits)
    _finish_attributes(small, network, edits)
    if groups > 1:
        small = add_subgroups(network, small, edits, args, kwargs, groups)
    check_runs(small, network, args, kwargs, output)
    rounded = _rounded(found, system, chosen, size_of, ratio)
    return Narrowed(small, edits, rounded, channels(found, system, size_of))


def as_inputs(example: Any) -> tuple[tuple, dict[str, Any]]:
    """Positional and keyword inputs out of an example: a tensor, a tuple, or a dict."""
    if isinstance(example, dict):
        return (), example
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if not isinstance(example, Tensor):
        raise OptionError(
            f"example must be a tensor, a tuple or a dict of inputs; got {type(example).__name__}."
        )
    return (example,), {}


def check_runs(
    small: nn.Module,
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Callable[[Any], Any] | None = None,
) -> None:
    """Check that the narrow network ties what the original ties, and answers in the same shape at two batch sizes."""
    _check_ties(small, network)
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()]
    batch = leaves[0].shape[0] if leaves else 0
    for wanted in (batch, batch + 1):
        inputs = tree_map(lambda leaf, n=wanted: _with_batch(leaf, batch, n), (args, kwargs))
        try:
            expected = _shapes(network, inputs, output)
        except Exception:
            continue  # the original cannot do it either
        try:
            got = _shapes(small, inputs, output)
        except Exception as problem:
            place = failure(problem, {id(module): name for name, module in small.named_modules()})
            raise ConversionError(
                f"The narrow network fails at batch size {wanted}"
                f"{f' in {place}' if place else ''}: {type(problem).__name__}: {problem}. The network's code may fix a "
                "width there; give the narrow network yourself (narrow=...)."
            ) from problem
        if got != expected:
            raise ConversionError(
                f"The narrow network answers with shapes {got}; the original's are {expected}."
            )


def _edits(network: nn.Module, found: Probe, size_of: Callable[[Size], int]) -> Edits:
    tensors = {}
    for name, sizes in found.tensors.items():
        shape = [size_of(size) for size in sizes]
        if shape != [as_int(size) for size in sizes]:
            tensors[name] = shape
    attributes: dict[str, dict[str, Any]] = {}
    for (path, name), held in found.attributes.items():
        each = held if isinstance(held, tuple) else (held,)
        new = [size_of(size) for size in each]
        if new != [as_int(size) for size in each]:
            attributes.setdefault(path, {})[name] = new if isinstance(held, tuple) else new[0]
    for path, exprs in found.recorder.seen.items():
        module = network.get_submodule(path)
        for name, value in vars(module).items():
            scaled = _rescaled(value, exprs, found, size_of) if isinstance(value, float) else None
            if scaled is not None:
                attributes.setdefault(path, {})[name] = scaled
    return {"tensors": tensors, "attributes": attributes}


def _rescaled(value: float, exprs: set, found: Probe, size_of: Callable[[Size], int]) -> float | None:
    """A float like head_dim ** -0.5, for the new head_dim; None if it is no root of a size in the module's views."""
    for expr in sorted(exprs, key=str):
        old = int(expr.xreplace(found.recorder.sizes))
        for power in (-0.5, 0.5):
            if old > 1 and math.isclose(value, old**power, rel_tol=1e-9):
                new = size_of(expr)
                return None if new == old else new**power
    return None


def _finish_attributes(small: nn.Module, network: nn.Module, edits: Edits) -> None:
    """Bring what PyTorch's layers say about themselves in line with their tensors."""
    for path, module in small.named_modules():
        for name, value in known_attributes(module).items():
            if getattr(module, name) != value:
                setattr(module, name, value)
            if value != getattr(network.get_submodule(path), name):
                edits["attributes"].setdefault(path, {})[name] = value


def _rounded(
    found: Probe, system: System, chosen: dict, size_of: Callable[[Size], int], ratio: float
) -> dict[str, tuple[int, float, int]]:
    """Sizes that differ from what they would be if every free width were exactly ratio x the original's."""
    scaled = {**system.original, **{symbol: ratio * system.original[symbol] for symbol in chosen}}
    rows: dict[str, tuple[int, float, int]] = {}
    items = [
        (f"{name} (axis {axis})", size)
        for name, sizes in found.tensors.items()
        for axis, size in enumerate(sizes)
    ]
    items += [
        (f"{p}.{n}" if p else n, size)
        for (p, n), size in found.attributes.items()
        if not isinstance(size, tuple)
    ]
    for label, size in items:
        wanted = float(system.resolve(expression(size)).xreplace(scaled))
        if abs(size_of(size) - wanted) > 1e-6:
            rows[label] = (as_int(size), wanted, size_of(size))
    return rows


def _check_ties(small: nn.Module, network: nn.Module) -> None:
    def ties(module: nn.Module) -> set[frozenset[str]]:
        names: dict[int, set[str]] = {}
        for name, tensor in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), set()).add(name)
        return {frozenset(group) for group in names.values() if len(group) > 1}

    broken = ties(network) ^ ties(small)
    if broken:
        raise ConversionError(f"Narrowing broke the tie between {sorted(next(iter(broken)))}.")


def _with_batch(leaf: Any, batch: int, wanted: int) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != batch:
        return leaf
    return torch.cat([leaf, leaf[: wanted - batch]]) if wanted > batch else leaf[:wanted]


def _shapes(module: nn.Module, inputs: tuple[tuple, dict], output: Callable | None) -> list[tuple[int, ...]]:
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            answer = module(*inputs[0], **inputs[1])
    finally:
        for part, mode in modes.items():
            part.training = mode
    answer = output(answer) if output else answer
    return [tuple(leaf.shape) for leaf in tree_leaves(answer) if isinstance(leaf, Tensor)]
