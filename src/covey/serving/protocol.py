"""The Open Inference Protocol, version 2, which KServe and Triton speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from covey.errors import suggest
from covey.serving.batcher import Columns
from covey.serving.limits import Limits
from covey.serving.model import Model
from covey.serving.reading import check_count, holds_truth, read_array, read_table, read_texts
from covey.serving.refusals import RefusedError
from covey.version import __version__

_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_FLOATS = ("FP16", "FP32", "FP64")
_DATATYPE = {"label": "BYTES", "defer": "BOOL"}
ARRAY = "x"
"""The name of the input, where it is one array."""


def server_metadata() -> dict[str, Any]:
    """The answer to /v2."""
    return {"name": "covey", "version": __version__, "extensions": []}


def model_metadata(model: Model) -> dict[str, Any]:
    """The answer to /v2/models/NAME."""
    if model.columns:
        inputs = []
        for spec in model.columns:
            kind = "FP64" if spec["kind"] == "number" else "BYTES"
            inputs.append({"name": spec["name"], "datatype": kind, "shape": [-1]})
    else:
        inputs = [{"name": ARRAY, "datatype": "FP32", "shape": [-1, *model.shape]}]
    outputs = []
    for name in _answered(model):
        row = {"probs": len(model.record["classes"]), "quantiles": len(model.levels)}
        shape = [-1, row[name]] if name in row else [-1]
        outputs.append({"name": name, "datatype": _DATATYPE.get(name, "FP32"), "shape": shape})
    return {
        "name": model.name,
        "versions": [],
        "platform": "covey_ensemble",
        "inputs": inputs,
        "outputs": outputs,
    }


def read_infer(payload: Any, model: Model, limits: Limits) -> Tensor:
    """The raw inputs of an inference request."""
    given = payload.get("inputs") if isinstance(payload, dict) else None
    if not isinstance(given, list) or not given:
        raise RefusedError(422, 'expected a JSON object with "inputs", a list of at least one tensor')
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for entry in given:
        name, datatype, array = _tensor(entry)
        check_count(len(array), limits)
        if name in tensors:
            raise RefusedError(422, f"input {name!r} is there twice; expected one tensor of each name")
        tensors[name] = (datatype, array)
    if model.columns:
        return _table(tensors, model)
    datatype, array = _only(tensors)
    if array.dtype.kind not in "iuf":
        raise RefusedError(422, f"{ARRAY!r} holds {datatype}; expected numbers such as FP32")
    return read_array(array, model, pixels=model.takes == "image" and datatype == "UINT8")


def infer_answer(payload: Mapping[str, Any], columns: Columns, model: Model) -> dict[str, Any]:
    """The answer to an inference request: one tensor per output, or those that were asked for."""
    outputs = []
    for name in _wanted(payload, model):
        values = columns[name]
        shape, data = [len(values)], values
        if name in ("probs", "quantiles"):
            shape = [len(values), len(values[0])]
            data = [number for row in values for number in row]
        outputs.append({"name": name, "datatype": _DATATYPE.get(name, "FP32"), "shape": shape, "data": data})
    answer: dict[str, Any] = {"model_name": model.name, "outputs": outputs}
    if "id" in payload:
        named = str(payload["id"])[:200]
        answer["id"] = named.encode(errors="replace").decode()  # which may hold half of a character
    return answer


def _answered(model: Model) -> list[str]:
    """The outputs; `defer` is one only if there is a threshold, since a tensor has no null."""
    return [name for name in model.answers if name != "defer" or model.defer is not None]


def _wanted(payload: Mapping[str, Any], model: Model) -> list[str]:
    known = _answered(model)
    asked = payload.get("outputs")
    if not asked:
        return known
    if not isinstance(asked, list):
        raise RefusedError(422, '"outputs" is a list of objects with a "name"')
    names = []
    for entry in asked:
        name = entry.get("name") if isinstance(entry, dict) else None
        if name not in known:
            raise RefusedError(422, f"there is no output {str(name)[:80]!r}{suggest(str(name), known)}")
        names.append(name)
    return names


def _tensor(entry: Any) -> tuple[str, str, np.ndarray]:
    """One tensor of a request: its name, datatype and values, (N, ...)."""
    if not isinstance(entry, dict) or not {"name", "shape", "datatype", "data"} <= set(entry):
        raise RefusedError(422, 'each input is an object with "name", "shape", "datatype" and "data"')
    name, shape, datatype = str(entry["name"])[:200], entry["shape"], entry["datatype"]
    if datatype not in (*_INTEGERS, *_FLOATS, "BYTES", "BOOL"):
        raise RefusedError(
            422,
            f"input {name!r} has datatype {str(datatype)[:40]!r}; expected one such as FP32",
        )
    good = isinstance(shape, list) and shape and all(type(size) is int and size > 0 for size in shape)
    if not good:
        raise RefusedError(
            422, f"input {name!r} has shape {str(shape)[:80]}; expected a list of sizes above 0"
        )
    try:
        array = np.array(entry["data"], dtype=object if datatype == "BYTES" else None)
    except (ValueError, OverflowError) as error:
        raise RefusedError(422, f"input {name!r} holds lists of unequal length") from error
    if array.size != np.prod([float(size) for size in shape]):
        raise RefusedError(
            422, f"input {name!r} has shape {shape} and {array.size} values, which do not fit together"
        )
    allowed = {"BYTES": "O", "BOOL": "b"}.get(datatype, "iu" if datatype in _INTEGERS else "iuf")
    mixed = (
        datatype not in ("BYTES", "BOOL") and isinstance(entry["data"], list) and holds_truth(entry["data"])
    )
    if array.dtype.kind not in allowed or mixed:
        raise RefusedError(422, f"input {name!r} is {datatype}, and its data are something else")
    return name, datatype, array.reshape(shape)


def _only(tensors: Mapping[str, tuple[str, np.ndarray]]) -> tuple[str, np.ndarray]:
    if list(tensors) != [ARRAY]:
        raise RefusedError(422, f"expected one input, {ARRAY!r}; got {', '.join(tensors)[:200]}")
    return tensors[ARRAY]


def _table(tensors: Mapping[str, tuple[str, np.ndarray]], model: Model) -> Tensor:
    """One tensor per column, each (N,) or (N, 1)."""
    columns: dict[str, list[Any]] = {}
    count = len(next(iter(tensors.values()))[1])
    known = {spec["name"] for spec in model.columns}
    for name in tensors:
        if name not in known:
            raise RefusedError(422, f"there is no column {name!r}{suggest(name, known)}; give no others")
    for spec in model.columns:
        name = spec["name"]
        if name not in tensors:
            raise RefusedError(422, f"there is no input {name!r}{suggest(name, tensors)}; each column is one")
        array = tensors[name][1]
        if array.shape not in ((count,), (count, 1)):
            raise RefusedError(
                422, f"input {name!r} has shape {array.shape}; expected ({count},) or ({count}, 1)"
            )
        columns[name] = array.flatten().tolist()
    if model.takes == "text":
        return read_texts(columns[model.columns[0]["name"]], model)
    return read_table(columns, model)
