"""Whether an ensemble keeps its promises on the network at hand: tried at conversion, on a copy that is thrown away.

Two laws, in eval and in train mode, on the example and on a second batch:

    membership   ens(x)[k] is what the plain network ens.member(k) answers, buffers included
    isolation    whoever runs beside a member, and however often, makes no difference to it

and in train mode that a backward pass reaches all that it reaches in a plain network.
Both sides run the same calls in the same order from the same random state, so that networks that are random, or whose
answer depends on how often they were called, are compared like any others. The copy's members get tensors that differ:
copies of one network would hide that they meet.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.networks.between_calls import changed_number, left_behind, plain_values
from covey.networks.calls import Arguments, pick
from covey.networks.comparing import difference, distance, mean, same
from covey.networks.constants import kept_tensors
from covey.networks.copies import duplicate
from covey.seeds import random_state_kept, reseed
from covey.tensors import key

# of one forward pass; a check takes as long as about thirty-five, and nobody asked to wait for them
SECONDS = 0.25
LARGE = 50_000_000  # parameters of an ensemble that is not copied without being asked to
_ADVICE = "convert(..., check=False) converts it nevertheless."
NOISE = 0.05  # by which the second batch differs from the example, and members from each other, as a share


def check(
    ensemble: Ensemble,
    example: Arguments | None,
    wanted: bool | None,
    precision: torch.dtype | None = None,
    original: nn.Module | None = None,
) -> str:
    """Check an ensemble, and say what was found out; a ConversionError names the first difference.

    Args:
        ensemble: it stays as it is, and so does the random state.
        example: an input.
        wanted: True checks all members; None the first and the last, where that is cheap; False nothing.
        precision: the coarsest type that the network computes in, where that is known; it may be coarser than that of
            its outputs.
        original: the network that the ensemble was made of.
    """
    if wanted is False:
        return "not checked, as asked"
    reason = _reason_against(ensemble, example, wanted)
    if reason:
        return f"not checked: {reason}"
    assert example is not None
    members = range(ensemble.members) if wanted else sorted({0, ensemble.members - 1})
    with torch.no_grad(), random_state_kept(ensemble):
        trial = _Trial(ensemble, tuple(members), example, precision, original)
        found = [trial.run(mode, patient=bool(wanted)) for mode in (False, True)]
    return _in_words(members, found)


def _reason_against(ensemble: Ensemble, example: Arguments | None, wanted: bool | None) -> str:
    if example is None:
        if wanted:
            raise OptionError("check=True runs the ensemble, and so needs an example input.")
        return "no example was given"
    if any(parameter.device.type == "meta" for parameter in ensemble.parameters()):
        return "the network is on the meta device"
    size = sum(parameter.numel() for parameter in ensemble.parameters())
    if size > LARGE and not wanted:
        return f"it has {size:,} parameters; check=True does it all the same"
    return ""


def _in_words(members: Sequence[int], found: Sequence[str]) -> str:
    who = (
        "member 0" if len(members) == 1 else f"members {', '.join(map(str, members[:-1]))} and {members[-1]}"
    )
    modes = [mode for mode, reason in zip(("eval", "train"), found, strict=True) if not reason]
    reasons = dict.fromkeys(reason for reason in found if reason)
    if not modes:
        return f"not checked: {'; '.join(reasons)}"
    done = f"checked in {' and '.join(modes)} mode: {who} as plain networks"
    return "; ".join([done, *reasons])


class _Trial:
    """Runs an ensemble and its members' plain networks side by side.

    Args:
        made: what conversion made; it stays as it is.
        members: which are tried.
        example: an input.
        precision: see `check`.
        original: see `check`.
    """

    def __init__(
        self,
        made: Ensemble,
        members: tuple[int, ...],
        example: Arguments,
        precision: torch.dtype | None = None,
        original: nn.Module | None = None,
    ) -> None:
        self.made, self.ensemble = made, duplicate(made)
        self.members, self.precision, self.original = members, precision, original
        self.first, self.second = example, _another(example)
        self.kept = ""  # a tensor that the network keeps from one call for the next
        self.number = ""  # a number, likewise
        self.ensemble.run = "loop"
        _set_apart(self.ensemble)

    def run(self, mode: bool, *, patient: bool) -> str:
        """Try one mode; returns why it could not be tried, or nothing."""
        self.mode = "train" if mode else "eval"
        self.ensemble.train(mode)
        # Dropout on the inputs of updates draws numbers that a member's plain network has no use for.
        for part in self.ensemble.parts.values():
            if part.draws:
                part.eval()
        self.plain = {k: self.ensemble.member(k) for k in self.members}
        probe = self.ensemble.member(self.members[0])
        before, numbers = kept_tensors(probe), plain_values(probe)
        start = time.perf_counter()
        try:
            once = self._alone(probe, self.first)
            self.number = changed_number(numbers, plain_values(probe))
            counts = numbers != plain_values(probe)
            seconds = time.perf_counter() - start
            if seconds > SECONDS and not patient:
                return f"one forward pass takes {seconds:.1f} s; check=True does it all the same"
            again = self._alone(probe, self.first)
            repeated = self._alone(self.ensemble.member(self.members[0]), self.first)
        except Exception as error:  # as BatchNorm on one sample
            return self._why_not(error)
        if not same(once, repeated):
            if mode:
                self._check_training()
            return f"the network's answer in {self.mode} mode is never twice the same"
        # a network that counts its calls counts them for all members, so then none is left out
        counts |= not same(once, again)
        self.kept = left_behind(before, kept_tensors(probe)) if counts else ""
        self._compare("on the example", self.members, self.first)
        self._compare("on a second batch", self.members if counts else self.members[-1:], self.second)
        self._compare("when it is called again", self.members, self.first)
        if mode:
            self._check_training()
        else:
            self._check_numbers()
        return ""

    def _why_not(self, error: Exception) -> str:
        """Why a mode cannot be tried, where a member raised this; refuses where the network itself would not."""
        name = type(error).__name__
        if self._runs(self.made.member(self.members[0])):
            return f"the network takes no other weights than it was given ({name})"
        if self.original is not None and self._runs(duplicate(self.original)):
            raise ConversionError(
                f"in {self.mode} mode the network runs on the example, and the plain network ensemble.member("
                f"{self.members[0]}) does not: {name}: {error}. {_ADVICE}"
            ) from error
        return f"the network does not run on the example in {self.mode} mode ({name})"

    def _runs(self, network: nn.Module) -> bool:
        try:
            self._alone(network.train(self.mode == "train"), self.first)
        except Exception:
            return False
        return True

    def _check_numbers(self) -> None:
        """Members that answer NaN where the network they were made of does not are no networks at all."""
        broken = []
        for k in self.members:
            if self._alone(self.made.member(k).eval(), self.first).isnan().any():
                broken.append(k)
        if not broken or self.original is None:
            return
        if self._alone(duplicate(self.original).eval(), self.first).isnan().any():
            return
        raise ConversionError(
            f"member {broken[0]} answers NaN, and the network does not: {type(self.ensemble.method).__name__} leaves a "
            "layer weights that it cannot compute with, as a norm of weights cannot with a row of zeros. Leave that "
            f"layer out with the method's `where`. {_ADVICE}"
        )

    def _compare(self, when: str, members: tuple[int, ...], given: Arguments) -> None:
        try:
            expected = self._apart(members, given)
        except Exception:  # the second batch is made up, and not every network takes it
            return
        try:
            outputs = self._together(members, given)
        except Exception as error:
            raise ConversionError(
                f"in {self.mode} mode the network runs by itself but not as an ensemble: "
                f"{type(error).__name__}: {error}. {_ADVICE}"
            ) from error
        for k, output, answer in zip(members, outputs, expected, strict=True):
            if not self._agree(k, output, answer, given):
                raise ConversionError(
                    f"in {self.mode} mode member {k} does not answer as the plain network ensemble.member({k}) does "
                    f"{when}: {difference(output, answer)}. {self._cause()} {_ADVICE}"
                )
        self._check_buffers(members)

    def _agree(self, k: int, output: Tensor, answer: Tensor, given: Arguments) -> bool:
        if same(output, answer, self.precision):
            return True
        return self._is_rounding(k, output, answer, given)

    def _cause(self) -> str:
        """What most likely makes a member answer otherwise."""
        if self.kept:
            return (
                f"The network keeps the tensor {self.kept!r} from one call for the next, and an ensemble starts every "
                "call without: make it a buffer (register_buffer), which each member then has for itself, or an input."
            )
        if self.number:
            return (
                f"The network keeps the number {self.number!r} from one call for the next, and an ensemble keeps one "
                "for all members: make it a buffer (register_buffer), which each member then has for itself."
            )
        return (
            "The members probably meet in something that the network keeps where covey does not see it, such as a "
            "global or a generator of random numbers."
        )

    def _apart(self, members: Sequence[int], given: Arguments) -> list[Tensor]:
        """What the plain networks answer, one after another from one random state."""
        _seed(self.ensemble)
        return [self._answer(self.plain[k], given) for k in members]

    def _together(self, members: Sequence[int], given: Arguments) -> Tensor:
        """What the ensemble answers, from the same random state."""
        _seed(self.ensemble)
        args, kwargs = _own(given)
        return self.ensemble(*args, members=members, **kwargs)

    def _alone(self, network: nn.Module, given: Arguments) -> Tensor:
        _seed(network)
        return self._answer(network, given)

    def _answer(self, network: nn.Module, given: Arguments) -> Tensor:
        args, kwargs = _own(given)
        return pick(network(*args, **kwargs), self.ensemble.output)

    def _is_rounding(self, k: int, output: Tensor, answer: Tensor, given: Arguments) -> bool:
        """Whether the network itself answers as differently when its weights change in their last digits."""
        if output.shape != answer.shape:
            return False
        network = self.ensemble.member(k)
        once = self._alone(network, given)
        nudged = self.ensemble.member(k)
        for tensor in nudged.parameters():
            if tensor.is_floating_point():
                tensor.mul_(1 + 4 * torch.finfo(tensor.dtype).eps * torch.randn_like(tensor).sign())
        moved = distance(once, self._alone(nudged, given))
        return distance(output, answer) <= 10 * moved

    def _check_training(self) -> None:
        """A backward pass runs as an ensemble too, and reaches whatever it reaches in the plain network."""
        if not self.ensemble.stackable:
            return
        network = self.ensemble.member(self.members[0])
        with torch.enable_grad():
            try:
                reached = _reached(self._alone(network, self.first), network)
            except Exception:  # some cannot be trained by themselves either
                return
            missed: set[str] = set()
            # few members first: most often they tell, and they take less time than all
            for members in (self.members, tuple(range(self.ensemble.members))):
                try:
                    missed = self._learning() - _reached(self._in_training(members), self.ensemble)
                except Exception as error:
                    raise ConversionError(
                        "in train mode the network's backward pass runs by itself but not as an ensemble: "
                        f"{_why_untrained(error)}. {_ADVICE}"
                    ) from error
                missed = {name for name in missed if self._should_learn(name, reached)}
                if not missed:
                    return
        raise ConversionError(
            f"in train mode {min(missed)!r} of the ensemble gets no gradient, and in the plain network every parameter "
            "does that it stands for. The network probably uses weights where covey's do not reach, such as copies of "
            f"its layers that are no part of it. {_ADVICE}"
        )

    def _should_learn(self, name: str, reached: set[str]) -> bool:
        """Whether a tensor of the ensemble stands for a parameter that a gradient reaches in the plain network."""
        every = [label for label, _ in self.ensemble.skeleton(self.members[0]).named_parameters()]
        unused = [key(label) for label in every if label not in reached]
        if any(label in name for label in unused):
            return False
        # templates are called after no layer: where some learn nothing, theirs may be among them
        return not unused or any(key(label) in name for label in reached)

    def _in_training(self, members: tuple[int, ...]) -> Tensor:
        """What the ensemble answers when it trains: some methods then give each member inputs of its own."""
        if not self.ensemble.method.share_out(self.ensemble.layout, 2).per_member:
            return self._together(members, self.first)
        count = self.ensemble.members
        each = tree_map(
            lambda leaf: torch.stack([leaf] * count) if isinstance(leaf, Tensor) else leaf, self.first
        )
        args, kwargs = _own(each)
        _seed(self.ensemble)
        return self.ensemble(*args, per_member=True, **kwargs)

    def _learning(self) -> set[str]:
        return {name for name, parameter in self.ensemble.named_parameters() if parameter.requires_grad}

    def _check_buffers(self, members: Sequence[int]) -> None:
        """Members' own buffers are those of their networks; shared ones become the networks' mean where they move."""
        buffers = {k: dict(network.named_buffers()) for k, network in self.plain.items()}
        for k in self.members:
            stores, row = self.ensemble.buffers_of(k)
            beside = [j for j in members if self.ensemble.network_of(j) == self.ensemble.network_of(k)]
            networks = [buffers[j] for j in beside]
            for name, tensor in buffers[k].items():
                if name in stores.own:
                    self._check_buffer(k, name, stores.own[name][row], tensor)
                elif self.ensemble.moves and beside:
                    self._check_buffer(k, name, stores.shared[name], mean([each[name] for each in networks]))
        # the next call starts from what they share
        for k in self.members:
            stores, _ = self.ensemble.buffers_of(k)
            for name, tensor in buffers[k].items():
                if name in stores.shared:
                    tensor.copy_(stores.shared[name])

    def _check_buffer(self, k: int, name: str, found: Tensor, expected: Tensor) -> None:
        if not same(found, expected):
            raise ConversionError(
                f"in {self.mode} mode the buffer {name!r} of member {k} is not what it becomes in the plain network "
                f"ensemble.member({k}): {difference(found, expected)}. {_ADVICE}"
            )


def _reached(outputs: Tensor, module: nn.Module) -> set[str]:
    """Names of the parameters that a backward pass reaches, or a pass that a function makes inside it."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    module.zero_grad()
    outputs.abs().square().sum().backward()
    found = {name for name, parameter in named.items() if parameter.grad is not None}
    module.zero_grad()
    return found


