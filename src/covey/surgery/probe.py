"""Runs a network on symbols: which sizes its tensors and attributes have, and which equations hold between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.layers import hollow
from covey.surgery.attributes import as_tuple, attribute_names, counts_groups, counts_heads
from covey.surgery.errors import TorchChangedError
from covey.surgery.functions import Shortcuts
from covey.surgery.operators import Facts, mark_data
from covey.surgery.recorder import Recorder, Size, expression
from covey.surgery.recurrent import recurrent_cell_forward, recurrent_forward
from covey.surgery.source import failure, module_names
from covey.surgery.torch_internals import (
    convolution_class,
    fake_tensors,
    leaves,
    map_leaves,
    plain_attention,
    watch_operators,
)

Output = Callable[[Any], Any] | None
AttributeSizes = Size | tuple[Size, ...]


@dataclass
class Probe:
    """What one run on symbols told about a network.

    Args:
        recorder: symbols and equations.
        tensors: sizes of parameters and buffers, by name.
        attributes: sizes that modules keep, by module path and attribute name.
        heads: symbols that count attention heads.
        groups: symbols that count groups of channels.
    """

    recorder: Recorder
    tensors: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], AttributeSizes] = field(default_factory=dict)
    heads: set[Any] = field(default_factory=set)
    groups: set[Any] = field(default_factory=set)


def probe(
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
) -> Probe:
    """Run `network` once with symbolic sizes and return what was learnt.

    Args:
        network: any network; it is copied without its tensors and left alone.
        args: positional inputs, with their real shapes.
        kwargs: inputs by keyword.
        output: picks the answer out of what the network returns; its sizes stay.
    """
    try:
        return _probe(network, args, kwargs, output, users_numbers=True)
    except TorchChangedError:
        raise
    except Exception as problem:
        # A module may insist that its numbers are plain ints; then they are, and count as written in its code.
        try:
            return _probe(network, args, kwargs, output, users_numbers=False)
        except Exception:
            raise problem from None


def _probe(
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output,
    users_numbers: bool,
) -> Probe:
    skeleton = hollow(network).eval()
    recorder = Recorder(module_names(skeleton))
    found = Probe(recorder)
    fake = fake_tensors(recorder.environment)
    facts = Facts(recorder)
    _put_symbols_into_attributes(skeleton, found, users_numbers)
    _replace_recurrent_forwards(skeleton, recorder)
    with fake:
        tensors = _symbolic_tensors(skeleton, found)
        symbolic = partial(_symbolic_input, recorder=recorder)
        args, kwargs = map_leaves(symbolic, (args, kwargs))
    try:
        # Functions reach Shortcuts first, operators Facts, and the fake tensors what neither answers.
        with torch.no_grad(), plain_attention(), fake, watch_operators(facts.observe), Shortcuts(recorder):
            answer = torch.func.functional_call(skeleton, tensors, args, kwargs)
            answer = output(answer) if output else answer
    except TorchChangedError:
        raise
    except Exception as problem:
        raise _cannot_run(problem, recorder) from problem
    _fix_answer(answer, recorder)
    return found


def _cannot_run(problem: Exception, recorder: Recorder) -> ConversionError:
    first_line, _, _ = str(problem).partition("\n")
    reason = f"{type(problem).__name__}: {first_line}"
    place = failure(problem, recorder.modules)
    at = f" ({place})" if place else ""
    return ConversionError(
        f"The network cannot be run on symbolic sizes, so its widths are not known: {reason}{at}. "
        "Give the narrow network yourself (narrow=...)."
    )


def _fix_answer(answer: Any, recorder: Recorder) -> None:
    """Sizes of the answer stay as they are: they are tied to sizes that the input decides."""
    for leaf in leaves(answer):
        if not isinstance(leaf, Tensor):
            continue
        for size in leaf.shape:
            if isinstance(size, torch.SymInt):
                recorder.equate(size, recorder.from_data(size))


# --- symbols in the place of sizes -------------------------------------------------------------------------------


def _put_symbols_into_attributes(skeleton: nn.Module, found: Probe, users_numbers: bool) -> None:
    for path, module in skeleton.named_modules():
        for name in list(attribute_names(module, users_numbers)):
            value = vars(module)[name]
            sizes = _symbols_for(path, name, value, found)
            if isinstance(value, tuple | list):
                found.attributes[path, name] = sizes
                vars(module)[name] = type(value)(sizes)
            else:
                found.attributes[path, name] = sizes[0]
                vars(module)[name] = sizes[0]


def _symbols_for(
    path: str,
    name: str,
    value: Any,
    found: Probe,
) -> tuple[Size, ...]:
    """A symbol for each number of an attribute, entered among heads or groups by the attribute's name."""
    label = f"{path}.{name}" if path else name
    make = partial(found.recorder.symbol, label=label)
    sizes = tuple(map(make, as_tuple(value)))
    counts: set[Any] = set()
    if counts_heads(name):
        counts = found.heads
    elif counts_groups(name):
        counts = found.groups
    for size in sizes:
        if isinstance(size, torch.SymInt):
            counts.add(expression(size))
    return sizes


def _replace_recurrent_forwards(skeleton: nn.Module, recorder: Recorder) -> None:
    for module in skeleton.modules():
        if isinstance(module, nn.RNNBase):
            vars(module)["forward"] = recurrent_forward(module, recorder)
        elif isinstance(module, nn.RNNCellBase):
            vars(module)["forward"] = recurrent_cell_forward(module, recorder)


def _symbolic_tensors(skeleton: nn.Module, found: Probe) -> dict[str, Tensor]:
    """A tensor of symbolic size for every name; tied names get the same one."""
    made: dict[int, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    named = [
        *skeleton.named_parameters(remove_duplicate=False),
        *skeleton.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        if id(tensor) not in made:
            made[id(tensor)] = _symbolic_tensor(skeleton, name, tensor, found.recorder)
        twin = made[id(tensor)]
        tensors[name] = twin
        found.tensors[name] = tuple(twin.shape)
    return tensors


def _symbolic_tensor(
    skeleton: nn.Module,
    name: str,
    tensor: Tensor,
    recorder: Recorder,
) -> Tensor:
    owner = skeleton.get_submodule(name.rpartition(".")[0])
    is_convolution = isinstance(owner, convolution_class())
    sizes: list[Size] = []
    for axis, size in enumerate(tensor.shape):
        if is_convolution and axis >= 2:  # the kernel's size
            sizes.append(size)
        else:
            sizes.append(recorder.symbol(size, f"{name} (axis {axis})"))
    return torch.empty(sizes, dtype=tensor.dtype, device="cpu")


def _symbolic_input(leaf: Any, recorder: Recorder) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    sizes = [recorder.from_data(size) for size in leaf.shape]
    return mark_data(torch.empty(sizes, dtype=leaf.dtype, device="cpu"))
