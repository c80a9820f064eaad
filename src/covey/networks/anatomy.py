"""What covey knows of a network before it becomes an ensemble: its head, its stem, its state, its wiring."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from covey.errors import ConversionError
from covey.networks.calls import Arguments, Output, arguments, pick
from covey.networks.constants import Print, drop_caches, kept_tensors, prints
from covey.networks.copies import copied, duplicate
from covey.networks.held import held
from covey.networks.layers import Axes, Where, axes, canonical, origin_of, owner_of, select, ties
from covey.networks.refusals import check_keywords, has_memory, share_memory, sharing
from covey.networks.trace import Trace, trace, used_by
from covey.seeds import random_state_kept


@dataclass(frozen=True)
class Anatomy:
    """A private copy of a network with all that was found out about it.

    `examine` finds it out from an example, `recalled` reads it from what a stored ensemble remembers.

    Args:
        network: the copy, with its weights.
        head: names of the parameters of the layers that give the output.
        stem: names of the parameters of the layers that see the input first.
        state: names of the buffers that training changes (running statistics and the like).
        output: which part of what the network returns is the answer.
        given: name -> [shape, dtype] of every tensor of the network as the user gave it.
        example: an input as (args, kwargs), if one was given.
        trace: what a forward pass of the example did, if there was one.
        random: whether a forward pass in train mode draws random numbers; None if that was not tried.
        writes_inputs: whether a forward pass changes its input in place; None if that was not tried.
        rewrites: names of the parameters that a forward pass changes in place, as some networks rescale themselves.
        differentiated: names of the parameters that a forward pass takes a gradient of, as meta-learners do.
        own_generator: whether a forward pass draws from a generator of its own.
        moves_in_eval: whether a forward pass changes buffers in eval mode too, as observers of ranges do.
        constants: prints of tensors that the network keeps in Python and reads, by path (see `constants`).
    """

    network: nn.Module
    head: tuple[str, ...] = ()
    stem: tuple[str, ...] = ()
    state: frozenset[str] = frozenset()
    output: Output = None
    given: Mapping[str, list] = field(default_factory=dict)
    example: Arguments | None = None
    trace: Trace | None = None
    random: bool | None = None
    writes_inputs: bool | None = None
    rewrites: tuple[str, ...] = ()
    differentiated: tuple[str, ...] = ()
    own_generator: bool = False
    moves_in_eval: bool = False
    constants: Mapping[str, Print] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """What a stored ensemble keeps of the network, as JSON holds it."""
        return {
            "tensors": dict(self.given),
            "ties": ties(self.network),
            "head": list(self.head),
            "stem": list(self.stem),
            "state": sorted(self.state),
            "writes_inputs": self.writes_inputs,
            "rewrites": list(self.rewrites),
            "differentiated": list(self.differentiated),
            "own_generator": self.own_generator,
            "moves_in_eval": self.moves_in_eval,
            "constants": dict(self.constants),
            "zoo": origin_of(self.network),
        }

    def select(self, where: Where, option: str = "where") -> list[str]:
        """Names of the parameters that `where` means; frozen ones are left out, they stay as they are."""
        names = select(self.network, where, head=self.head, stem=self.stem, option=option)
        return [name for name in names if self.network.get_parameter(name).requires_grad]

    def matrices(self, where: Where = "all") -> dict[str, Axes]:
        """The parameters among them that are matrices, each with its axes; see `Axes`."""
        found = {}
        for name in self.select(where):
            how = axes(self.network, name)
            if how is not None:
                found[name] = how
        return found

    def axes(self, name: str) -> Axes:
        """How a parameter is a matrix, where it is known to be one."""
        found = axes(self.network, name)
        if found is None:
            raise ConversionError(f"{name!r} is no weight matrix of this network.")
        return found

    def values(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        """The network's parameters by name."""
        return {name: self.network.get_parameter(name) for name in names}

    def shared_buffers(self, own: Iterable[str]) -> tuple[str, ...]:
        """Buffers that all members share where `own` are the tensors in which they differ.

        Those are the constants, and the state of layers that come before any tensor of the members' own.
        """
        buffers = dict(self.network.named_buffers())
        if self.trace is None:
            return tuple(name for name in buffers if name not in self.state)
        behind = self.trace.touched(own)
        # what this pass did not come by (one of two norms, a block that is left out by chance) may be behind as well
        unknown = self.state - self.trace.met()
        owners = {owner_of(name) for name in (self.state & behind) | unknown}
        # who keeps some numbers from call to call may write others now and then, as codes that restart
        kept = {name for name, tensor in buffers.items() if name in self.state or tensor.is_floating_point()}
        return tuple(name for name in buffers if name not in kept or owner_of(name) not in owners)


