"""`fuse`: an ensemble as one plain module that does nothing twice and nothing that is not needed to answer."""

from __future__ import annotations

import operator
import time
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import Graph, GraphModule, Node

from covey.deploy.constants import Constants
from covey.deploy.cutting import cut_channels
from covey.deploy.joining import join, named
from covey.deploy.simplify import (
    CONVOLUTIONS,
    compute_constants,
    fold_batch_norms,
    is_constant,
    merge_equal,
    one_batch_norm,
    without_copies,
    write_in_place,
)
from covey.deploy.tracing import Example
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.options import check_choice

TOLERANCE = 1e-4
"""How far an answer may be from the ensemble's, over the largest number in it."""

Layout = Literal["auto", "contiguous", "channels_last"]


def fuse(ensemble: Ensemble, example: Any, *, memory_format: Layout = "auto", seed: int = 0) -> nn.Module:
    """One plain module that answers as the ensemble does in eval mode, faster: for inference only.

    Weights are made once, BatchNorm is folded into the layer before it, channels that a member masks away are cut out,
    and what members share before they differ runs once. The module needs nothing of covey. It takes what the network
    takes, at any batch size but else in the example's shape, and returns a dict: `probs`, `entropy`,
    `mutual_information`, `member_logits` (and `sets` if conformal sets are fitted), or for regression `mean`, `std`,
    `epistemic`, `aleatoric`, `member_mean`, or `quantiles`, `epistemic`, `member_quantiles` (and `low`, `high` if
    conformal intervals are).

    Args:
        ensemble: what `convert`, `fit` or `load` gave.
        example: an input as the network takes it: a tensor, a tuple of positional or a dict of keyword arguments.
        memory_format: how images are laid out inside: "contiguous", "channels_last", or which of them is measured
            faster on the example.
        seed: of the draws that random members, such as MC-dropout's, become.
    """
    check_choice("memory_format", memory_format, ("auto", "contiguous", "channels_last"))
    check_ensemble(ensemble, "fuse")
    with ensemble.evaluating():
        given = Example.of(ensemble.skeleton(), example)
        check_answers(ensemble, given)
        graph, constants = fused_graph(ensemble, given, seed=seed)
        write_in_place(graph)
        _check_inputs(graph, given)
        plain = graph_module(graph, constants)
        check_equal(ensemble, plain, given, "the fused module")
    if memory_format == "contiguous" or not _has_images(graph, given):
        return plain
    last = _with_weights_laid(graph_module(_with_channels_last(graph, given), constants))
    if memory_format == "channels_last":
        return last
    return _faster(plain, last, given)


def check_ensemble(given: Any, what: str) -> None:
    """Refuse what is no ensemble, such as the network itself, and a torch that cannot."""
    if not hasattr(Dim, "AUTO"):
        raise OptionError(
            f"{what} needs a newer torch, whose torch.export has Dim.AUTO (tested: 2.13); this is {torch.__version__}."
        )
    check_is_ensemble(given, what)


def check_is_ensemble(given: Any, what: str) -> None:
    """Refuse what is no ensemble, such as the network itself."""
    if not isinstance(given, Ensemble):
        raise OptionError(
            f"{what} takes an ensemble, as convert, fit or load give it; got a {type(given).__name__}."
        )


