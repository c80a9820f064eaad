"""Follow the data through one forward pass of a network.

A `Trace` is the list of operations that one call of the network ran, each with the values it read and
wrote. Parameters, buffers and inputs are named values. Everything covey wants to know about a network's
wiring is a walk over that list: which layer answers (the head), which one sees the input first (the
stem), what is computed before any member tensor is used (the prefix), and whether anything is random.
Values that go on in Python or numpy are lost sight of there; what comes back later may hold any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from covey.networks.constants import kept_tensors
from covey.seeds import random_states

# Operations that multiply data by a weight: what one would call a layer. Matched on the operator's name.
_LAYERS = ("mm", "linear", "matmul", "conv", "embedding", "rnn", "lstm", "gru", "einsum", "cdist", "bilinear")
# Operations that read the shape and type of a tensor, and nothing of what is in it.
_SHAPES = (
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
)
_FROM_PYTHON = "from Python"
# Functions that hand a tensor's values to Python; `item` and the like are operations.
_TO_PYTHON = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__}
_ONCE = "embedding_renorm"  # changes a weight in place, and nothing when it is done again


@dataclass
class _Op:
    name: str
    reads: frozenset[int]
    writes: tuple[int, ...]
    random: bool = False
    leaves: bool = False  # whether values went on in Python, which may compute or decide by them


@dataclass
class Trace:
    """What one forward pass did.

    Args:
        ops: the operations in the order they ran.
        names: the name of each value that is a parameter or buffer.
        learnt: the names of parameters among them.
        inputs: the values given to the network.
        outputs: the values of the selected output.
        written: names of the parameters and buffers that were changed in place.
        rescaled: those among them that another call would change again. An embedding with `max_norm` is none.
        writes_inputs: whether an input was changed in place.
        kept: values of tensors that the network keeps in Python, each with the path to it.
        precision: the coarsest floating-point type that anything was computed in, if anything was.
        differentiated: names of those that a gradient was taken of on the way.
        own_generator: whether random numbers came from another generator than torch's own.
    """

    ops: list[_Op] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    learnt: set[str] = field(default_factory=set)
    inputs: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    rescaled: set[str] = field(default_factory=set)
    writes_inputs: bool = False
    kept: dict[int, str] = field(default_factory=dict)
    precision: torch.dtype | None = None
    differentiated: set[str] = field(default_factory=set)
    own_generator: bool = False

    @property
    def random(self) -> bool:
        """Whether any operation drew random numbers."""
        return any(op.random for op in self.ops)

    @property
    def answers_by_chance(self) -> bool:
        """Whether random numbers went into the output; those that only decide what is run do not count."""
        needed = set(self.outputs)
        for op in reversed(self.ops):
            if not needed.isdisjoint(op.writes):
                if op.random:
                    return True
                needed |= op.reads
        return False

    def head(self) -> set[str]:
        """Weights of the layers that give the output: walking back from it, the first on each path."""
        writer = {value: op for op in self.ops for value in op.writes}
        data, weights = self._data(), self._weights()
        found: set[str] = set()
        stack, seen = list(self.outputs), set(self.outputs)
        while stack:
            op = writer.get(stack.pop())
            if op is None:
                continue
            # a product with a constant, such as random features, is no layer that could be anybody's own
            used = self._layer_weights(op, data, weights) & self.learnt
            found |= used
            if not used:
                fresh = (op.reads & data) - seen
                seen |= fresh
                stack.extend(fresh)
        return found

    def stem(self) -> set[str]:
        """Weights of the layers that see the input first: those whose data went through no layer before."""
        data, weights = self._data(), self._weights()
        processed: set[int] = set()
        found: set[str] = set()
        for op in self.ops:
            used = self._layer_weights(op, data, weights) & self.learnt
            if op.reads & processed:
                processed.update(op.writes)
            elif used:
                found |= used
                processed.update(op.writes)
        return found

    def multiplied(self) -> set[str]:
        """Parameters that a layer multiplies data with, and not only adds or looks up."""
        data, weights = self._data(), self._weights()
        found: set[str] = set()
        for op in self.ops:
            found |= self._layer_weights(op, data, weights) & self.learnt
        return found

    def used(self) -> set[str]:
        """Named tensors that the output depends on."""
        needed = self._needed()
        return {name for value, name in self.names.items() if value in needed}

    def met(self) -> set[str]:
        """Named tensors that any operation read."""
        read = set().union(*(op.reads for op in self.ops))
        return {name for value, name in self.names.items() if value in read}

    def constants(self) -> set[str]:
        """Paths of tensors kept in Python that the output depends on."""
        needed = self._needed()
        return {path for value, path in self.kept.items() if value in needed}

    def _needed(self) -> set[int]:
        """Values that the output depends on."""
        needed = set(self.outputs)
        for op in reversed(self.ops):
            if not needed.isdisjoint(op.writes):
                needed |= op.reads
        return needed

    def touched(self, names: Iterable[str], *, random: bool = True) -> set[str]:
        """Named tensors that meet a value which depends on one of `names` (or, if asked, on chance).

        Those are the tensors after the first member tensor; every other buffer belongs to the shared prefix.
        """
        chosen = set(names)
        tainted = {value for value, name in self.names.items() if name in chosen}
        met: set[str] = set()
        weights = self._weights()
        left = False  # a value that depends on them went on in Python, and may be in everything from here on
        for op in self.ops:
            if left or op.reads & tainted or (random and op.random):
                left |= op.leaves
                tainted.update(op.writes)
                for value in op.reads:
                    met |= weights.get(value, set())
        return met

    def set_from_data(self) -> set[str]:
        """Parameters that were changed in place to what depends on the input, and would be again."""
        data = self._data()
        found = set()
        for op in self.ops:
            written = {self.names[value] for value in op.writes if value in self.names}
            if op.reads & data:
                found |= written & self.rescaled & self.learnt
        return found

    def _data(self) -> set[int]:
        """Values that depend on the network's input."""
        data = set(self.inputs)
        for op in self.ops:
            if op.reads & data and not any(name in op.name for name in _SHAPES):
                data.update(op.writes)
        return data

    def _weights(self) -> dict[int, set[str]]:
        """For each value made from parameters and buffers alone (views, casts, reparametrisations), which."""
        data = self._data()
        made: dict[int, set[str]] = {value: {name} for value, name in self.names.items()}
        for op in self.ops:
            if op.reads & data:
                continue
            origin = set().union(*(made.get(value, set()) for value in op.reads)) if op.reads else set()
            for value in op.writes:
                made.setdefault(value, set()).update(origin)
        return made

    @staticmethod
    def _layer_weights(op: _Op, data: set[int], weights: Mapping[int, set[str]]) -> set[str]:
        if not op.reads & data or not any(layer in op.name for layer in _LAYERS):
            return set()
        return set().union(*(weights.get(value, set()) for value in op.reads - data))


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace
        self._value: dict[int, int] = {}
        self._alive: list[Tensor] = []  # an id is only unique while its tensor lives
        self._sharing: dict[int, list[Tensor]] = {}
        self._left: set[int] = set()  # values that went on in Python
        self._count = 0

    def leave(self, tensor: Tensor) -> None:
        """Note that a tensor's values go on in Python."""
        reads = frozenset({self.value(tensor)})
        self._left |= reads
        self.trace.ops.append(_Op("to Python", reads, (), leaves=True))

    def differentiate(self, inputs: Any) -> None:
        """Note that a gradient is taken of these."""
        for leaf in tree_leaves(inputs):
            value = self._value.get(id(leaf))
            if value in self.trace.names:
                self.trace.differentiated.add(self.trace.names[value])

    def _note_new(self, tensor: Tensor) -> None:
        """Note a tensor that no operation made, and so may be made of values that went on in Python."""
        if self._left and id(tensor) not in self._value:
            self.trace.ops.append(_Op(_FROM_PYTHON, frozenset(self._left), (self.value(tensor),)))

    def value(self, tensor: Tensor) -> int:
        if id(tensor) not in self._value:
            self._alive.append(tensor)
            self._value[id(tensor)] = self._next()
            self._sharing.setdefault(_memory(tensor), []).append(tensor)
        return self._value[id(tensor)]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _overwrite(self, tensor: Tensor, by: str) -> int:
        """A tensor changed in place: it, and all that share its memory, hold a new value of the same name."""
        self.value(tensor)
        new = self._next()
        sharing = self._sharing.setdefault(_memory(tensor), [])
        if not any(alias is tensor for alias in sharing):  # it was resized, and has other memory than before
            sharing.append(tensor)
        for alias in sharing:
            old = self._value[id(alias)]
            if old in self.trace.names:
                self.trace.names[new] = self.trace.names[old]
                self.trace.written.add(self.trace.names[old])
                if _ONCE not in by:
                    self.trace.rescaled.add(self.trace.names[old])
            if old in self.trace.inputs:
                self.trace.inputs.add(new)
                self.trace.writes_inputs = True
            self._value[id(alias)] = new
        return new

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in given:
            self._note_new(tensor)
        reads = frozenset(self.value(tensor) for tensor in given)
        out, random = _watched(func, args, kwargs, given)
        leaves = isinstance(out, bool | int | float | complex)
        if leaves:
            self._left |= reads
        mutated = _mutated(func, args, kwargs)
        changed = {id(t) for t in mutated}
        written = [self._overwrite(t, str(func)) for t in mutated]
        written += [self.value(t) for t in tree_leaves(out) if isinstance(t, Tensor) and id(t) not in changed]
        self.trace.ops.append(_Op(str(func), reads, tuple(written), random, leaves))
        self._note_precision(out)
        self.trace.own_generator |= kwargs.get("generator") is not None
        return out

    def _note_precision(self, out: Any) -> None:
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                known = self.trace.precision
                if known is None or torch.finfo(leaf.dtype).eps > torch.finfo(known).eps:
                    self.trace.precision = leaf.dtype