def examine(
    network: nn.Module,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
) -> Anatomy:
    """Copy a network and find its head, stem and state by running `example` through the copy once.

    Args:
        network: any module; it is not changed.
        example: an input: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        output: which part of the network's output is the answer (a key, an attribute or a position).
        head: the head's tensors or module, if the user would rather say than have it found.
        stem: the first layer's, likewise.
    """
    private = _copy(network)
    _check_modes(private)
    facts: dict[str, Any] = {"state": _usual_state(private)}
    if example is not None:
        given: Arguments = tree_map(_copied, arguments(example))  # a network that a method runs may change it
        check_keywords(given[1])
        traces, state, moves_in_eval = _probe(private, *given, output)
        if drop_caches(private, _constants(traces), given):
            traces, state, moves_in_eval = _probe(private, *given, output)
        _check_apart(private, state)
        _check_constants(network, _constants(traces))
        trace = traces[0]
        facts = {
            "example": given,
            "trace": trace,
            "state": state,
            "rewrites": _rewritten(private, traces),
            "differentiated": tuple(sorted(set().union(*(traced.differentiated for traced in traces)))),
            "own_generator": any(traced.own_generator for traced in traces),
            "moves_in_eval": moves_in_eval,
            "constants": prints(private, _constants(traces)),
            "head": _whole_layers(private, trace.head()),
            "stem": _whole_layers(private, trace.stem()),
            "random": trace.random,
            "writes_inputs": any(traced.writes_inputs for traced in traces),
        }
    if head is not None:
        facts["head"] = tuple(select(private, head))
    if stem is not None:
        facts["stem"] = tuple(select(private, stem))
    return Anatomy(private, output=output, given=listing(network), **facts)


def recalled(network: nn.Module, record: Mapping[str, Any], output: Output) -> Anatomy:
    """The anatomy of a network that an ensemble was made of before, from the ensemble's record of it."""
    return Anatomy(
        network,
        head=tuple(record["head"]),
        stem=tuple(record["stem"]),
        state=frozenset(record["state"]),
        output=output,
        given=record["tensors"],
        writes_inputs=record.get("writes_inputs"),
        rewrites=tuple(record.get("rewrites", ())),
        differentiated=tuple(record.get("differentiated", ())),
        own_generator=record.get("own_generator", False),
        moves_in_eval=record.get("moves_in_eval", False),
        constants=record.get("constants", {}),
    )


def listing(network: nn.Module) -> dict[str, list]:
    """Every tensor of a network: name -> [shape, dtype]."""
    named = [*network.named_parameters(), *network.named_buffers()]
    return {name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in named}


def _copy(network: nn.Module) -> nn.Module:
    try:
        return copied(network)
    except Exception as error:
        raise ConversionError(
            f"the network cannot be copied (copy.deepcopy): {type(error).__name__}: {error}"
        ) from error


