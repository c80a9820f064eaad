"""int8: a float ONNX file quantised with calibration data; layers that hurt stay in float.

Static quantisation, a scale per output channel. Without labels the harm is bounded by how often the predicted class
changes: accuracy cannot lose more than that share of the samples.
"""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.deploy import metadata, seals
from covey.deploy.session import axes, fits, open_session, results
from covey.errors import ConversionError, DataError
from covey.extras import load

OPERATIONS = ("Conv", "Gemm", "MatMul")
"""The layers."""

BETWEEN = ("Relu",)
"""What also runs in int8 between layers, since leaving int8 and coming back costs more than it does."""

CALIBRATED = 128
"""How many samples ranges are measured on."""

RANKED = 32
"""How many samples single layers are ranked on."""

KEPT = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the layers that stay in float, tried in turn."""


@dataclass(frozen=True)
class Quantised:
    """What quantising did.

    Args:
        harm: share of samples whose predicted class changed; for labels, of samples with another label;
            for regression, the largest output's mean change over its spread.
        layers: how many layers there are.
        in_float: names of those that stayed in float.
        reduced: whether weights have 7 bits, because this processor's sums of 8-bit products could overflow.
    """

    harm: float
    layers: int
    in_float: tuple[str, ...]
    reduced: bool


def processor_has_vnni() -> bool:
    """Whether this processor sums 8-bit products without overflow (AVX-VNNI or AVX-512 VNNI)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(r"\bavx(512)?_vnni\b", flags) is not None


def quantise(source: Path, target: Path, inputs: Sequence[np.ndarray], *, limit: float) -> Quantised:
    """Write an int8 twin of an exported float file.

    Args:
        source: the float file.
        target: where to write.
        inputs: calibration data, an array (N, ...) for each of the file's inputs.
        limit: of the harm; an error if it is exceeded even with half of the layers in float.
    """
    _check_inputs(source, inputs)
    onnx = load("onnx")
    model = onnx.load(str(source))
    (about,) = (entry.value for entry in model.metadata_props if entry.key == metadata.KEY)
    task = metadata.read(about, source)["task"]
    layers = [node.name for node in model.graph.node if node.op_type in OPERATIONS]
    reference = _answers(source, inputs)
    ranked: list[str] = []
    harm = 0.0
    for share in KEPT:
        count = int(np.ceil(share * len(layers)))
        if count and not ranked:
            ranked = _ranked(source, inputs, layers)
        in_float = tuple(ranked[:count])
        apart = (*in_float, *_directly_after(model.graph, in_float))
        _quantised(source, target, [array[:CALIBRATED] for array in inputs], exclude=apart)
        harm = _harm(_answers(target, inputs), reference, task)
        if harm <= limit:
            _keep_metadata(model, target)
            return Quantised(harm, len(layers), in_float, not processor_has_vnni())
    raise ConversionError(
        f"int8 changes {harm:.1%} of the predictions on the calibration data even with half of the layers in float, "
        f"more than {limit:.1%}. Give more calibration data, allow more, or stay with float."
    )


def _check_inputs(source: Path, inputs: Sequence[np.ndarray]) -> None:
    wanted = open_session(source).get_inputs()
    for about, array in zip(wanted, inputs, strict=True):
        shape = axes(about.shape)[1:]
        if not fits(array.shape[1:], shape) or not len(array):
            raise DataError(
                f"the int8 calibration data have shape {array.shape}; expected (N, {', '.join(map(str, shape))}) with "
                "at least one sample, as the network was exported with."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(
                "the int8 calibration data hold NaN or infinite numbers, from which no range follows; give finite ones."
            )
    numbers = [array for array in inputs if array.dtype.kind == "f"]
    if numbers and all(array.size > 1 and array.min() == array.max() for array in numbers):
        raise DataError(
            f"the int8 calibration data hold {numbers[0].flat[0]:g} everywhere, from which no range follows; give "
            "inputs such as the network will meet."
        )


def _answers(path: Path, inputs: Sequence[np.ndarray], batch: int = 64) -> np.ndarray:
    """The file's probabilities, means or quantiles on all inputs."""
    session = open_session(path)
    found = []
    for start in range(0, len(inputs[0]), batch):
        answer = results(session, [array[start : start + batch] for array in inputs])
        found.append(next(answer[name] for name in ("probs", "mean", "quantiles") if name in answer))
    return np.concatenate(found)


def _harm(found: np.ndarray, reference: np.ndarray, task: str) -> float:
    """Share of classes, or of samples with a label, that changed; of numbers, their change over the spread."""
    if task == "classification":
        return float((found.argmax(-1) != reference.argmax(-1)).mean())
    if task == "multilabel":
        changed = (found > 0.5) != (reference > 0.5)
        return float(changed.reshape(len(changed), -1).any(-1).mean())
    changes = np.abs(found - reference).reshape(len(found), -1).mean(0)
    spreads = reference.reshape(len(reference), -1).std(0)
    return float((changes / np.maximum(spreads, 1e-12)).max())


def _ranked(source: Path, inputs: Sequence[np.ndarray], layers: Sequence[str]) -> list[str]:
    """Layers by how far the answer moves if that layer alone is in int8, the worst first."""
    few = [array[:RANKED] for array in inputs]
    reference = _answers(source, few)
    moved = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in layers:
            alone = Path(folder) / "alone.onnx"
            _quantised(source, alone, few, only=(name,))
            moved[name] = float(np.abs(_answers(alone, few) - reference).mean())
    return sorted(layers, key=lambda name: -moved[name])


def _directly_after(graph: Any, layers: Sequence[str]) -> list[str]:
    """What reads these layers' answers through nothing but sums: in int8 it would round them after all."""
    answers: set[str] = set()
    found = []
    for node in graph.node:  # in the order in which they run
        reads = not answers.isdisjoint(node.input)
        if node.name in layers or (node.op_type == "Add" and reads):
            answers.update(node.output)
        elif node.op_type in BETWEEN and reads:
            found.append(node.name)
    return found


def _quantised(
    source: Path,
    target: Path,
    inputs: Sequence[np.ndarray],
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> None:
    tools = load("onnxruntime.quantization")
    names = [each.name for each in open_session(source).get_inputs()]
    with _quiet():
        tools.quantize_static(
            str(source),
            str(target),
            _reader(tools, names, inputs),
            quant_format=tools.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=not processor_has_vnni(),
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            op_types_to_quantize=[*OPERATIONS, *BETWEEN],
            nodes_to_quantize=list(only),
            nodes_to_exclude=list(exclude),
        )


def _reader(tools: Any, names: Sequence[str], inputs: Sequence[np.ndarray], batch: int = 16) -> Any:
    """Calibration data as ONNX Runtime's quantiser reads them."""

    class Reader(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = self._batches()

        def _batches(self) -> Iterator[Mapping[str, np.ndarray]]:
            for start in range(0, len(inputs[0]), batch):
                yield {name: array[start : start + batch] for name, array in zip(names, inputs, strict=True)}

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self.batches, None)

    return Reader()


def _keep_metadata(model: Any, target: Path) -> None:
    onnx = load("onnx")
    written = onnx.load(str(target))
    del written.metadata_props[:]
    for entry in model.metadata_props:
        if entry.key in (metadata.KEY, seals.KEY):
            written.metadata_props.add(key=entry.key, value=entry.value)
    target.write_bytes(written.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's advice to prepare a graph that is prepared."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
