"""Runs a network on symbols: which sizes its tensors and attributes have, and which equations hold between them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from covey.errors import ConversionError
from covey.surgery.rules import Facts, Shortcuts, mark_data, recurrent_cell_forward, recurrent_forward
from covey.surgery.symbols import Recorder, Size, Where, user_line

# What the forward of PyTorch's own layers reads besides tensors. A user's module may read any of its numbers.
_READ: dict[type[nn.Module], tuple[str, ...]] = {
    nn.modules.conv._ConvNd: ("groups",),
    nn.GroupNorm: ("num_groups",),
    nn.LayerNorm: ("normalized_shape",),
    nn.RMSNorm: ("normalized_shape",),
    nn.MultiheadAttention: ("num_heads", "embed_dim", "head_dim"),
    nn.RNNBase: ("input_size", "hidden_size", "proj_size"),
    nn.RNNCellBase: ("input_size", "hidden_size"),
    nn.Unflatten: ("unflattened_size",),
}
_HEADS = re.compile(r"(?<!per_)heads?(?!.*(dim|size|width|channel|feature|chan))", re.IGNORECASE)
_GROUPS = re.compile(r"groups?$", re.IGNORECASE)

AttributeSizes = Size | tuple[Size, ...]


@dataclass
class Probe:
    """Sizes of tensors (by name) and attributes (by module path and name), in symbols."""

    recorder: Recorder
    tensors: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], AttributeSizes] = field(default_factory=dict)
    heads: set[Any] = field(default_factory=set)
    groups: set[Any] = field(default_factory=set)


def probe(
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Callable[[Any], Any] | None = None,
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
    except Exception as problem:
        # A module may insist that its numbers are plain ints; then they are, and count as written in its code.
        try:
            return _probe(network, args, kwargs, output, users_numbers=False)
        except Exception:
            raise problem from None


def without_tensors(network: nn.Module) -> nn.Module:
    """A deep copy whose tensors have shapes but no storage; ties are kept."""
    memo: dict[int, Any] = {}
    for tensor in [*network.parameters(), *network.buffers()]:
        twin = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    return copy.deepcopy(network, memo)


def _probe(
    network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Callable | None, users_numbers: bool
) -> Probe:
    skeleton = without_tensors(network).eval()
    recorder = Recorder({id(module): name for name, module in skeleton.named_modules()})
    found = Probe(recorder)
    fake = FakeTensorMode(shape_env=recorder, allow_non_fake_inputs=True)
    fake.cache_enabled = False
    _symbols_for_attributes(skeleton, found, users_numbers)
    with fake:
        tensors = _symbols_for_tensors(skeleton, found)
        args, kwargs = tree_map(lambda leaf: _symbolic_input(leaf, recorder), (args, kwargs))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), fake, Facts(recorder), Shortcuts(recorder):
            answer = torch.func.functional_call(skeleton, tensors, args, kwargs)
            answer = output(answer) if output else answer
    except Exception as problem:
        place = failure(problem, recorder.modules)
        raise ConversionError(
            f"The network cannot be run on symbolic sizes, so its widths are not known: "
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            f"{f' ({place})' if place else ''}. Give the narrow network yourself (narrow=...)."
        ) from problem
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    for leaf in tree_leaves(answer):
        if isinstance(leaf, Tensor):
            for size in leaf.shape:
                if isinstance(size, torch.SymInt):
                    recorder.equate(size, recorder.from_data(size))
    return found


def failure(problem: BaseException, modules: dict[int, str]) -> Where | None:
    """Where in the network's own code an exception was raised."""
    trace, frame = problem.__traceback__, None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return user_line(modules, frame) if frame else None


def attribute_names(module: nn.Module, users_numbers: bool = True) -> Iterator[str]:
    """The attributes of a module whose whole numbers (or tuples of them) its forward may read."""
    of_torch: set[str] = set()
    for kind, names in _READ.items():
        if isinstance(module, kind):
            yield from (name for name in names if name in vars(module))
    mine = type(module).__module__.startswith("torch.nn")
    if mine or not users_numbers:
        return
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.nn"):
            of_torch.update(getattr(kind, "__constants__", ()), vars(kind).get("__annotations__", ()))
    for name, value in vars(module).items():
        numbers = value if isinstance(value, tuple | list) else (value,)
        whole = bool(numbers) and all(type(number) is int for number in numbers)
        if whole and not name.startswith("_") and name not in of_torch:
            yield name


def _symbols_for_attributes(skeleton: nn.Module, found: Probe, users_numbers: bool) -> None:
    rec = found.recorder
    for path, module in skeleton.named_modules():
        for name in list(attribute_names(module, users_numbers)):
            value = vars(module)[name]
            label = f"{path}.{name}" if path else name
            numbers = value if isinstance(value, tuple | list) else (value,)
            sizes = tuple(rec.symbol(number, label) if number > 1 else number for number in numbers)
            counts = found.heads if _HEADS.search(name) else found.groups if _GROUPS.search(name) else set()
            counts.update(size.node.expr for size in sizes if isinstance(size, torch.SymInt))
            found.attributes[path, name] = sizes if isinstance(value, tuple | list) else sizes[0]
            vars(module)[name] = type(value)(sizes) if isinstance(value, tuple | list) else sizes[0]
        if isinstance(module, nn.RNNBase):
            vars(module)["forward"] = recurrent_forward(module, rec)
        elif isinstance(module, nn.RNNCellBase):
            vars(module)["forward"] = recurrent_cell_forward(module, rec)


def _symbols_for_tensors(skeleton: nn.Module, found: Probe) -> dict[str, Tensor]:
    made: dict[int, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    named = [
        *skeleton.named_parameters(remove_duplicate=False),
        *skeleton.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        path = name.rpartition(".")[0]
        kernel = 2 if isinstance(skeleton.get_submodule(path), nn.modules.conv._ConvNd) else tensor.dim()
        if id(tensor) not in made:
            sizes = [
                found.recorder.symbol(size, f"{name} (axis {axis})") if axis < kernel else size
                for axis, size in enumerate(tensor.shape)
            ]
            made[id(tensor)] = torch.empty(sizes, dtype=tensor.dtype, device="cpu")
        tensors[name] = made[id(tensor)]
        found.tensors[name] = tuple(tensors[name].shape)
    return tensors


def _symbolic_input(leaf: Any, recorder: Recorder) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return mark_data(
        torch.empty([recorder.from_data(size) for size in leaf.shape], dtype=leaf.dtype, device="cpu")
    )
