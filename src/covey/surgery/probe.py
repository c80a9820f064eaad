"""Runs a network on symbols: which sizes its tensors and attributes have, and which equations hold between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.copies import hollow
from covey.surgery.attributes import as_tuple, attributes, counts_groups, counts_heads
from covey.surgery.errors import TorchChangedError
from covey.surgery.functions import Following
from covey.surgery.operators import Facts
from covey.surgery.recorder import Recorder
from covey.surgery.recurrent import recurrent_cell_forward, recurrent_forward
from covey.surgery.sizes import Size, Sizes, mark, mark_data, mark_learnt, sizes_of
from covey.surgery.source import failure, module_names
from covey.surgery.torch_internals import (
    convolution_class,
    fake_tensors,
    leaves,
    map_leaves,
    needs_values,
    plain_attention,
    unchecked_distributions,
    watch_operators,
)

Output = Callable[[Any], Any] | None
AttributeSizes = int | Sizes


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
    tensors: dict[str, Sizes] = field(default_factory=dict)
    attributes: dict[tuple[str, str], AttributeSizes] = field(default_factory=dict)
    heads: set[Any] = field(default_factory=set)
    groups: set[Any] = field(default_factory=set)


def probe(
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
    *,
    in_training: bool = False,
) -> Probe:
    """Run `network` once with symbolic sizes and return what was learnt.

    Args:
        network: any network; it is copied without its tensors and left alone.
        args: positional inputs, with their real shapes.
        kwargs: inputs by keyword.
        output: picks the answer out of what the network returns; its sizes stay.
        in_training: whether to run it in train mode too, where it does something else than in eval mode.
    """
    skeleton = hollow(network)
    recorder = Recorder(module_names(skeleton))
    found = Probe(recorder)
    facts = Facts(recorder)
    fake = fake_tensors()
    _put_symbols_into_attributes(skeleton, found)
    _replace_recurrent_forwards(skeleton, recorder)
    with fake:
        tensors = _marked_tensors(skeleton, found)
        args, kwargs = map_leaves(partial(_marked_input, recorder=recorder), (args, kwargs))
    answers: list[Any] = []
    try:
        # Functions reach Following first, operators Facts, and the fake tensors run them.
        watching = watch_operators(facts.observe)
        with torch.no_grad(), plain_attention(), unchecked_distributions(), fake, watching, Following(facts):
            recorder.is_listening = True
            for mode in (False, True) if in_training else (False,):
                # every name is given, those of ties too, so that torch need not look for them
                answer = torch.func.functional_call(
                    skeleton.train(mode), tensors, args, kwargs, tie_weights=False
                )
                answers.append(output(answer) if output else answer)
    except TorchChangedError:
        raise
    except Exception as problem:
        raise _cannot_run(problem, recorder) from problem
    finally:
        recorder.is_listening = False
    _fix_answers(answers, recorder)
    return found


def _cannot_run(problem: Exception, recorder: Recorder) -> ConversionError:
    first_line, _, _ = str(problem).partition("\n")
    reason = f"{type(problem).__name__}: {first_line}"
    if needs_values(problem):
        reason = "the network decides by the values of its data, and it is run without any"
    place = failure(problem, recorder.modules)
    at = f" ({place})" if place else ""
    return ConversionError(
        f"The network cannot be run on sizes alone, so its widths are not known: {reason}{at}. "
        "Give the narrow network yourself (narrow=...)."
    )


def _fix_answers(answers: list[Any], recorder: Recorder) -> None:
    """Sizes of answers stay as they are: they are tied to sizes that the input decides."""
    for leaf in leaves(answers):
        if not isinstance(leaf, Tensor):
            continue
        for size in sizes_of(leaf):
            if isinstance(size, Size):
                recorder.equate(size, recorder.from_data(size))


# --- symbols in the place of sizes -------------------------------------------------------------------------------


def _put_symbols_into_attributes(skeleton: nn.Module, found: Probe) -> None:
    met: set[int] = set()
    for path, module in skeleton.named_modules():
        for held in list(attributes(module, met)):
            sizes = _symbols_for(path, held.name, held.value, found)
            if isinstance(held.value, tuple | list):
                found.attributes[path, held.name] = sizes
                held.place[held.key] = _sequence(held.value, sizes)
            else:
                found.attributes[path, held.name] = sizes[0]
                held.place[held.key] = sizes[0]


def _sequence(like: Any, sizes: Sizes) -> Any:
    """Sizes in a tuple or list of the same kind; named tuples take their values one by one."""
    if hasattr(like, "_fields"):
        return type(like)(*sizes)
    return type(like)(sizes)


def _symbols_for(
    path: str,
    name: str,
    value: Any,
    found: Probe,
) -> Sizes:
    """A symbol for each number of an attribute, entered among heads or groups by the attribute's name."""
    label = f"{path}.{name}" if path else name
    make = partial(found.recorder.symbol, label=label)
    sizes = tuple(map(make, as_tuple(value)))
    counts: set[Any] = set()
    short = name.rpartition(".")[2]
    if counts_heads(short):
        counts = found.heads
    elif counts_groups(short):
        counts = found.groups
    for size in sizes:
        if isinstance(size, Size):
            counts.add(size.formula)
    return sizes


def _replace_recurrent_forwards(skeleton: nn.Module, recorder: Recorder) -> None:
    for module in skeleton.modules():
        if isinstance(module, nn.RNNBase):
            vars(module)["forward"] = recurrent_forward(module, recorder)
        elif isinstance(module, nn.RNNCellBase):
            vars(module)["forward"] = recurrent_cell_forward(module, recorder)


def _marked_tensors(skeleton: nn.Module, found: Probe) -> dict[str, Tensor]:
    """A tensor with symbols for its sizes under every name; tied names get the same one."""
    made: dict[int, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    named = [
        *skeleton.named_parameters(remove_duplicate=False),
        *skeleton.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        if id(tensor) not in made:
            made[id(tensor)] = _marked_tensor(skeleton, name, tensor, found.recorder)
        twin = made[id(tensor)]
        tensors[name] = twin
        found.tensors[name] = sizes_of(twin)
    return tensors


def _marked_tensor(
    skeleton: nn.Module,
    name: str,
    tensor: Tensor,
    recorder: Recorder,
) -> Tensor:
    owner = skeleton.get_submodule(name.rpartition(".")[0])
    is_convolution = isinstance(owner, convolution_class())
    sizes: list[int] = []
    for axis, size in enumerate(tensor.shape):
        if is_convolution and axis >= 2:  # the kernel's size
            sizes.append(size)
        else:
            sizes.append(recorder.symbol(size, f"{name} (axis {axis})"))
    twin = mark(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), sizes)
    return mark_learnt(twin) if isinstance(tensor, nn.Parameter) else twin


def _marked_input(leaf: Any, recorder: Recorder) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    sizes = [recorder.from_data(size) for size in leaf.shape]
    twin = torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu")
    return mark_data(mark(twin, sizes))
