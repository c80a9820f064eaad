"""New samples with answers, for a network that was trained on other data: read as that data's record says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.data import arrays, pictures, table
from covey.data.columns import encode, words_of
from covey.data.container import Data, Normalisation, Split
from covey.data.inputs import read_inputs
from covey.data.prepared import read_answers, read_prepared
from covey.data.raw import check_file
from covey.errors import DataError, suggest
from covey.tables import counted


def read_labelled(source: str, record: dict[str, Any], target: str | None, *, skip_bad: bool = False) -> Data:
    """Data whose test part is all of `source`, in the form and with the classes of the training data.

    Args:
        source: a folder of images in class folders, a table with the training columns and the target, or an .npz file
            with arrays x and y.
        record: `Data.record` of the training data.
        target: tables: the column that holds the answers.
        skip_bad: folders: go on without images that cannot be read, and note which.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{path} is not there; expected a folder of images, a table or an .npz file")
    notes: Sequence[str] = ()
    if "tensors" in record:
        answers = read_answers(path, record)
        inputs = read_prepared(path, record)
    elif path.is_dir():
        inputs, answers, notes = _folder(path, record, skip_bad)
    else:
        check_file(path, "a folder of images, a table or an .npz file")
        if table.is_table(path):
            inputs, answers = _table(path, record, target)
        elif path.suffix == ".npz":
            inputs, answers = read_inputs(path, record)[1], _array_answers(path, record)
        else:
            raise DataError(f"{path}: expected a folder of images, a table or an .npz file with answers")
    test = Split(inputs, answers)
    nothing = Split(inputs[:0], answers[:0])
    scale, unit = record["normalisation"], record["target_normalisation"]
    return Data(
        nothing,
        nothing,
        test,
        task=record["task"],
        classes=tuple(record["classes"]),
        shape=tuple(record["shape"]),
        normalisation=None if scale is None else Normalisation(tuple(scale["mean"]), tuple(scale["std"])),
        target_normalisation=None if unit is None else Normalisation(tuple(unit["mean"]), tuple(unit["std"])),
        record={**record, "source": str(path), "notes": list(notes)},
    )


def _folder(path: Path, record: dict[str, Any], skip_bad: bool) -> tuple[Tensor, Tensor, Sequence[str]]:
    if len(record["shape"]) != 3:
        raise DataError(
            f"{path} is a folder, and the network was trained on inputs of shape {record['shape']}"
        )
    raw = pictures.read_folder(path, tuple(record["shape"]), skip_bad=skip_bad)
    part = raw.parts.get("test", raw.parts["train"])
    names = [raw.classes[k] for k in part.targets.tolist()]
    return part.inputs, _numbered(names, record, path), raw.notes


def _table(path: Path, record: dict[str, Any], target: str | None) -> tuple[Tensor, Tensor]:
    if not record["columns"]:
        raise DataError(
            f"{path} is a table, and the network was trained on inputs of shape {record['shape']}"
        )
    frame = table.read_frame(path, words_of(record["columns"]))
    if target is None or target not in frame:
        raise DataError(
            f"{path} has no column {target!r}, which the network predicts"
            + suggest(target or "", frame.columns)
        )
    column = frame[target]
    if column.isna().any():
        raise DataError(
            f"{path}: the target {target!r} is missing in {counted(int(column.isna().sum()), 'row')}; remove those"
        )
    return encode(frame, record["columns"], str(path)), _answers(table.labels_of(column), record, path)


def _array_answers(path: Path, record: dict[str, Any]) -> Tensor:
    raw = arrays.read_arrays(path, record["task"])
    part = raw.parts.get("test", raw.parts["train"])
    values = part.targets.numpy()
    if record["task"] == "classification":
        values = np.array([raw.classes[k] for k in values.tolist()])
    return _answers(values, record, path)


def _word_in(values: np.ndarray) -> str:
    """The first value that is no number."""
    for value in values.ravel().tolist():
        try:
            float(value)
        except ValueError:
            return str(value)
    return ""


def _answers(values: np.ndarray, record: dict[str, Any], path: Path) -> Tensor:
    if record["task"] == "regression":
        try:
            numbers = torch.from_numpy(values.astype(np.float64))
        except ValueError:
            raise DataError(
                f"{path}: the network predicts a number, and the target is not numeric: it holds {_word_in(values)!r}"
            ) from None
        unit = record["target_normalisation"]
        if unit is None:
            return numbers.float()
        return ((numbers - unit["mean"][0]) / unit["std"][0]).float()
    return _numbered([str(value) for value in values.tolist()], record, path)


def _numbered(names: list[str], record: dict[str, Any], path: Path) -> Tensor:
    """Classes by name as the numbers that the network knows them by; class 2 may be written 2.0."""
    known = {name.removesuffix(".0"): k for k, name in enumerate(record["classes"])}
    names = [name.removesuffix(".0") for name in names]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"{path} has classes that the network was not trained on: {', '.join(map(repr, unknown[:5]))}; it knows "
            f"{', '.join(map(repr, record['classes'][:8]))}"
        )
    return torch.tensor([known[name] for name in names], dtype=torch.int64)