def _check_modes(network: nn.Module) -> None:
    """Refuse a network that computes with its tensors when its mode changes: hollow ones hold none at that time."""
    changing = [path for path, module in network.named_modules() if type(module).train is not nn.Module.train]
    if not changing:
        return
    twin = duplicate(network)
    for mode in (True, False, True):
        for name in sorted(used_by(twin, functools.partial(twin.train, mode))):
            raise ConversionError(
                f"train() of {changing[0] or 'the network'!r} computes with {name!r}, as layers do that merge an "
                "update into their weight, or fold a norm, when they are put into eval mode. An ensemble's members "
                "have their weights only while they run. Compute it in the forward pass, or turn it off "
                "(merge_weights=False) and merge what ensemble.member(k) gives."
            )


def _probe(
    network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Output
) -> tuple[list[Trace], frozenset[str], bool]:
    """Trace copies in train and in eval mode: what they did, the buffers that count as state, and whether some move in
    eval mode.

    Where train mode does not accept the example (BatchNorm and one sample), eval mode alone.
    """
    found: list[Trace] = []
    state = set(_usual_state(network))
    moved: set[str] = set()
    for mode in (True, False):
        moved = set()
        try:
            traced, moved = _run_of_a_copy(network, mode, args, kwargs, output)
        except ConversionError:
            raise
        except Exception as error:
            if mode or found:
                continue
            shapes = [tuple(t.shape) for t in [*args, *kwargs.values()] if isinstance(t, Tensor)]
            raise ConversionError(
                f"the network rejects the example, whose shapes are {shapes}. "
                f"It says: {type(error).__name__}: {error}"
            ) from error
        found.append(traced)
        state |= moved
    return found, frozenset(state), bool(moved)  # eval mode came last


def _run_of_a_copy(
    network: nn.Module, mode: bool, args: tuple, kwargs: dict[str, Any], output: Output
) -> tuple[Trace, set[str]]:
    """What a copy did, and the buffers that moved. The copy is gone when this returns: it may be large."""
    twin = duplicate(network).train(mode)
    before = {name: (tensor, _address(tensor)) for name, tensor in twin.named_buffers()}
    unregistered = _unregistered(twin)
    own_args, own_kwargs = tree_map(_copied, (args, kwargs))
    with random_state_kept(twin):
        traced = trace(twin, own_args, own_kwargs, lambda result: pick(result, output))
    _check_nothing_made(network, twin)
    _check_shapes(network, twin)
    _check_nothing_hidden(unregistered)
    # state is what is written to, whether or not its value came out different this time
    after = dict(twin.named_buffers())
    moved = {name for name in traced.written if name in after}
    for name, tensor in after.items():
        old, address = before.get(name, (None, 0))
        # `buffer.data = ...` leaves the buffer and gives it other memory
        if old is not tensor or address != _address(tensor):
            moved.add(name)
    return traced, moved


def _address(tensor: Tensor) -> int:
    """Where a tensor's memory is, if it has some."""
    return tensor.data_ptr() if has_memory(tensor) else 0


def _constants(traces: Iterable[Trace]) -> list[str]:
    """Paths of tensors that the network keeps in Python and its answer depends on, in some mode."""
    return sorted(set().union(*(traced.constants() for traced in traces)))


def _check_apart(network: nn.Module, state: Collection[str]) -> None:
    """Refuse buffers that change and are one memory: a member's are tensors of their own, and would come apart."""
    for name, other in sharing(network.named_buffers()):
        if name in state or other in state:
            raise ConversionError(
                f"the buffers {name!r} and {other!r} share memory, and the network changes it, so that one follows the "
                "other. Members' buffers are tensors of their own and would not. Keep one of them, and take the other "
                "from it in the forward pass or by a property."
            )


def _check_constants(network: nn.Module, paths: Iterable[str]) -> None:
    """Refuse what looks like a constant and is the memory of a parameter: members would read the original's."""
    kept = kept_tensors(network)
    for path in paths:
        constant = kept[path].value if path in kept else None
        for name, parameter in network.named_parameters():
            if isinstance(constant, Tensor) and share_memory(constant, parameter):
                raise ConversionError(
                    f"the network keeps {path!r}, which shares its memory with the parameter {name!r}, and computes "
                    "with it, so that every member would compute with the original's weights. Take it from the "
                    "parameter in the forward pass, or make it a property."
                )