def _why_untrained(error: Exception) -> str:
    """What went wrong, in words that say what to do where torch's do not."""
    if "deepcopy protocol" in str(error):
        return (
            "it copies a layer in the forward pass (copy.deepcopy), and torch copies no weight that is computed from "
            "others, as a member's is. Instead of copying the layer, call it with detached weights: "
            "torch.func.functional_call(layer, {name: p.detach() for name, p in layer.named_parameters()}, x)"
        )
    told = f"{type(error).__name__}: {error}"
    if "meta" in str(error):  # members have their tensors only while they run
        told += (
            ". The network probably runs layers a second time in the backward pass, as reversible ones do in a "
            "function of their own; use torch.utils.checkpoint for that, or keep what the layers computed"
        )
    return told


def _set_apart(ensemble: Ensemble) -> None:
    """Move every member's own tensors a little, each otherwise."""
    generator = torch.Generator().manual_seed(0)
    groups = [group for group in ensemble.param_groups(1.0) if group["members"]]
    for parameter in [each for group in groups for each in group["params"]]:
        if parameter.ndim == 0 or parameter.numel() == 0:
            continue
        between = (1,) * (parameter.ndim - 2)
        sizes = (len(parameter), *between, parameter.shape[-1])[: parameter.ndim]
        noise = torch.randn(sizes, generator=generator).to(parameter)
        scale = parameter.abs().mean().item() or 1.0  # updates start at zero
        parameter.add_(noise, alpha=NOISE * scale)


# --- inputs -----------------------------------------------------------------------------------------------------------


def _another(example: Arguments) -> Arguments:
    """A second batch: the samples in another order, and where they are floats a little changed."""
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.ndim]
    samples = len(tensors[0]) if tensors else 0
    generator = torch.Generator().manual_seed(0)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.ndim == 0:
            return leaf
        if leaf.layout != torch.strided or leaf.is_nested:  # a graph's edges, or rows of different lengths
            return leaf
        rolled = leaf.detach().roll(1, 0) if len(leaf) == samples else leaf.detach()
        if not leaf.is_floating_point():
            return rolled
        noise = torch.randn(leaf.shape, generator=generator).to(leaf)
        return rolled * (1 + NOISE * noise)

    return tree_map(other, example)


def _own(given: Arguments) -> Arguments:
    """The same arguments, which whoever gets them may change."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, given)


# --- random numbers ---------------------------------------------------------------------------------------------------


def _seed(module: nn.Module) -> None:
    reseed(0, module)
    random.seed(0)
    np.random.seed(0)
