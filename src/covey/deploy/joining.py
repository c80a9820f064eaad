"""All members of an ensemble, and the answer that they give together, as one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from covey.combine import Answer, MultiLabel, Prediction, Regression, answer
from covey.deploy.constants import Constants
from covey.deploy.drawing import Draws, unpaired
from covey.deploy.tracing import Example, inlined, quiet, trace
from covey.ensemble import Ensemble
from covey.networks.calls import pick
from covey.quantiles import QuantileAnswer

Tensors = Callable[[int], Mapping[str, Node]]
"""Gives member k's tensors by name as nodes of the graph."""


def join(
    ensemble: Ensemble, example: Example, *, made: bool = True, seed: int = 0
) -> tuple[Graph, Constants]:
    """The ensemble's answer by name, as one graph for any batch size, and the tensors it needs.

    Args:
        ensemble: whose members are joined.
        example: an input.
        made: whether members' weights are constants; else the graph makes them out of what the ensemble stores.
        seed: of the draws that random members become.
    """
    graph, constants = Graph(), Constants()
    inputs = [graph.placeholder(name) for name in example.names]
    tensors = _made(ensemble, graph, constants) if made else _generated(ensemble, graph, constants)
    networks: dict[int, nn.Module] = {}
    programs: dict[int, ExportedProgram] = {}
    outputs = []
    for k in range(ensemble.members):
        architecture = ensemble.network_of(k)
        if architecture not in programs:
            networks[architecture] = ensemble.member(k)
            programs[architecture] = trace(networks[architecture], example)
        program = programs[architecture]
        known = _known(program, ensemble, k, inputs, tensors(k), graph, constants)
        draws = Draws(graph, constants, seed + k)
        outputs.append(inlined(program, graph, known, draws.replaced, ensemble.output))
    unpaired(graph)
    stacked = graph.call_function(torch.ops.aten.stack.default, (outputs,))
    with torch.no_grad():
        one = pick(networks[0](*example.args, **example.kwargs), ensemble.output)
    every = torch.stack([one] * ensemble.members)
    # Behind the samples come the steps of an answer to each.
    steps = range(2, every.ndim - 1) if example.any_length else ()
    free = {1: Dim("batch", min=1), **dict.fromkeys(steps, Dim.AUTO)}
    graph.output(_answer(ensemble, every, free, graph, constants, stacked))
    return graph, constants


def _known(
    program: ExportedProgram,
    ensemble: Ensemble,
    k: int,
    inputs: list[Node],
    tensors: Mapping[str, Node],
    graph: Graph,
    constants: Constants,
) -> dict[Node, Node]:
    """What stands for a traced network's placeholders when it is member k."""
    names = _names(ensemble.skeleton(k))
    signature = program.graph_signature
    paths = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    given = iter(inputs)
    known: dict[Node, Node] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in paths:
            known[node] = tensors[names[paths[node.name]]]
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            name = signature.inputs_to_lifted_tensor_constants[node.name]
            known[node] = constants.node(graph, name, program.constants[name])
        elif isinstance(node.meta["val"], Tensor):
            known[node] = next(given)
    return known


def _names(network: nn.Module) -> dict[str, str]:
    """Every path to every tensor -> the name that the tensor goes by."""
    first: dict[int, str] = {}
    found = {}
    for tensors in (network.named_parameters, network.named_buffers):
        for path, tensor in tensors(remove_duplicate=False):
            found[path] = first.setdefault(id(tensor), path)
    return found


def _made(ensemble: Ensemble, graph: Graph, constants: Constants) -> Tensors:
    """Members' tensors as constants."""

    def of(k: int) -> dict[str, Node]:
        buffers, row = ensemble.buffers_of(k)
        with torch.no_grad():
            found = {**ensemble.tensors(k), **buffers.member(row)}
        return {name: constants.node(graph, f"member_{k}.{name}", tensor) for name, tensor in found.items()}

    return of


class _Generator(nn.Module):
    """Makes a member's parameters out of what the ensemble stores."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.parts = ensemble.parts
        self._tensors = ensemble.tensors

    def forward(self, k: int) -> dict[str, Tensor]:
        """Member k's parameters."""
        return self._tensors(k)


