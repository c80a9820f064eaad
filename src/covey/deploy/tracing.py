"""A network as a graph of plain tensor operations, with any batch size; or the line that stands in the way."""

from __future__ import annotations

import inspect
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.fx import Graph, Node

import covey
from covey.errors import ConversionError, OptionError
from covey.networks.calls import Arguments, Output, arguments, pick

_LOUD = ("torch._guards", "torch._subclasses.fake_tensor", "torch.export._trace")
"""Parts of torch that log pages of their own stack before an error is raised."""

_OWN_PLACES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, covey))


@dataclass(frozen=True)
class Example:
    """An input of two samples or more, in the order of the network's arguments.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        names: a name for each tensor in them.
        tensors: those tensors.
        any_length: whether sequences may have another length than these.
    """

    args: tuple
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    any_length: bool = False

    @property
    def batch(self) -> int:
        """How many samples there are."""
        return len(self.tensors[0])

    def is_batched(self, tensor: Any) -> bool:
        """Whether an argument has a row for each sample."""
        return isinstance(tensor, Tensor) and tensor.ndim > 0 and len(tensor) == self.batch

    def is_sequence(self, tensor: Any) -> bool:
        """Whether an argument has steps along its second axis: tokens (B, T), or vectors (B, T, D)."""
        return self.is_batched(tensor) and tensor.ndim == (3 if tensor.is_floating_point() else 2)

    @property
    def lengths(self) -> list[int]:
        """Those of the sequences in it."""
        return [tensor.shape[1] for tensor in self.tensors if self.is_sequence(tensor)]

    def free_axes(self, tensor: Tensor) -> dict[int, Any]:
        """The axes of an argument that may have any size, as torch.export takes them."""
        if not self.is_batched(tensor):
            return {}
        free: dict[int, Any] = {0: Dim("batch", min=1)}
        if self.any_length and self.is_sequence(tensor):
            free[1] = Dim.AUTO  # torch finds out how long it may be
        return free

    def shape(self, tensor: Tensor) -> list[int | str]:
        """The shape of an argument, with names for the axes that may have any size."""
        free = dict(zip(self.free_axes(tensor), ("batch", "length"), strict=False))
        return [free.get(axis, size) for axis, size in enumerate(tensor.shape)]

    def of_length(self, length: int) -> Example:
        """The same with sequences of another length: their beginnings, or with their beginnings once more."""

        def own(tensor: Tensor) -> Tensor:
            return torch.cat([tensor] * 2, 1)[:, :length] if self.is_sequence(tensor) else tensor

        return self.changed(own)

    def first(self, count: int) -> Example:
        """The first so many samples."""
        return self.changed(lambda tensor: tensor[:count])

    def changed(self, rows: Callable[[Tensor], Tensor]) -> Example:
        """The same with other rows of every argument that has one for each sample."""

        def own(value: Any) -> Any:
            return rows(value) if self.is_batched(value) else value

        args = tuple(map(own, self.args))
        kwargs = {name: own(value) for name, value in self.kwargs.items()}
        tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        return Example(args, kwargs, self.names, tensors, self.any_length)

    @staticmethod
    def of(network: nn.Module, example: Any) -> Example:
        """An example as users give it: a tensor, a tuple of positional or a dict of keyword arguments."""
        args, kwargs = _two_samples(arguments(example))
        names = _names(network, args)
        given = dict(zip(names, args, strict=True)) | kwargs
        found = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        for name, value in given.items():
            if isinstance(value, list | tuple | Mapping):
                raise OptionError(
                    f"the example's argument {name!r} is a {type(value).__name__}; an exported network takes tensors, "
                    "each an argument of its own."
                )
        if not found:
            raise OptionError("the example holds no tensor; give an input as the network takes it.")
        for name, value in found.items():
            if not value.numel():
                raise OptionError(
                    f"the example's {name!r} is empty, of shape {tuple(value.shape)}; give at least one sample."
                )
        return Example(args, kwargs, tuple(found), tuple(found.values()))


def _two_samples(given: Arguments) -> Arguments:
    """The same with one sample twice: torch takes a batch of one for a number that never changes."""
    args, kwargs = given
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    if first is None or first.ndim == 0 or len(first) != 1:
        return given

    def doubled(value: Any) -> Any:
        is_sample = isinstance(value, Tensor) and value.ndim > 0 and len(value) == 1
        return torch.cat([value, value]) if is_sample else value

    return tuple(map(doubled, args)), {name: doubled(value) for name, value in kwargs.items()}