@torch.no_grad()
def check_answers(ensemble: Ensemble, example: Example) -> None:
    """Refuse an example that the network does not take, or whose answer nothing can be compared with."""
    try:
        outputs = ensemble(*example.args, **example.kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        told = ", ".join(
            f"{name} {tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            for name, tensor in zip(example.names, example.tensors, strict=True)
        )
        said = " ".join(str(error).split())[:300]
        raise OptionError(f"the network does not take the example, {told}: {said}") from error
    if outputs.isnan().any():
        raise OptionError(
            "the ensemble's answer to the example is NaN, with which nothing can be compared; give finite inputs, as "
            "the network takes them, and check its weights."
        )


def fused_graph(ensemble: Ensemble, example: Example, *, seed: int = 0) -> tuple[Graph, Constants]:
    """The graph of `fuse`, and its tensors. The ensemble is in eval mode."""
    graph, constants = join(ensemble, example, seed=seed)
    without_copies(graph)
    one_batch_norm(graph)
    compute_constants(graph, constants)
    merge_equal(graph)
    fold_batch_norms(graph, constants)
    cut_channels(graph, constants)
    merge_equal(graph)
    graph.eliminate_dead_code()
    graph.lint()
    return graph, constants


def _check_inputs(graph: Graph, example: Example) -> None:
    """Let the module refuse inputs of another size or kind than the example's: the sizes in the graph are those.

    A text of one token would otherwise be added to the positions of all, without an error.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for node, name, tensor in zip(inputs, example.names, example.tensors, strict=True):
            batched = example.is_batched(tensor)
            fixed = tuple(tensor.shape[batched:])
            expected = ", ".join(map(str, ("batch", *fixed) if batched else fixed))
            shape = graph.call_function(getattr, (node, "shape"))
            own = graph.call_function(operator.getitem, (shape, slice(int(batched), None, None)))
            same = graph.call_function(operator.eq, (own, fixed))
            message = f"this module was fused for {name} of shape ({expected}); fuse again for another"
            graph.call_function(torch._assert, (same, message))
            _check_kind(graph, node, name, tensor.dtype)


def _check_kind(graph: Graph, node: Node, name: str, dtype: torch.dtype) -> None:
    """Let the module refuse numbers that its weights cannot be multiplied with; whole numbers have all widths."""
    expected = str(dtype).removeprefix("torch.")
    message = f"this module was fused for {name} of {expected}; convert it with {name}.to(torch.{expected})"
    own = graph.call_function(getattr, (node, "dtype"))
    if dtype.is_floating_point:
        good = graph.call_function(operator.eq, (own, dtype))
    else:
        floating = graph.call_function(getattr, (own, "is_floating_point"))
        good = graph.call_function(operator.not_, (floating,))
    graph.call_function(torch._assert, (good, message))


def graph_module(graph: Graph, constants: Constants) -> GraphModule:
    """A plain module that runs a graph."""
    module = GraphModule(constants.module(graph), graph, class_name="FusedEnsemble")
    return module.eval().requires_grad_(False)


def _has_images(graph: Graph, example: Example) -> bool:
    has_convolutions = any(node.target in CONVOLUTIONS for node in graph.nodes)
    return has_convolutions and any(tensor.ndim == 4 for tensor in example.tensors)


def _with_channels_last(graph: Graph, example: Example) -> Graph:
    """The same graph, which lays its images out with channels last."""
    other = Graph()
    other.output(other.graph_copy(graph, {}))
    inputs = [node for node in other.nodes if node.op == "placeholder"]
    for node, tensor in zip(inputs, example.tensors, strict=True):
        if tensor.ndim != 4:
            continue
        with other.inserting_after(node):
            laid = other.call_function(
                torch.ops.aten.clone.default, (node,), {"memory_format": torch.channels_last}
            )
        node.replace_all_uses_with(laid, lambda user, laid=laid: user is not laid)
    return other


def _with_weights_laid(module: GraphModule) -> GraphModule:
    """The same, whose images' weights lie as the images do; else every call would lay them out again."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default):
        if is_constant(node.args[1]):
            name = str(node.args[1].target)
            laid = module.get_buffer(name).contiguous(memory_format=torch.channels_last)
            module.register_buffer(name, laid)
    return module


@torch.no_grad()
def _faster(one: nn.Module, other: nn.Module, example: Example, turns: int = 5) -> nn.Module:
    """Which of two modules has the fastest turn; their first call, which does more, does not count."""
    seconds: dict[nn.Module, list[float]] = {one: [], other: []}
    for _ in range(1 + turns):
        for module, known in seconds.items():
            start = time.perf_counter()
            module(*example.tensors)
            known.append(time.perf_counter() - start)
    return min(seconds, key=lambda module: min(seconds[module][1:]))


@torch.no_grad()
def check_equal(ensemble: Ensemble, module: nn.Module, example: Example, what: str) -> None:
    """Refuse a module that does not answer as the ensemble does; random members cannot be compared."""
    if is_random(ensemble, example):
        return
    expected = named(ensemble.answer(ensemble(*example.args, **example.kwargs)))
    found = module(*example.tensors)
    for name, tensor in expected.items():
        far = distance(found[name], tensor)
        if far > tolerance(tensor):
            raise ConversionError(
                f"{what} does not answer as the ensemble does: {name} differs by {far:.2g} of its largest value, more "
                f"than {tolerance(tensor):.2g}. Please report this network."
            )


def is_random(ensemble: Ensemble, example: Example) -> bool:
    """Whether the ensemble answers otherwise when it is asked again."""
    once, again = (ensemble(*example.args, members=[0], **example.kwargs) for _ in range(2))
    return not torch.equal(once, again)


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected number; for sets, the share of entries that differ."""
    if expected.dtype == torch.bool:
        return (found != expected).double().mean().item()
    finite = expected.isfinite()
    if found.shape != expected.shape or not torch.equal(finite, found.isfinite()):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(expected[finite].abs().max().item(), 1.0)
    return (found[finite].double() - expected[finite].double()).abs().max().item() / scale


def tolerance(expected: Tensor) -> float:
    """What other kernels and orders of summation may change."""
    if expected.dtype == torch.bool:
        return 0.02  # a class whose score is the quantile's own, in the last digit
    return TOLERANCE if expected.dtype in (torch.float32, torch.float64) else 0.02
