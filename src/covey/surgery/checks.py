"""Checks that a narrow network does what the original does: same ties, same shapes of its answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.copies import copied
from covey.networks.modes import modes_kept
from covey.seeds import random_state_kept
from covey.surgery.source import failure, module_names
from covey.surgery.torch_internals import leaves, map_leaves

Output = Callable[[Any], Any] | None
Shapes = list[tuple[int, ...]]


def check_runs(
    small: nn.Module,
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
) -> None:
    """Check that the narrow network ties what the original ties, and answers in the same shape at two batch sizes, and
    in train mode.

    Args:
        small: the narrow network.
        network: the original.
        args: positional inputs.
        kwargs: inputs by keyword.
        output: picks the answer out of what a network returns.

    Raises:
        ConversionError: it does not; the message names the module and line.
    """
    check_answers(small, network, args, kwargs, output)
    in_training = problem_in_training(small, network, args, kwargs, output)
    if in_training is not None:
        raise in_training


def check_answers(
    small: nn.Module,
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
) -> None:
    """What `check_runs` checks, but for train mode."""
    _check_ties(small, network)
    batch = _batch_size((args, kwargs))
    for wanted in (batch, batch + 1):
        resize = partial(_with_batch, batch=batch, wanted=wanted)
        inputs = map_leaves(resize, (args, kwargs))
        try:
            expected = _answer_shapes(network, inputs, output)
        except Exception:
            continue  # the original cannot do it either
        try:
            got = _answer_shapes(small, inputs, output)
        except Exception as problem:
            raise _does_not_run(problem, small, wanted) from problem
        _check_shapes(got, expected)


def problem_in_training(
    small: nn.Module,
    network: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    output: Output = None,
) -> ConversionError | None:
    """What keeps the narrow network from doing in train mode what the original does, or None.

    Takes what `check_runs` takes.
    """
    batch = _batch_size((args, kwargs))
    with random_state_kept(network):
        try:
            # copies, because a pass in train mode moves statistics
            expected = _answer_shapes(copied(network), (args, kwargs), output, training=True)
        except Exception:
            return None  # the original cannot do it either
        try:
            got = _answer_shapes(copied(small), (args, kwargs), output, training=True)
            _check_shapes(got, expected)
        except ConversionError as refused:
            return refused
        except Exception as problem:
            found = _does_not_run(problem, small, batch, "in train mode ")
            found.__cause__ = problem
            return found
    return None


def _check_shapes(got: Shapes, expected: Shapes) -> None:
    if got != expected:
        raise ConversionError(f"The narrow network answers with shapes {got}; the original's are {expected}.")


def _does_not_run(problem: Exception, small: nn.Module, batch: int, mode: str = "") -> ConversionError:
    place = failure(problem, module_names(small))
    at = f" in {place}" if place else ""
    return ConversionError(
        f"The narrow network fails {mode}at batch size {batch}{at}: {type(problem).__name__}: {problem}. "
        "The network's code may fix a width there; give the narrow network yourself (narrow=...)."
    )


def _check_ties(small: nn.Module, network: nn.Module) -> None:
    broken = _ties(network) ^ _ties(small)
    if broken:
        names = sorted(next(iter(broken)))
        raise ConversionError(f"Narrowing broke the tie between {names}.")


def _ties(network: nn.Module) -> set[frozenset[str]]:
    """Sets of names that belong to one parameter."""
    names: dict[int, set[str]] = {}
    for name, tensor in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def _batch_size(inputs: Any) -> int:
    """The first axis of the first input tensor that has one; 0 if there is none."""
    for leaf in leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    return 0


def _with_batch(leaf: Any, batch: int, wanted: int) -> Any:
    """An input with `wanted` samples in place of `batch`; what is no batch of samples stays."""
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    # a sparse tensor is a graph of all the samples
    if leaf.layout != torch.strided or leaf.shape[0] != batch:
        return leaf
    if wanted > batch:
        return torch.cat([leaf, leaf[: wanted - batch]])
    return leaf[:wanted]


def _answer_shapes(
    network: nn.Module, inputs: tuple[tuple, dict], output: Output, *, training: bool = False
) -> Shapes:
    args, kwargs = map_leaves(_own, inputs)
    with modes_kept(network), torch.no_grad():
        network.train(training)
        answer = network(*args, **kwargs)
    if output is not None:
        answer = output(answer)
    shapes = []
    for leaf in leaves(answer):
        if isinstance(leaf, Tensor):
            shapes.append(tuple(leaf.shape))
    return shapes


def _own(leaf: Any) -> Any:
    """An input that the network may change."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
