"""Whether a packed network answers as its members do, tried on the example when it is made."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.calls import Output, pick
from covey.seeds import random_state_kept, random_states
from covey.surgery.torch_internals import map_leaves


@torch.no_grad()
def check_packed(
    packed: nn.Module,
    members: Sequence[nn.Module],
    args: tuple,
    kwargs: dict[str, Any],
    output: Output,
) -> None:
    """Compare in eval mode, in train mode, and in eval mode again, by what training made of running statistics.

    Args:
        packed: the packed network; copies of it run.
        members: the members; copies of them run.
        args: the example's positional inputs.
        kwargs: its inputs by keyword.
        output: which part of an answer is wanted.

    Raises:
        ConversionError: they differ, or the packed network cannot do what the members can.
    """
    one = copy.deepcopy(packed)
    each = copy.deepcopy(list(members))
    compared = _Compared(one, each, args, kwargs, output)
    with random_state_kept(*members):
        compared.check(training=False)
        if compared.members_can_train():
            compared.check(training=True)
            compared.check(training=False)


class _Compared:
    """A packed network and its members, side by side."""

    def __init__(
        self, one: nn.Module, each: list[nn.Module], args: tuple, kwargs: dict[str, Any], output: Output
    ) -> None:
        self.one, self.each = one, each
        self.args, self.kwargs, self.output = args, kwargs, output
        self.is_random = False

    def check(self, training: bool) -> None:
        """Run both and compare; where members draw random numbers, both must at least run."""
        mode = "train" if training else "eval"
        before = self._random_states()
        expected = self._members_answer(training)
        self.is_random |= not all(map(torch.equal, before, self._random_states()))
        found = self.one.train(training)(*self._inputs()[0], **self._inputs()[1])
        if self.is_random or not isinstance(found, Tensor):
            return
        if found.shape != expected.shape:
            raise _differs(mode, f"shape {tuple(found.shape)}, where members have {tuple(expected.shape)}")
        finite = torch.isfinite(expected)
        scale = expected[finite].abs().amax() if finite.any() else torch.ones(())
        error = (found - expected)[finite].abs().amax() / scale if finite.any() else torch.zeros(())
        if not error <= _tolerance(expected.dtype):
            raise _differs(mode, f"it is off by {error.item():.2g} of the answers' scale")

    def members_can_train(self) -> bool:
        """Whether members run in train mode, with BatchNorm on this many samples."""
        twin = copy.deepcopy(self.each[0]).train()
        try:
            twin(*self._inputs()[0], **self._inputs()[1])
        except Exception:  # the network's own affair
            return False
        return True

    def _random_states(self) -> list[Tensor]:
        return random_states({tensor.device for tensor in self.each[0].parameters()})

    def _members_answer(self, training: bool) -> Tensor:
        answers = []
        for member in self.each:
            args, kwargs = self._inputs()
            answers.append(pick(member.train(training)(*args, **kwargs), self.output))
        return torch.stack(answers)

    def _inputs(self) -> Any:
        """Copies, which a network may change."""
        return map_leaves(_copied, (self.args, self.kwargs))


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _tolerance(dtype: torch.dtype) -> float:
    """Of the answers' scale: what other kernels and orders of summation may change."""
    if not dtype.is_floating_point:
        return 0.0
    return min(max(1e-9, torch.finfo(dtype).eps * 1e4), 0.05)


def _differs(mode: str, how: str) -> ConversionError:
    return ConversionError(
        f"the network cannot be packed into one: packed, it answers otherwise than its members do in {mode} mode: "
        f"{how}. Use the ensemble as it is (run='loop' or 'batched')."
    )