def _generated(ensemble: Ensemble, graph: Graph, constants: Constants) -> Tensors:
    """Members' tensors as operations on what the ensemble stores."""
    generator = _Generator(ensemble)
    stored = {name: tensor.detach() for name, tensor in generator.state_dict(keep_vars=True).items()}

    def of(k: int) -> dict[str, Node]:
        def generate(given: dict[str, Tensor]) -> dict[str, Tensor]:
            return functional_call(generator, given, (k,))

        with torch.no_grad(), quiet():
            traced = make_fx(generate)(stored)
        placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
        known: dict[Node, Node] = {}
        for node, (name, tensor) in zip(placeholders, stored.items(), strict=True):
            known[node] = constants.node(graph, f"stored.{name}", tensor)
        names = list(ensemble.tensors(k))
        buffers, row = ensemble.buffers_of(k)
        found = {
            name: constants.node(graph, f"member_{k}.{name}", t) for name, t in buffers.member(row).items()
        }
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                known[node] = constants.node(graph, str(node.target), getattr(traced, str(node.target)))
            elif node.op == "call_function":
                known[node] = graph.node_copy(node, lambda old: known[old])
            elif node.op == "output":
                for name, result in zip(names, node.args[0], strict=True):
                    found[name] = known[result]
        return found

    return of


class _Answer(nn.Module):
    """What an ensemble makes of its members' outputs, by name."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.how = (ensemble.task, ensemble.class_dim, ensemble.temperature, ensemble.conformal)

    def forward(self, outputs: Tensor) -> dict[str, Tensor]:
        """The named answer."""
        return named(answer(outputs, *self.how))


def named(found: Answer) -> dict[str, Tensor]:
    """An answer as the tensors that a deployed ensemble gives, by name."""
    if isinstance(found, Prediction):
        results = {
            "probs": found.probs,
            "entropy": found.entropy,
            "mutual_information": found.mutual_information,
        }
        if found.guaranteed:
            results["sets"] = found.sets
        return {**results, "member_logits": found.logits}
    if isinstance(found, MultiLabel):
        return {
            "probs": found.probs,
            "entropy": found.entropy,
            "mutual_information": found.mutual_information,
            "member_logits": found.logits,
        }
    if isinstance(found, QuantileAnswer):
        results = {
            "quantiles": found.quantiles,
            "epistemic": found.epistemic,
            "member_quantiles": found.members,
        }
        return _with_ends(results, found)
    results = {
        "mean": found.mean,
        "std": found.std,
        "epistemic": found.epistemic,
        "aleatoric": found.aleatoric,
        "member_mean": found.member_mean,
    }
    if found.member_variance is not None:
        results["member_variance"] = found.member_variance
    return _with_ends(results, found)


def _with_ends(results: dict[str, Tensor], found: Regression | QuantileAnswer) -> dict[str, Tensor]:
    """The results, with the ends of the conformal interval if there is one."""
    return {**results, "low": found.low, "high": found.high} if found.guaranteed else results


def _answer(
    ensemble: Ensemble,
    outputs: Tensor,
    free: dict[int, Any],
    graph: Graph,
    constants: Constants,
    stacked: Node,
) -> dict[str, Node]:
    """Copy what becomes of members' outputs, with axes of any size, into the graph."""
    with quiet(), torch.no_grad():
        program = torch.export.export(_Answer(ensemble), (outputs,), dynamic_shapes=(free,))
    known: dict[Node, Node] = {}
    signature = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        if node.op == "placeholder":
            lifted = signature.get(node.name)
            known[node] = (
                stacked if lifted is None else constants.node(graph, lifted, program.constants[lifted])
            )
        elif node.op == "call_function":
            known[node] = graph.node_copy(node, lambda old: known[old])
    (results,) = (node.args[0] for node in program.graph.nodes if node.op == "output")
    names = list(program.call_spec.out_spec.unflatten(list(results)))
    return {name: known[result] for name, result in zip(names, results, strict=True)}
