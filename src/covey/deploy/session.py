"""Exported ONNX files, run by ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.deploy import metadata, seals
from covey.errors import DataError, StoreError
from covey.extras import load
from covey.files import is_ordinary
from covey.quantiles import KIND, Quantiles, kind_of

_KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(double)": np.float64,
          "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8}  # fmt: skip


class DeployedEnsemble:
    """An ensemble in an ONNX file that `covey.export` wrote, run by ONNX Runtime.

    Args:
        path: of the file.
        threads: that answer; all of the machine's by default.

    Attributes:
        about: the file's metadata.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        self.path = Path(path)
        self.session = open_session(self.path, threads=threads)
        entries = _entries(self.session, self.path)
        self.about = metadata.read(entries.get(metadata.KEY), self.path)
        _check_graph(self.session, self.about, self.path)
        seals.check_seal(entries.get(seals.KEY), self.path)

    def __call__(self, *inputs: Any) -> dict[str, np.ndarray]:
        """The answer by name, for inputs in the order of the file's."""
        return results(self.session, inputs)

    def predict(self, inputs: Tensor) -> Any:
        """The file's answer, under the names that an ensemble's answer has."""
        found = {name: torch.from_numpy(array) for name, array in self(inputs.numpy()).items()}
        answer = SimpleNamespace(**found, guaranteed=not {"sets", "low"}.isdisjoint(found))
        if "quantiles" in found:
            asked = Quantiles.of(self.about["task"])
            assert asked is not None
            answer.asked, answer.centre = asked, asked.centre(answer.quantiles)[..., 0]
            answer.members = found.get("member_quantiles")
        elif "mean" in found:
            answer.variance = answer.epistemic + answer.aleatoric
        elif self.about["task"] == "multilabel":
            answer.labels = answer.probs > 0.5
        else:
            answer.label, answer.max_prob = answer.probs.argmax(-1), answer.probs.amax(-1)
        if "member_logits" in found:
            answer.member_log_probs = answer.member_logits.log_softmax(-1)
        return answer


def _entries(session: Any, path: Path) -> dict[str, str]:
    """The metadata as they stand in the file, by key."""
    try:
        return session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is damaged: its metadata are no text ({error}).") from error


_ANSWERED = {"regression": {"mean", "std"}, "gaussian": {"mean", "std"}, KIND: {"quantiles", "epistemic"}}
"""What a file must answer at least, where it is no probabilities."""


def _check_graph(session: Any, about: Mapping[str, Any], path: Path) -> None:
    """Refuse metadata that say something else than the file does: anybody may have written them."""
    outputs = {each.name: each.shape for each in session.get_outputs()}
    inputs = {each.name: axes(each.shape)[1:] for each in session.get_inputs()}
    told = {name: tuple(entry.get("shape", ())[1:]) for name, entry in about["inputs"].items()}
    wanted = _ANSWERED.get(kind_of(about["task"]), {"probs", "entropy"})
    wrong = ""
    if inputs != told:
        wrong = f"it takes {_shapes(inputs)}, and its metadata say {_shapes(told)}"
    elif set(outputs) != set(about["outputs"]) or not wanted <= set(outputs):
        wrong = f"it answers {', '.join(outputs)}, and its metadata say {', '.join(about['outputs'])}"
    elif about["data"] is not None and len(inputs) == 1:
        trained = tuple(about["data"]["shape"])
        if not any(fits(trained, shape) for shape in inputs.values()):
            wrong = f"it takes {_shapes(inputs)}, and its metadata say that the data had shape {trained}"
    asked = Quantiles.of(about["task"])
    if not wrong and asked is not None and outputs["quantiles"][-1] != len(asked.levels):
        wrong = f"it answers {outputs['quantiles'][-1]} quantiles, and its metadata name {len(asked.levels)} levels"
    if not wrong and "probs" in outputs and _size(outputs["probs"]) < len(about["labels"]):
        wrong = f"it has {outputs['probs'][-1]} classes, and its metadata name {len(about['labels'])}"
    if wrong:
        raise StoreError(f"{path} contradicts itself: {wrong}. It was changed after it was written.")


def axes(shape: Sequence[Any]) -> tuple[int | str, ...]:
    """A shape with the names that covey gives to axes of any size; runtimes have others."""
    names = ("batch", "length")
    return tuple(size if isinstance(size, int) else names[min(axis, 1)] for axis, size in enumerate(shape))


def fits(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    """Whether sizes are the wanted ones, where these are numbers."""
    pairs = zip(wanted, shape, strict=False)
    return len(shape) == len(wanted) and all(isinstance(size, str) or size == own for size, own in pairs)


def _size(shape: Sequence[Any]) -> float:
    """How many classes there are; any number where the file does not say."""
    return shape[-1] if shape and isinstance(shape[-1], int) else float("inf")


def _shapes(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} of shape {shape}" for name, shape in inputs.items()) or "no input"


def open_session(source: Path | bytes, *, threads: int | None = None) -> Any:
    """ONNX Runtime with this file, or these bytes of one."""
    runtime = load("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    # Else its threads go on spinning after an answer, which takes the processor from whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if isinstance(source, Path) and not is_ordinary(source):
        raise StoreError(f"{source} is missing, or no ordinary file; expected an exported .onnx file.")
    content = str(source) if isinstance(source, Path) else source
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no base of their own
        what = source if isinstance(source, Path) else "the file"
        said = " ".join(str(error).split())[:300]
        raise StoreError(
            f"{what} is no ONNX file that ONNX Runtime can run, or is damaged: {said}"
        ) from error


def results(session: Any, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """What a session answers by name."""
    wanted = session.get_inputs()
    if len(inputs) != len(wanted):
        raise DataError(f"the file takes {len(wanted)} inputs; got {len(inputs)}.")
    given = {}
    for about, values in zip(wanted, inputs, strict=True):
        given[about.name] = _fitting(about, np.asarray(values))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def _fitting(about: Any, array: np.ndarray) -> np.ndarray:
    """An array as the file takes it, or an error that says what it takes."""
    shape = axes(about.shape)
    if not fits(array.shape, shape):
        wanted = ", ".join(map(str, shape))
        raise DataError(f"input {about.name!r} has shape {array.shape}; the file takes ({wanted}).")
    kind = _KINDS.get(about.type)
    if kind is None or not np.can_cast(array.dtype, kind, "same_kind"):
        raise DataError(f"input {about.name!r} holds {array.dtype}; the file takes {about.type}.")
    return np.ascontiguousarray(array, dtype=kind)