def _rewritten(network: nn.Module, traces: Iterable[Trace]) -> tuple[str, ...]:
    """Parameters that a forward pass changes in place, and would change again."""
    traces = list(traces)
    for name in sorted(set().union(*(traced.set_from_data() for traced in traces))):
        raise ConversionError(
            f"the network sets its parameter {name!r} in the forward pass to what it computes from its input, as those "
            "do that are initialised by their first batch. Members' parameters are not kept by a forward pass. Call "
            "the network once on an input, in train mode, before converting it."
        )
    written = set().union(*(traced.rescaled for traced in traces))
    for name, tensor in network.named_parameters():
        if name in written and not tensor.requires_grad:
            raise ConversionError(
                f"the network changes its frozen parameter {name!r} in the forward pass, as a teacher that follows its "
                "student does. What changes from call to call is kept where it is a buffer: make it one "
                "(register_buffer), or change it outside of the forward pass."
            )
    return tuple(name for name, _ in network.named_parameters() if name in written)


def _check_nothing_made(network: nn.Module, after: nn.Module) -> None:
    """Refuse a network that makes parameters, buffers or layers while it runs: an ensemble could not know them."""
    before = set(_all_names(network))
    for name in _all_names(after):
        if name not in before:
            raise ConversionError(
                f"the network makes {name!r} in its forward pass. Call it once on an input before converting it, so "
                "that all its layers and buffers are there."
            )


def _all_names(network: nn.Module) -> list[str]:
    named = [*network.named_parameters(), *network.named_buffers(), *network.named_modules()]
    return [name for name, _ in named]


def _unregistered(network: nn.Module) -> list[tuple[str, Tensor, int]]:
    """Tensors that the network keeps and torch does not know of, each with how often it was changed in place."""
    found = []
    for each in held(network):
        if isinstance(each.value, Tensor) and not each.value.is_inference():
            found.append((each.path, each.value, each.value._version))
    return found


def _check_nothing_hidden(before: Iterable[tuple[str, Tensor, int]]) -> None:
    """Refuse a network that changes tensors in place which are no buffers: members would meet in them."""
    for path, tensor, version in before:
        if tensor._version != version:
            raise ConversionError(
                f"the network changes the tensor {path!r} in place, and torch does not know it as a buffer, so members "
                "would meet in it. Register it with register_buffer (persistent=False keeps it out of state dicts)."
            )


def _check_shapes(network: nn.Module, after: nn.Module) -> None:
    """Refuse a network whose buffers get other shapes when it first runs: members' buffers are stacked."""
    shapes = {name: tuple(tensor.shape) for name, tensor in after.named_buffers()}
    for name, tensor in network.named_buffers():
        was, now = tuple(tensor.shape), shapes.get(name, tuple(tensor.shape))
        if was != now:
            raise ConversionError(
                f"the buffer {name!r} has the shape {was} and gets the shape {now} in the forward pass, as those of "
                "fake quantisation do. Call the network once on an input, in train mode, before converting it."
            )


def _copied(leaf: Any) -> Any:
    """A tensor of one's own, so that a network that changes its input does not change the user's."""
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _usual_state(network: nn.Module) -> frozenset[str]:
    """Running statistics of torch's own norms, which train mode changes whether or not it was tried."""
    return frozenset(
        f"{path}.{leaf}".removeprefix(".")
        for path, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for leaf, _ in module.named_buffers(recurse=False)
    )


def _whole_layers(network: nn.Module, names: set[str]) -> tuple[str, ...]:
    """All parameters of the layers that own these; a parameter that hangs on the root stands alone."""
    owners = {owner_of(name) for name in names} - {""}
    known = dict.fromkeys(canonical(network).values())
    aliases = canonical(network)
    whole = {first for name, first in aliases.items() if owner_of(name) in owners}
    return tuple(name for name in known if name in whole or name in names)
