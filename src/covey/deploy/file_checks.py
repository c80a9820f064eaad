"""Compares what a written file answers with the ensemble, before the file is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from covey.deploy.fusing import TOLERANCE, distance, tolerance
from covey.deploy.joining import named
from covey.deploy.session import open_session, results
from covey.deploy.tracing import Example
from covey.ensemble import Ensemble
from covey.errors import ConversionError
from covey.extras import load

OF_MEMBERS = ("member_logits", "member_mean", "member_variance", "member_quantiles")


def answered(ensemble: Ensemble, given: Example) -> dict[str, Tensor]:
    """What the ensemble says of an example, by the names of a file's outputs."""
    return named(ensemble.answer(ensemble(*given.args, **given.kwargs)))


def check_equal_to(
    found: dict[str, Tensor],
    expected: dict[str, Tensor],
    limit: float,
    kind: str,
    path: Path,
    program: ExportedProgram,
    example: Example,
) -> float:
    """The largest difference from the ensemble; above the limit an error that says where it begins."""
    largest = 0.0
    for name, tensor in found.items():
        far = distance(tensor, expected[name])
        if far > (limit if tensor.dtype != torch.bool else tolerance(tensor)):
            begins = _beginning(path, program, example, limit) if kind == "onnx" else ""
            raise ConversionError(
                f"the {kind} file does not answer as the ensemble does and was not kept: {name} differs by {far:.2g} "
                f"of its largest value, more than {limit:.2g}{begins}."
            )
        largest = max(largest, far if tensor.dtype != torch.bool else 0.0)
    return largest


def _beginning(path: Path, program: ExportedProgram, example: Example, limit: float) -> str:
    """The first operation whose result in ONNX Runtime differs from torch's, in words."""
    onnx = load("onnx")
    model = onnx.load(str(path))
    known = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    session = open_session(model.SerializeToString())
    found = results(session, [tensor.numpy() for tensor in example.tensors])
    for name, tensor in _Values(program.module()).of(example).items():
        if name in found and tuple(found[name].shape) == tuple(tensor.shape):
            far = distance(torch.from_numpy(found[name]), tensor)
            if far > limit:
                return f"; it begins at {name}, which differs by {far:.2g}"
    return ""


class _Values(torch.fx.Interpreter):
    """Runs a graph and keeps every tensor in it by name."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Tensor] = {}

    def of(self, example: Example) -> dict[str, Tensor]:
        """Every tensor on this input, in the order of computation."""
        self.run(*example.tensors)
        return self.values

    def run_node(self, n: torch.fx.Node) -> Any:
        """Keeps what one operation gives."""
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, Tensor):
            self.values[n.name] = value
        return value


def check_batches(read: Any, path: Path, example: Example, found: Mapping[str, Tensor]) -> None:
    """Refuse a file that answers one sample alone otherwise than among others."""
    for name, tensor in read(path, example.first(1)).items():
        batched = found[name][:, :1] if name in OF_MEMBERS else found[name][:1]
        far = distance(tensor, batched)
        if far > (10 * TOLERANCE if tensor.dtype != torch.bool else 0.5):
            raise ConversionError(
                f"the file answers one sample alone otherwise than among others and was not kept: {name} differs by "
                f"{far:.2g}. The network's answer on a sample depends on the batch it comes in."
            )


def check_lengths(ensemble: Ensemble, read: Any, path: Path, example: Example, random: bool) -> None:
    """Refuse a file that does not answer sequences of two other lengths, at best a longer one, as the ensemble does."""
    length = max(example.lengths)
    checked = 0
    for other in (length + length // 2, length // 2, 1):
        given = example.of_length(other)
        try:
            expected = answered(ensemble, given)
        except (RuntimeError, IndexError, ValueError):  # it is too long, or too short, for the network itself
            continue
        for name, tensor in read(path, given).items():
            if tensor.shape != expected[name].shape or (
                not random and distance(tensor, expected[name]) > tolerance(tensor)
            ):
                raise ConversionError(f"{name} differs on sequences of length {other}")
        checked += 1
    if checked < 2:
        raise ConversionError("the network takes sequences of one length")
