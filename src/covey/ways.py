"""Ways of running an ensemble's members.

`loop` calls the skeleton once a member with that member's tensors; it works for every network and is the reference.
`batched` calls it once for all members under `torch.func.vmap`; what comes before the first member tensor is
computed once. Either may lay images out with channels last (`loop+channels_last`), and make weights that could act on
activations (`loop+made`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from covey.errors import ConversionError, OptionError
from covey.networks.calls import open_objects

if TYPE_CHECKING:
    from covey.ensemble import Ensemble
    from covey.parameterization import Parameterization


@dataclass
class Inputs:
    """What the members get: the same for all, or (with `count`) tensors that have a leading axis of that size."""

    args: tuple
    kwargs: dict[str, Any]
    count: int | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    copied: bool = False  # whether each member gets a copy, because the network may change its input in place

    def __post_init__(self) -> None:
        open_objects((self.args, self.kwargs))
        if self.count is not None:
            for leaf in self.leaves():
                if leaf.ndim == 0 or len(leaf) != self.count:
                    raise OptionError(
                        f"per_member=True needs tensors with a leading axis of {self.count} members; "
                        f"got one of shape {tuple(leaf.shape)}."
                    )
        if self.memory_format != torch.contiguous_format and self.count is None:
            self.args, self.kwargs = tree_map(self._formatted, (self.args, self.kwargs))

    def leaves(self) -> list[Tensor]:
        """All tensors in it."""
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, Tensor)]

    def of(self, i: int) -> tuple[tuple, dict[str, Any]]:
        """The arguments of the i-th of the members that run, in lists and dicts of its own, which it may take apart."""
        return tree_map(lambda leaf: self._own(leaf, i), (self.args, self.kwargs))

    def _own(self, leaf: Any, i: int) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.count is not None:
            leaf = self._formatted(leaf[i])
        return leaf.clone() if self.copied else leaf

    def _formatted(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.ndim == 4 and self.memory_format == torch.channels_last:
            return _with_channels_last(leaf)
        return leaf

    def shapes(self) -> list[list[int]]:
        """The shapes of one sample of each image in it."""
        axes = 1 if self.count is None else 2
        return [list(leaf.shape[axes:]) for leaf in self.leaves() if leaf.ndim == axes + 3]


def _with_channels_last(images: Tensor) -> Tensor:
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # with one channel both formats are the same numbers in the same places; only strides tell layers which is meant
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


@dataclass(frozen=True)
class Way:
    """How members run: in a loop or batched, in which memory format, and whether all weights are made."""

    run: str = "loop"
    channels_last: bool = False
    made: bool = False

    def __str__(self) -> str:
        words = [self.run]
        if self.channels_last:
            words.append("channels_last")
        if self.made:
            words.append("made")
        return "+".join(words)


def run_as(ensemble: Ensemble, way: Way, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Members' outputs, (len(members), B, ...), in one way of running."""
    if way.channels_last:
        inputs = replace(inputs, memory_format=torch.channels_last)
    if not way.made:
        return RUNS[way.run](ensemble, members, inputs)
    acting, ensemble.acting = ensemble.acting, False
    try:
        return RUNS[way.run](ensemble, members, inputs)
    finally:
        ensemble.acting = acting