class _Beside(TorchFunctionMode):
    """Tells the recorder of what is no operation: values go to Python, gradients are taken."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _TO_PYTHON:
            self.recorder.leave(args[0])
        elif func is torch.autograd.grad:
            self.recorder.differentiate((args[1:2], (kwargs or {}).get("inputs")))
        return func(*args, **(kwargs or {}))


def _watched(func: Any, args: tuple, kwargs: dict[str, Any], given: list[Tensor]) -> tuple[Any, bool]:
    """What an operator returns, and whether it drew random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return func(*args, **kwargs), False
    devices = {tensor.device for tensor in given}
    if kwargs.get("device") is not None:
        devices.add(torch.device(kwargs["device"]))
    before = random_states(devices)
    out = func(*args, **kwargs)
    drew = any(not torch.equal(old, new) for old, new in zip(before, random_states(devices), strict=True))
    return out, drew


def _memory(tensor: Tensor) -> int:
    """What tensors that share memory have in common; a tensor without memory shares with none."""
    has_memory = tensor.device.type != "meta" and tensor.layout == torch.strided and not tensor.is_nested
    address = tensor.untyped_storage().data_ptr() if has_memory else 0
    return address or -id(tensor)


def _mutated(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return [
        leaf
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(given.get(argument.name))
        if isinstance(leaf, Tensor)
    ]


def trace(
    network: nn.Module, args: tuple, kwargs: Mapping[str, Any], select: Callable[[Any], Tensor]
) -> Trace:
    """Run `select(network(*args, **kwargs))` once, without gradients, and return what it did.

    Buffers may change as in any forward pass: give a copy of the network.
    """
    result = Trace()
    recorder = _recorder_of(network, result)
    for path, found in kept_tensors(network).items():
        assert isinstance(found.value, Tensor)
        result.kept[recorder.value(found.value)] = path
    result.inputs = {recorder.value(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
    with torch.no_grad(), _Beside(recorder), recorder:
        out = select(network(*args, **kwargs))
        result.outputs = {recorder.value(out)}
    return result


def used_by(network: nn.Module, function: Callable[[], Any]) -> set[str]:
    """Names of the network's parameters and buffers that a function computes with, or changes."""
    result = Trace()
    with torch.no_grad(), _recorder_of(network, result):
        function()
    return result.met() | result.written


def _recorder_of(network: nn.Module, result: Trace) -> _Recorder:
    """One that knows the network's parameters and buffers."""
    recorder = _Recorder(result)
    result.learnt = {name for name, _ in network.named_parameters()}
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        result.names[recorder.value(tensor)] = name
    return recorder