def _names(network: nn.Module, args: tuple) -> list[str]:
    """The names under which a network takes its positional arguments."""
    known = []
    for name, parameter in inspect.signature(network.forward).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            known.append(name)
    known += [f"input_{i}" for i in range(len(known), len(args))]
    if "x" in known:
        return known[: len(args)]
    # torch's containers call it `input`, which is what everybody calls x
    return ["x" if name == "input" else name for name in known[: len(args)]]


def trace(network: nn.Module, example: Example) -> ExportedProgram:
    """The network in its present mode as a graph of functional operations, for any batch size."""
    shapes = ShapesCollection()
    for tensor in example.tensors:
        if free := example.free_axes(tensor):
            shapes[tensor] = free
    with quiet(), torch.no_grad():
        try:
            return _exported(network, example, shapes, strict=False)
        except Exception as first:
            # Python's own len() of a tensor, and the like, are only seen by torch's stricter way of tracing
            try:
                return _exported(network, example, shapes, strict=True)
            except Exception:
                raise _untraceable(first) from first


def _exported(
    network: nn.Module, example: Example, shapes: ShapesCollection, *, strict: bool
) -> ExportedProgram:
    sizes: Any = shapes  # which torch takes, and does not say so
    program = torch.export.export(network, example.args, example.kwargs, dynamic_shapes=sizes, strict=strict)
    # functional operations alone; it takes as long as tracing, and most networks write nothing in place
    functional = program if all(map(_is_plain, program.graph.nodes)) else program.run_decompositions({})
    moved = functional.graph_signature.buffers_to_mutate
    if moved:
        name = next(iter(moved.values()))
        raise ConversionError(
            f"the network changes its buffer {name!r} in eval mode, which a deployed network cannot. Freeze it."
        )
    return functional


def _is_plain(node: Node) -> bool:
    """Whether an operation writes nothing in place and draws nothing."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return True
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not node.target._schema.is_mutable and not is_random and "dropout" not in node.target.__name__


def _untraceable(error: Exception) -> ConversionError:
    """Says what stands in the way, with the line of the user's code."""
    if isinstance(error, ConversionError):
        return error
    said = " ".join(str(error).split())[:300]
    fixed = "specialized it to be a constant" in said
    what = f"{type(error).__name__}: {said}"
    if fixed:
        what = "its code fixes the batch size, or an argument that is no batch has as many rows as there are samples"
    where = _line(error)
    place = f" at {where}" if where else ""
    return ConversionError(
        f"the network cannot be traced{place}: {what}. A deployed network is a graph of tensor operations: no choice "
        "may depend on a tensor's values, and sizes are read with x.shape, not remembered."
    )


def _line(error: BaseException) -> str:
    """The last line of code outside torch and covey that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*_OWN_PLACES, "<")):
            return f"{frame.filename}, line {frame.lineno}: {frame.line}"
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that torch's tracer gives about its own insides."""
    logs = [logging.getLogger(name) for name in _LOUD]
    were = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*_flat_weights.*")
            yield
    finally:
        for log, was in zip(logs, were, strict=True):
            log.disabled = was


def inlined(
    program: ExportedProgram,
    graph: Graph,
    known: dict[Node, Node],
    replaced: Callable[[Node, dict[Node, Node]], Node | None],
    output: Output,
) -> Node:
    """Copy a traced network's operations into another graph; the node of its answer.

    Args:
        program: the network.
        graph: to add to.
        known: for each of the program's placeholders, what stands for it in the graph.
        replaced: what stands for an operation, where that is not the operation itself.
        output: which part of what the network returns is the answer.
    """
    mapped = dict(known)
    for node in program.graph.nodes:
        if node.op == "output":
            return mapped[node.args[0][_position(program, output)]]
        if node.op != "placeholder":
            mapped[node] = replaced(node, mapped) or graph.node_copy(node, lambda old: mapped[old])
    raise AssertionError("a graph without an output")


def _position(program: ExportedProgram, output: Output) -> int:
    """Which of all that a traced network returns is the answer."""
    structure = program.call_spec.out_spec
    assert structure is not None
    numbers = [torch.tensor(position) for position in range(structure.num_leaves)]
    return int(pick(structure.unflatten(numbers), output))