def loop(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Call the skeleton once for each member; one member's tensors exist at a time."""
    outputs = []
    copies: dict[int, list[dict[str, Tensor]]] = {}
    with ensemble.nothing_left_behind() as start_again:
        for i, k in enumerate(members):
            start_again()
            output, after = _one(ensemble, k, inputs.of(i))
            outputs.append(output)
            copies.setdefault(ensemble.network_of(k), []).append(after)
    if ensemble.moves:
        for network, found in copies.items():
            ensemble.state[network].merge(found)
    return torch.stack(outputs)


def _one(ensemble: Ensemble, k: int, given: tuple[tuple, dict[str, Any]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Member k's output, and what it made of the shared buffers. Its tensors are gone when this returns."""
    buffers, row = ensemble.buffers_of(k)
    before = buffers.member(row)
    if ensemble.moves:
        before |= buffers.copies()
    tensors = {**ensemble.working_tensors(k), **before}
    if ensemble.moves:
        # rows of one tensor count their changes together: the next member's would spoil this one's backward pass;
        # and a network may give a buffer other memory (`buffer.data = ...`)
        tensors |= {name: before[name].clone() for name, _ in buffers.own.items()}
    watched = buffers.watched(tensors)
    output = ensemble.call(k, tensors, *given)
    buffers.check_constants(watched, tensors)
    buffers.write(row, before, tensors)
    return output, {name: tensors[name] for name in buffers.changing}


@dataclass(frozen=True)
class _Stacked:
    """The tensors of one call for all members at once.

    Args:
        fixed: what all members have in common, by name.
        varying: what they have of their own, by name, (len(members), *shape).
        acting: parts whose weights act on activations, by label.
        owned: what these parts have of the members' own, by label and name, likewise stacked.
        buffers: members' buffers by name, likewise stacked.
        once: names of the buffers in `fixed` that all members change in the same way, so once is enough.
    """

    fixed: dict[str, Tensor]
    varying: dict[str, Tensor]
    acting: dict[str, Parameterization]
    owned: dict[str, dict[str, Tensor]]
    buffers: dict[str, Tensor]
    once: tuple[str, ...]


def batched(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Call the skeleton once for all members, vectorised over their tensors."""
    if not ensemble.stackable:
        raise ConversionError("members of different shapes cannot be batched; set ensemble.run = 'loop'.")
    if any(record.get("own_generator") for record in ensemble.records):
        raise ConversionError(
            "the network draws random numbers from a generator of its own, and all members at once would draw others "
            "than each draws alone; set ensemble.run = 'loop' or 'auto'."
        )
    given = _stacked(ensemble, members, inputs)
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    if inputs.copied:
        leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    mapped: list[Tensor] = []
    if inputs.count is not None:
        mapped = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    moved = {name: given.fixed[name] for name in given.once}
    store, _ = ensemble.buffers_of(0)

    def one(
        _: Tensor,
        varying: dict[str, Tensor],
        owned: dict[str, dict[str, Tensor]],
        buffers: dict[str, Tensor],
        mapped: list[Tensor],
    ) -> Any:
        tensors = {**given.fixed, **varying, **buffers}
        for label, part in given.acting.items():
            tensors |= part.acting(owned[label])
        own_inputs = iter(mapped)
        here = [next(own_inputs) if mapped and isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(here, structure)
        watched = store.watched(tensors)
        output = ensemble.call(0, tensors, args, kwargs)
        store.check_constants(watched, tensors)
        for name in moved:
            moved[name] = tensors[name]
        return output, {name: tensors[name] for name in buffers}

    # the index keeps vmap content where nothing else is mapped
    index = torch.arange(len(members))
    with _batchable_attention(), _own_precision(ensemble), ensemble.nothing_left_behind():
        run_all = vmap(one, randomness="different")
        outputs, after = run_all(index, given.varying, given.owned, given.buffers, mapped)
    if ensemble.moves:
        _write_back(ensemble, members, after, moved)
    return outputs


def _stacked(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> _Stacked:
    """The members' tensors and buffers, as one call for all of them takes them."""
    fixed: dict[str, Tensor] = {}
    varying: dict[str, Tensor] = {}
    acting: dict[str, Parameterization] = {}
    for label, part in ensemble.parts.items():
        if not part.varies:
            fixed |= part.member(0)
        elif ensemble.acts(part) and not part.recomputes:
            acting[label] = part
        else:
            varying |= part.stacked(members)
    owned = {label: part.own(members) for label, part in acting.items()}
    if inputs.count is not None:
        varying = _without_padding(ensemble.skeleton(), varying)
    store, _ = ensemble.buffers_of(0)
    fixed |= dict(store.shared.items())
    buffers = {name: tensor[list(members)] for name, tensor in store.own.items()}
    copies = store.copies() if ensemble.moves else {}
    if inputs.count is None and (varying or owned):
        return _Stacked(fixed | copies, varying, acting, owned, buffers, tuple(copies))
    # members see other data or other random numbers, so each needs a copy of the shared buffers of its own
    for name, tensor in copies.items():
        buffers[name] = torch.stack([tensor] * len(members))
    return _Stacked(fixed, varying, acting, owned, buffers, ())


@contextmanager
def _batchable_attention() -> Iterator[None]:
    """Attention by plain products: torch has no batching rule for its fused kernels and would run them one by one."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _own_precision(ensemble: Ensemble) -> Iterator[None]:
    """No autocast: under vmap torch casts only what is not mapped, and then refuses convolutions of both kinds."""
    kinds = {tensor.device.type for tensor in ensemble.parameters()}
    with ExitStack() as stack:
        for kind in kinds:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _without_padding(skeleton: nn.Module, varying: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keep gradients off embeddings' padding rows, which vmap forgets where tokens are the members' own."""
    for path, module in skeleton.named_modules():
        name = f"{path}.weight".removeprefix(".")
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and name in varying:
            rows = torch.arange(module.num_embeddings, device=varying[name].device)[:, None]
            weight = varying[name]
            varying[name] = torch.where(rows == module.padding_idx, weight.detach(), weight)
    return varying


@torch.no_grad()
def _write_back(
    ensemble: Ensemble, members: Sequence[int], after: dict[str, Tensor], once: dict[str, Tensor]
) -> None:
    buffers, _ = ensemble.buffers_of(0)
    for name, tensor in buffers.own.items():
        tensor[list(members)] = after[name]
    if not buffers.changing:
        return
    if once:
        buffers.merge([once])
        return
    rows = []
    for i in range(len(members)):
        rows.append({name: after[name][i] for name in buffers.changing})
    buffers.merge(rows)


RUNS: dict[str, Callable[[Ensemble, Sequence[int], Inputs], Tensor]] = {"loop": loop, "batched": batched}
WAYS = {
    str(way): way for way in (Way(*each) for each in itertools.product(RUNS, (False, True), (False, True)))
}
"""Every way of running, by name."""
