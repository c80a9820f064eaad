"""`export`: an ensemble as one file that answers without covey, compared with the ensemble before it is there."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph

from covey.data.inputs import check_record
from covey.deploy import metadata, seals
from covey.deploy.file_checks import OF_MEMBERS, answered, check_batches, check_equal_to, check_lengths
from covey.deploy.fusing import (
    TOLERANCE,
    check_answers,
    check_ensemble,
    fused_graph,
    graph_module,
    is_random,
)
from covey.deploy.int8 import Quantised, quantise
from covey.deploy.joining import join
from covey.deploy.onnx_file import cause, write_onnx
from covey.deploy.session import fits, open_session, results
from covey.deploy.simplify import merge_equal, without_copies
from covey.deploy.tracing import Example, quiet
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError, StoreError
from covey.extras import load
from covey.files import draft as new_file
from covey.files import whole
from covey.networks.calls import arguments
from covey.options import check_choice, check_least, check_whole

KINDS = {"onnx": ".onnx", "pt2": ".pt2"}
SHORTEST = 4
"""Steps that an example must have for a file that takes any number of them."""

_log = logging.getLogger("covey")


Lengths = int | Literal["any"]


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Args:
        path: of the file.
        bytes: its size.
        outputs: the names of what it answers.
        difference: from the ensemble's answer on the example, over its scale; None where members are random.
        quantised: what int8 did, if it was asked for; the difference is the float file's, before.
        lengths: of sequences that the file takes: "any", or one number; None where inputs are no sequences.
        precision: the ensemble's own, where it is not float32, which files compute in: the difference is then from its
            answer in float32.
    """

    path: Path
    bytes: int
    outputs: tuple[str, ...]
    difference: float | None
    quantised: Quantised | None = None
    precision: str | None = None
    lengths: Lengths | None = None

    def __str__(self) -> str:
        told = f"{self.path}: {self.bytes / 1e6:.2f} MB, {', '.join(self.outputs)}; "
        if self.difference is None:
            told += "members are fixed draws"
        else:
            told += f"within {self.difference:.1g} of the ensemble's answers"
        if self.precision is not None:
            told += f" in float32, where the ensemble itself is {self.precision}"
        if self.quantised is not None:
            kept, layers = len(self.quantised.in_float), self.quantised.layers
            told += f" before int8, which changes {self.quantised.harm:.2%} of them; {kept} of {layers} layers in float"
        if self.lengths is not None:
            told += f"; sequences of {'any' if self.lengths == 'any' else 'one'} length"
        if isinstance(self.lengths, int):
            told += f" only, {self.lengths}"
        return told


