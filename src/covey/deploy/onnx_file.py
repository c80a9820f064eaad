"""An exported program in ONNX's words, in one file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from covey.deploy import metadata, seals
from covey.deploy.tracing import quiet
from covey.errors import ConversionError, StoreError

LARGEST = 2**31 - 1
"""Bytes that one ONNX file can have."""


def write_onnx(program: ExportedProgram, path: Path, about: Mapping[str, Any]) -> None:
    """Write an exported program as an ONNX file with its metadata and an empty seal."""
    model = _translated(program, about)
    for old in list(model.metadata_props):
        model.metadata_props.remove(old)
    _without_traces(model.graph)
    for key, value in ((metadata.KEY, metadata.as_text(about)), (seals.KEY, seals.EMPTY)):
        model.metadata_props.add(key=key, value=value)
    model.producer_name = "covey"
    if model.ByteSize() > LARGEST:
        raise StoreError(
            f"the file would have {model.ByteSize() / 1e9:.1f} GB, and an ONNX file holds at most 2.1. Take "
            "weights='stored', which holds what members share once, or to='pt2'."
        )
    path.write_bytes(model.SerializeToString())


def _translated(program: ExportedProgram, about: Mapping[str, Any]) -> Any:
    """The graph in ONNX's operations."""
    _sort_as_onnx_does(program.graph)
    with _quiet_onnx():
        try:
            found = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=list(about["inputs"]),
                output_names=list(about["outputs"]),
                optimize=about["weights"] == "made",  # which computes all constants, stored weights too
            )
        except Exception as error:  # the exporter's own, whose base says nothing, or whatever it ran into
            raise ConversionError(
                f"ONNX has no words for this network: {cause(error)}. Write it as to='pt2' instead, or fuse it."
            ) from error
    assert found is not None
    _name_apart(found.model.graph)
    return found.model_proto


def _sort_as_onnx_does(graph: Graph) -> None:
    """Name torch's stable sort as the plain one, which ONNX has: there equal values keep their order anyway."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sort.stable):
        given = node.kwargs
        node.target = torch.ops.aten.sort.default
        node.args = (node.args[0], given.get("dim", -1), given.get("descending", False))
        node.kwargs = {}


def _name_apart(graph: Any) -> None:
    """Rename tensors inside the graph that have an output's name, which torch gives to a network's own mean too."""
    names = {output.name for output in graph.outputs}
    for node in graph.all_nodes():
        for tensor in node.outputs:
            if tensor.name in names and not tensor.is_graph_output():
                tensor.name = f"{tensor.name}_inside"


def cause(error: BaseException) -> str:
    """What the exporter stumbled over, at the bottom of what it says of itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _without_traces(graph: Any) -> None:
    """Leave out the lines of code that torch notes with every node: they are nobody's business."""
    del graph.metadata_props[:]
    for each in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        del each.metadata_props[:]
        each.doc_string = ""


@contextmanager
def _quiet_onnx() -> Iterator[None]:
    """Without what torch's exporter says about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=".*axis name.*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
