"""Runs an ensemble's members in the way that is set, or, with `auto`, in the one that is measured fastest.

`auto` measures the ways on the first input, in the mode at hand, and keeps the fastest.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from covey import accelerators
from covey.networks.leftovers import nothing_left_behind
from covey.seeds import random_state_kept
from covey.ways import WAYS, Inputs, Way, run_as

if TYPE_CHECKING:
    from covey.ensemble import Ensemble

_log = logging.getLogger("covey")
AGREEMENT = {torch.float64: 1e-6, torch.float32: 2e-3}  # of the outputs' scale: other kernels differ by less
LOW_PRECISION = 0.02
BEHIND = 1.5  # times as long as the best, and a way leaves the race
SLOW = 0.2  # seconds of a pass, beside which what a first call does more is small
PATIENCE = 1.0  # seconds, after which ways that are still close may differ by what nobody notices
GAIN = 0.9  # making weights costs memory, so it must save so much time


def run(ensemble: Ensemble, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Members' outputs, (len(members), B, ...), in the ensemble's way of running."""
    choice = ensemble.run
    if choice == "auto":
        choice = _choose(ensemble, members, inputs)
    way = WAYS[choice]
    if way.channels_last and not _as_measured(ensemble, inputs):
        # a network that was seen to work with channels last on images of one size may not on others
        way = replace(way, channels_last=False)
    if way.run == "batched" and _is_measured(ensemble):
        return _batched_or_looped(ensemble, way, members, inputs)
    return run_as(ensemble, way, members, inputs)


def _is_measured(ensemble: Ensemble) -> bool:
    """Whether nobody but `auto` chose the way."""
    return ("train" if ensemble.training else "eval") in ensemble.measured


def _batched_or_looped(ensemble: Ensemble, way: Way, members: Sequence[int], inputs: Inputs) -> Tensor:
    """Batched, as was measured; in a loop where vmap cannot do what these inputs ask of the network.

    An argument that the first call did not have, or a longer sequence, may take the network another way.
    """
    try:
        return run_as(ensemble, way, members, inputs)
    except Exception as error:
        # raises what the network itself does
        outputs = run_as(ensemble, replace(way, run="loop"), members, inputs)
        _log.info("these inputs run in a loop, because batched the network raises %s", type(error).__name__)
        return outputs


def _as_measured(ensemble: Ensemble, inputs: Inputs) -> bool:
    """Whether images have the sizes that the way was measured on; where a user set it, any size is as good."""
    sizes = ensemble.measured.get("train" if ensemble.training else "eval")
    return sizes is None or sizes == inputs.shapes()


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
        self.draws_in_python = False
        self.backward = True

    def winner(self, present: Way, *others: Way, gain: float = 1.0) -> Way:
        """The fastest; another than the present one only if it takes less than `gain` of its time."""
        if self.reference is None:
            # twice, because the first call in a process does more, and to see whether the network is random
            before = _states_in_python()
            self.reference = self._timed(Way()), self._timed(Way())
            self.draws_in_python = before != _states_in_python()
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
            racing = [way for way in racing if self._runs_again(way)]
        if not racing:
            return Way()
        return min(racing, key=lambda way: self.seconds[way] / (1.0 if way == present else gain))

    def _best(self, ways: Sequence[Way]) -> float:
        return min(self.seconds[way] for way in ways)

    def _works(self, way: Way) -> bool:
        """Whether a way can run this network, and answers as the loop does."""
        assert self.reference is not None
        if way.run == "batched" and self.draws_in_python:  # all members would have one draw
            return False
        try:
            found = self._timed(way)
        except Exception:  # such as vmap's; what the loop accepts is good input
            return False
        return _agree(self.ensemble, *self.reference, found)

    def _runs_again(self, way: Way) -> bool:
        """Time a way once more; one that vmap cannot do this time, as where a network counts its calls, is out."""
        try:
            self._timed(way)
        except Exception:
            if way.run == "loop":
                raise
            return False
        return True

    def _timed(self, way: Way) -> Tensor:
        start = time.perf_counter()
        outputs = run_as(self.ensemble, way, self.members, self.inputs)
        if outputs.requires_grad and self.backward:
            self._go_back(outputs)
        if outputs.device.type != "cpu":
            accelerators.synchronize()
        taken = time.perf_counter() - start
        self.spent += taken
        self.seconds[way] = min(taken, self.seconds.get(way, taken))
        return outputs.detach()

    def _go_back(self, outputs: Tensor) -> None:
        parameters = [p for p in self.ensemble.parameters() if p.requires_grad]
        try:
            torch.autograd.grad(outputs.float().square().sum(), parameters, allow_unused=True)
        except Exception:
            if self.ensemble.training:
                raise
            # some networks have no gradient in eval mode, and nobody asked for one yet
            self.backward = False


@contextmanager
def _nothing_changed(ensemble: Ensemble) -> Iterator[None]:
    """Buffers, random state and what networks count in Python are as before when the block ends."""
    state = {name: tensor.clone() for name, tensor in ensemble.named_buffers()}
    skeletons = {id(skeleton): skeleton for skeleton in map(ensemble.skeleton, range(ensemble.members))}
    with random_state_kept(ensemble), nothing_left_behind([*skeletons.values()], keep_plain=False):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in ensemble.named_buffers():
                    tensor.copy_(state[name])


def _states_in_python() -> tuple[Any, ...]:
    """Of the random numbers that torch knows nothing of."""
    state: Any = np.random.get_state()
    return random.getstate(), np.asarray(state[1]).tobytes(), *state[2:]


def _agree(ensemble: Ensemble, loop_once: Tensor, loop_again: Tensor, batched_once: Tensor) -> bool:
    """Whether the batched run gives what the loop gives, as far as that can be told.

    Where the network is random, members must at least not share their random numbers.
    """
    if loop_once.numel() == 0:
        return True
    once, again, other = (outputs.detach().double() for outputs in (loop_once, loop_again, batched_once))
    if not torch.allclose(once, again, rtol=1e-6, atol=1e-9):  # random, or statistics moved on
        return ensemble.differ or len(other) == 1 or not torch.equal(other[0], other[1])
    scale = once.abs().amax().clamp_min(1e-12)
    tolerance = _tolerance(ensemble, loop_once)
    return bool(((once - other).abs().amax() <= tolerance * scale).item()) or not torch.isfinite(once).all()


def _tolerance(ensemble: Ensemble, outputs: Tensor) -> float:
    """By the coarsest type that outputs and weights are in, or that autocast computes in."""
    if torch.is_autocast_enabled(outputs.device.type):
        return LOW_PRECISION
    kinds = {outputs.dtype, *(parameter.dtype for parameter in ensemble.parameters())}
    return max(AGREEMENT.get(kind, LOW_PRECISION) for kind in kinds)