def export(
    ensemble: Ensemble,
    path: str | Path,
    example: Any,
    *,
    to: Literal["onnx", "pt2"] | None = None,
    members: bool = False,
    weights: Literal["made", "stored"] = "made",
    record: Mapping[str, Any] | None = None,
    int8: Any = None,
    int8_limit: float = 0.005,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Exported:
    """Write the ensemble as an ONNX or torch.export file that needs no covey, at any batch size.

    The file answers `probs`, `entropy` and `mutual_information`, or for regression `mean`, `std`, `epistemic` and
    `aleatoric`, or `quantiles` and `epistemic`; temperatures, conformal `sets` and the ends of conformal intervals,
    `low` and `high`, are inside. Its metadata say everything else under "covey".

    Args:
        ensemble: what `convert`, `fit` or `load` gave.
        path: of the file.
        example: real inputs as the network takes them; the file must answer on them as the ensemble does.
        to: "onnx" or "pt2"; by default what the path ends with.
        members: whether the file also gives each member's own answer.
        weights: "made" stores every member's weights, folded and cut: the fastest. "stored" stores what the ensemble
            stores and makes members' weights when the file is loaded: the smallest.
        record: of the training data (`data.record`): classes, normalisation, columns.
        int8: calibration inputs, as the network takes them and at best some hundred: the file then computes in int8.
        int8_limit: the largest share of them whose predicted class may change; layers that hurt stay in float.
        tolerance: how far answers may be from the ensemble's, over the largest of them.
        seed: of the draws that random members become.
    """
    path = Path(path)
    kind = _kind(path, to)
    check_choice("weights", weights, ("made", "stored"))
    check_least("tolerance", tolerance, 0)
    check_least("int8_limit", int8_limit, 0)
    check_whole("seed", seed, 0)
    check_ensemble(ensemble, "export")
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            load(package)
    if not path.parent.is_dir():
        raise StoreError(f"cannot write {path}: there is no folder {path.parent}.")
    if path.is_dir():
        raise StoreError(f"cannot write {path}: it is a folder; name a file in it.")
    if int8 is not None and kind != "onnx":
        raise OptionError("int8 is for ONNX files; leave to= at 'onnx'.")
    ensemble, example, precision = _in_float32(ensemble, example)
    settings = _Settings(kind, members, weights, record, int8, int8_limit, tolerance, seed)
    with ensemble.evaluating(), torch.no_grad():
        given = _named_apart(Example.of(ensemble.skeleton(), example))
        check_answers(ensemble, given)
        written = _with_any_length(ensemble, path, given, settings) or _written(
            ensemble, path, given, settings
        )
    return replace(written, precision=precision)


@dataclass(frozen=True)
class _Settings:
    """What `export` was asked for."""

    kind: str
    members: bool
    weights: Literal["made", "stored"]
    record: Mapping[str, Any] | None
    int8: Any
    int8_limit: float
    tolerance: float
    seed: int


def _with_any_length(ensemble: Ensemble, path: Path, given: Example, settings: _Settings) -> Exported | None:
    """The file for sequences of any length; None if there are none, or the network does not allow it."""
    if not given.lengths or min(given.lengths) < SHORTEST:
        return None
    try:
        return _written(ensemble, path, replace(given, any_length=True), settings)
    except Exception as error:  # torch's, ONNX Runtime's or ours: whatever it is, one length may still do
        _log.debug("no file for sequences of any length: %s", cause(error))
        return None


def _written(ensemble: Ensemble, path: Path, given: Example, settings: _Settings) -> Exported:
    kind, quantised = settings.kind, None
    module = _module(ensemble, given, settings.members, settings.weights, settings.seed)
    random = is_random(ensemble, given)
    expected = answered(ensemble, given)
    outputs = tuple(_outputs(module))
    _check_record(settings.record, given, expected)
    described = metadata.describe(ensemble, given, outputs, settings.record, random, settings.weights)
    with whole(path) as draft:
        program = _program(module, given)
        WRITERS[kind](program, draft, described)
        found = READERS[kind](draft, given)
        far = (
            None
            if random
            else check_equal_to(found, expected, settings.tolerance, kind, draft, program, given)
        )
        check_batches(READERS[kind], draft, given, found)
        if given.any_length:
            check_lengths(ensemble, READERS[kind], draft, given, random)
        if settings.int8 is not None:
            calibration = _calibration(ensemble, settings.int8, given)
            with new_file(path.parent) as twin:
                quantised = quantise(draft, twin, calibration, limit=settings.int8_limit)
                draft.write_bytes(twin.read_bytes())
        if kind == "onnx":
            seals.seal(draft)
    lengths: Lengths | None = "any" if given.any_length else max(given.lengths, default=None)
    return Exported(path, path.stat().st_size, outputs, far, quantised, lengths=lengths)


def _check_record(record: Mapping[str, Any] | None, given: Example, expected: Mapping[str, Tensor]) -> None:
    """Refuse the record of other data than the ensemble's: whoever opens the file would find it contradicts itself."""
    if record is None:
        return
    check_record(record, "record")
    if len(given.tensors) == 1 and not fits(record["shape"], given.shape(given.tensors[0])[1:]):
        raise OptionError(
            f"record= is of data with inputs of shape {tuple(record['shape'])}, and the example's have "
            f"{tuple(given.tensors[0].shape[1:])}; give the record of the data that the ensemble was trained on."
        )
    if "probs" in expected and expected["probs"].shape[-1] < len(record["classes"]):
        raise OptionError(
            f"record= names {len(record['classes'])} classes, and the ensemble has {expected['probs'].shape[-1]} "
            "outputs; give the record of the data that it was trained on."
        )


def _named_apart(example: Example) -> Example:
    """The same, whose inputs have no output's name: in a file, a name stands for one tensor."""
    names = [f"input_{name}" if name in metadata.MEANING else name for name in example.names]
    return replace(example, names=tuple(names))


def _calibration(ensemble: Ensemble, inputs: Any, example: Example) -> list[np.ndarray]:
    """Calibration inputs as arrays, in the order of the example's."""
    given = _named_apart(Example.of(ensemble.skeleton(), inputs))
    found = dict(zip(given.names, given.tensors, strict=True))
    if found.keys() != set(example.names):
        raise OptionError(
            f"the int8 calibration data are {', '.join(found)}; the example is {', '.join(example.names)}. Give both "
            "in the same form."
        )
    arrays = []
    for name, wanted in zip(example.names, example.tensors, strict=True):
        tensor = found[name]
        if tensor.is_floating_point() != wanted.is_floating_point():
            kinds = " and the example ".join(
                str(each.dtype).removeprefix("torch.") for each in (tensor, wanted)
            )
            raise OptionError(
                f"the int8 calibration data hold {kinds} for {name!r}; give both in the same form."
            )
        arrays.append((tensor.float() if tensor.is_floating_point() else tensor.to(wanted.dtype)).numpy())
    return arrays


def _kind(path: Path, to: str | None) -> str:
    if to is None:
        to = {suffix: kind for kind, suffix in KINDS.items()}.get(path.suffix)
        if to is None:
            raise OptionError(f"{path} ends with neither .onnx nor .pt2; say which is meant with to=.")
    check_choice("to", to, tuple(KINDS))
    if path.suffix in KINDS.values() and path.suffix != KINDS[to]:
        raise OptionError(f"{path} ends in {path.suffix}, and to= says {to!r}; let both say the same.")
    return to


def _in_float32(ensemble: Ensemble, example: Any) -> tuple[Ensemble, Any, str | None]:
    """The same in float32, which is what runtimes compute in, and the precision from before if it was another."""
    dtypes = {tensor.dtype for tensor in ensemble.parameters() if tensor.is_floating_point()}
    others = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - {torch.float32})
    if not others:
        return ensemble, example, None

    def single(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    converted, given = copy.deepcopy(ensemble).float(), torch.utils._pytree.tree_map(single, example)
    precision = " and ".join(others)
    args, kwargs = arguments(given)
    try:
        converted.predict(*args, check=False, **kwargs)
    except RuntimeError as error:
        raise ConversionError(
            f"files compute in float32, the ensemble has tensors of {precision}, and in float32 the network fails: "
            f"{' '.join(str(error).split())[:300]}. It seems to name a precision in its forward pass; let it follow "
            "its weights' instead."
        ) from error
    return converted, given, precision


def _module(ensemble: Ensemble, example: Example, members: bool, weights: str, seed: int) -> nn.Module:
    if weights == "made":
        graph, constants = fused_graph(ensemble, example, seed=seed)
    else:
        graph, constants = join(ensemble, example, made=False, seed=seed)
        without_copies(graph)
        merge_equal(graph)
    if not members:
        _without_members(graph)
    graph.eliminate_dead_code()
    return graph_module(graph, constants)


def _without_members(graph: Graph) -> None:
    (output,) = (node for node in graph.nodes if node.op == "output")
    answer: Any = output.args[0]
    output.args = ({name: node for name, node in answer.items() if name not in OF_MEMBERS},)


def _outputs(module: Any) -> list[str]:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return list(output.args[0])


def _program(module: nn.Module, example: Example) -> ExportedProgram:
    shapes = tuple(example.free_axes(tensor) or None for tensor in example.tensors)
    with quiet():
        return torch.export.export(module, example.tensors, dynamic_shapes=shapes)


def _write_pt2(program: ExportedProgram, path: Path, about: Mapping[str, Any]) -> None:
    with quiet(), path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{metadata.KEY}.json": metadata.as_text(about)})


def _read_onnx(path: Path, example: Example) -> dict[str, Tensor]:
    found = results(open_session(path), [tensor.numpy() for tensor in example.tensors])
    return {name: torch.from_numpy(array) for name, array in found.items()}


def _read_pt2(path: Path, example: Example) -> dict[str, Tensor]:
    with quiet(), path.open("rb") as file:
        return torch.export.load(file).module()(*example.tensors)


WRITERS = {"onnx": write_onnx, "pt2": _write_pt2}
READERS = {"onnx": _read_onnx, "pt2": _read_pt2}
