"""Ways of running an ensemble's members, and the measurement that chooses between them.

`loop` calls the skeleton once a member with that member's tensors; it works for every network and is the reference.
`batched` calls it once for all members under `torch.func.vmap`; what comes before the first member tensor is
computed once. Either may lay images out with channels last (`loop+channels_last`), and make weights that could act on
activations (`loop+made`). `auto` measures them on the first input, in the mode at hand, and keeps the fastest.
"""

from __future__ import annotations

import itertools
import logging
import time
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
from covey.seeds import random_state_kept

if TYPE_CHECKING:
    from covey.ensemble import Ensemble


_log = logging.getLogger("covey")


@dataclass
class Inputs:
    """What the members get: the same for all, or (with `count`) tensors that have a leading axis of that size."""

    args: tuple
    kwargs: dict[str, Any]
    count: int | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    copied: bool = False  # whether each member gets a copy, because the network may change its input in place

    def __post_init__(self) -> None:
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
        """The arguments of the i-th of the members that run."""
        if self.count is None and not self.copied:
            return self.args, self.kwargs
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


def run(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Members' outputs, (len(members), B, ...), in the ensemble's way of running."""
    choice = ensemble.run
    if choice == "auto":
        choice = _choose(ensemble, members, inputs)
    way = WAYS[choice]
    if way.channels_last and not _as_measured(ensemble, inputs):
        # a network that was seen to work with channels last on images of one size may not on others
        way = replace(way, channels_last=False)
    return _run(ensemble, way, members, inputs)


def _run(ensemble: Ensemble, way: Way, members: Sequence[int], inputs: Inputs) -> Tensor:
    if way.channels_last:
        inputs = replace(inputs, memory_format=torch.channels_last)
    if not way.made:
        return RUNS[way.run](ensemble, members, inputs)
    acting, ensemble.acting = ensemble.acting, False
    try:
        return RUNS[way.run](ensemble, members, inputs)
    finally:
        ensemble.acting = acting


def _as_measured(ensemble: Ensemble, inputs: Inputs) -> bool:
    """Whether images have the sizes that the way was measured on; where a user set it, any size is as good."""
    sizes = ensemble.measured.get("train" if ensemble.training else "eval")
    return sizes is None or sizes == inputs.shapes()


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
    output = ensemble.call(k, tensors, *given)
    buffers.write(row, before, tensors)
    return output, {name: tensors[name] for name in buffers.changing}


def batched(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Call the skeleton once for all members, vectorised over their tensors."""
    if not ensemble.stackable:
        raise ConversionError("members of different shapes cannot be batched; set ensemble.run = 'loop'.")
    buffers, _ = ensemble.buffers_of(0)
    fixed = {n: t for part in ensemble.parts.values() if not part.varies for n, t in part.member(0).items()}
    acting = {
        label: part
        for label, part in ensemble.parts.items()
        if part.varies and ensemble.acts(part) and not part.recomputes
    }
    owned = {label: part.own(members) for label, part in acting.items()}
    varying: dict[str, Tensor] = {}
    for label, part in ensemble.parts.items():
        if part.varies and label not in acting:
            varying |= part.stacked(members)
    if inputs.count is not None:
        varying = _without_padding(ensemble.skeleton(), varying)
    own = {name: tensor[list(members)] for name, tensor in buffers.own.items()}
    copies = buffers.copies() if ensemble.moves else {}
    fixed |= dict(buffers.shared.items())
    if inputs.count is not None or not (varying or owned):
        # members see other data or other random numbers, so each needs a copy of the shared buffers of its own
        own |= {name: torch.stack([tensor] * len(members)) for name, tensor in copies.items()}
    else:
        fixed |= copies
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    if inputs.copied:
        leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    mapped = [leaf for leaf in leaves if isinstance(leaf, Tensor)] if inputs.count is not None else []

    def one(
        _: Tensor,
        varying: dict[str, Tensor],
        owned: dict[str, dict[str, Tensor]],
        own: dict[str, Tensor],
        mapped: list[Tensor],
    ) -> Any:
        tensors = {**fixed, **varying, **own}
        for label, part in acting.items():
            tensors |= part.acting(owned[label])
        given = iter(mapped)
        here = [next(given) if mapped and isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(here, structure)
        output = ensemble.call(0, tensors, args, kwargs)
        for name in copies:
            if name not in own:
                fixed[name] = tensors[name]
        return output, {name: tensors[name] for name in own}

    # the index keeps vmap content where nothing else is mapped
    index = torch.arange(len(members))
    with _batchable_attention(), _own_precision(ensemble), ensemble.nothing_left_behind():
        outputs, after = vmap(one, randomness="different")(index, varying, owned, own, mapped)
    if ensemble.moves:
        _write_back(ensemble, members, after, {name: fixed[name] for name in copies if name not in own})
    return outputs


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
    if buffers.changing:
        rows = [
            {**once, **{n: after[n][i] for n in buffers.changing if n in after}} for i in range(len(members))
        ]
        buffers.merge(rows[:1] if once else rows)


AGREEMENT = (
    0.02  # of the outputs' scale; other kernels and low precision differ by less, wrong members by more
)
BEHIND = 1.5  # times as long as the best, and a way leaves the race
SLOW = 0.2  # seconds of a pass, beside which what a first call does more is small
PATIENCE = 1.0  # seconds, after which ways that are still close may differ by what nobody notices
GAIN = 0.9  # making weights costs memory, so it must save so much time
RUNS: dict[str, Callable[[Ensemble, Sequence[int], Inputs], Tensor]] = {"loop": loop, "batched": batched}
WAYS = {
    str(way): way for way in (Way(*each) for each in itertools.product(RUNS, (False, True), (False, True)))
}
"""Every way of running, by name."""


def _choose(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> str:
    """Loop where there is no time to measure, else what is measured fastest."""
    if torch.compiler.is_compiling() or len(members) < ensemble.members:
        return "loop"
    choice = tune(ensemble, members, inputs)
    mode = "train" if ensemble.training else "eval"
    ensemble.runs[mode] = choice
    ensemble.measured[mode] = inputs.shapes()
    return choice


def tune(
    ensemble: Ensemble, members: Sequence[int], inputs: Inputs, repeats: int = 5, *, batched: bool = True
) -> str:
    """Time the ways of running on these inputs, with a backward pass if gradients are on, and name the fastest.

    First loop or batched, then the memory format, then whether to make weights. Buffers and random state are as before
    afterwards.

    Args:
        ensemble: whose members run.
        members: which of them.
        inputs: of a call.
        repeats: rounds of measuring.
        batched: whether all members may run at once.
    """
    best = Way()
    with _nothing_changed(ensemble):
        race = _Race(ensemble, members, inputs, repeats)
        acting = [part for part in ensemble.parts.values() if ensemble.acts(part)]
        saves_memory = any(part.recomputes for part in acting)
        if batched and ensemble.stackable and ensemble.members > 1 and not saves_memory:
            best = race.winner(best, Way("batched"))
        if _takes_images(ensemble, inputs):
            best = race.winner(best, Way(channels_last=True), replace(best, channels_last=True))
        if acting and not saves_memory:
            best = race.winner(best, replace(best, made=True), gain=GAIN)
    return str(best)


def _takes_images(ensemble: Ensemble, inputs: Inputs) -> bool:
    """Whether channels could come last: there are images, layers that care, and a user who did not say."""
    if ensemble.memory_format != torch.contiguous_format or not inputs.shapes():
        return False
    return any(
        isinstance(module, nn.Conv2d)
        for k in range(ensemble.members)
        for module in ensemble.skeleton(k).modules()
    )


class _Race:
    """Ways of running against each other on the same inputs.

    Args:
        ensemble: whose members run.
        members: which.
        inputs: of a call.
        repeats: rounds after the first.
    """

    def __init__(self, ensemble: Ensemble, members: Sequence[int], inputs: Inputs, repeats: int) -> None:
        self.ensemble, self.members, self.inputs, self.repeats = ensemble, members, inputs, repeats
        self.seconds: dict[Way, float] = {}
        self.spent = 0.0
        self.reference: tuple[Tensor, Tensor] | None = None
        self.backward = True

    def winner(self, present: Way, *others: Way, gain: float = 1.0) -> Way:
        """The fastest; another than the present one only if it takes less than `gain` of its time."""
        if self.reference is None:
            # twice, because the first call in a process does more, and to see whether the network is random
            self.reference = self._timed(Way()), self._timed(Way())
            if self._best((Way(),)) > SLOW:
                _log.info("measuring how %d members run fastest, which takes some passes", len(self.members))
        racing = [present, *(way for way in dict.fromkeys(others) if way != present and self._works(way))]
        patience = self.spent + PATIENCE
        for turn in range(self.repeats):
            # A first call does more than later ones, which says nothing where all are quick.
            if turn or self._best(racing) > SLOW:
                racing = [way for way in racing if self.seconds[way] <= BEHIND * self._best(racing)]
            if len(racing) < 2 or (turn and self.spent > patience):
                break
            for way in racing:
                self._timed(way)
        return min(racing, key=lambda way: self.seconds[way] / (1.0 if way == present else gain))

    def _best(self, ways: Sequence[Way]) -> float:
        return min(self.seconds[way] for way in ways)

    def _works(self, way: Way) -> bool:
        """Whether a way can run this network, and answers as the loop does."""
        assert self.reference is not None
        try:
            found = self._timed(way)
        except Exception:  # such as vmap's; what the loop accepts is good input
            return False
        return _agree(self.ensemble, *self.reference, found)

    def _timed(self, way: Way) -> Tensor:
        start = time.perf_counter()
        outputs = _run(self.ensemble, way, self.members, self.inputs)
        if outputs.requires_grad and self.backward:
            self._go_back(outputs)
        if outputs.device.type != "cpu":
            torch.accelerator.synchronize()
        taken = time.perf_counter() - start
        self.spent += taken
        self.seconds[way] = min(taken, self.seconds.get(way, taken))
        return outputs.detach()

    def _go_back(self, outputs: Tensor) -> None:
        parameters = [p for p in self.ensemble.parameters() if p.requires_grad]
        try:
            torch.autograd.grad(outputs.float().square().sum(), parameters, allow_unused=True)
        except RuntimeError:
            if self.ensemble.training:
                raise
            # some networks have no gradient in eval mode, and nobody asked for one yet
            self.backward = False


@contextmanager
def _nothing_changed(ensemble: Ensemble) -> Iterator[None]:
    """Buffers and random state are as before when the block ends."""
    state = {name: tensor.clone() for name, tensor in ensemble.named_buffers()}
    with random_state_kept(ensemble):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in ensemble.named_buffers():
                    tensor.copy_(state[name])


def _agree(ensemble: Ensemble, loop_once: Tensor, loop_again: Tensor, batched_once: Tensor) -> bool:
    """Whether the batched run gives what the loop gives, as far as that can be told.

    Where the network is random, members must at least not share their random numbers.
    """
    if loop_once.numel() == 0:
        return True
    once, again, other = (outputs.detach().double() for outputs in (loop_once, loop_again, batched_once))
    if not torch.allclose(once, again, rtol=1e-6, atol=1e-9):  # random, or statistics moved on
        return ensemble.differ or not torch.equal(other[0], other[1])
    scale = once.abs().amax().clamp_min(1e-12)
    return bool(((once - other).abs().amax() <= AGREEMENT * scale).item()) or not torch.isfinite(once).all()
