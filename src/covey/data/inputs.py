"""Inputs without answers, in the form that a trained network knows from its data's record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from covey.data import pictures, table, tokens
from covey.data.arrays import as_images, check_numbers
from covey.data.columns import encode, words_of
from covey.data.container import Normalisation, Task
from covey.data.npy import read_npy, read_npz
from covey.data.prepared import KINDS, SEVERAL, read_prepared
from covey.data.raw import check_file
from covey.errors import DataError, StoreError
from covey.extras import load
from covey.schema import Kinds, Many, Maybe, Number, Record, Spec, Truth, Whole, Word, check

_SCALE = Record({"mean": Many(Number()), "std": Many(Number(1e-30))})
_NUMBERS: dict[str, Spec] = {"mean": Number(), "std": Number(1e-30), "missing": Truth()}
_COLUMN = Kinds(
    "kind",
    {
        "number": Record({"name": Word(), **_NUMBERS}),
        "date": Record({"name": Word(), "format": Word(), **_NUMBERS}),
        "category": Record({"name": Word(), "values": Many(Word())}),
        "text": Record(
            {
                "name": Word(),
                "tokenizer": Word(),
                "length": Whole(2, 1 << 20),
                "pad": Whole(),
                "vocabulary": Whole(),
                "sha256": Word(),
            }
        ),
    },
)
RECORD = Record(
    {
        "task": Word(get_args(Task)),
        "classes": Many(Word()),
        "shape": Many(Whole(1), most=8),  # none for samples that are more than one tensor
        "columns": Many(_COLUMN),
        "normalisation": Maybe(_SCALE),
        "target_normalisation": Maybe(_SCALE),
    },
    optional={"tensors": Word((*KINDS, SEVERAL))},  # the type of tensors that the network takes as they are
)
"""What a stored record of the training data looks like, as far as predictions need it."""


def check_record(record: Mapping[str, Any], source: str) -> None:
    """Refuse a stored record that is not `Data.record`, or contradicts itself."""
    check(record, RECORD, source)
    channels = record["shape"][0] if len(record["shape"]) == 3 else None
    targets = record["target_normalisation"]
    columns = max(1, len(targets["mean"])) if targets is not None else 1
    for name, count in (("normalisation", channels), ("target_normalisation", columns)):
        scale = record[name]
        if scale is not None and not len(scale["mean"]) == len(scale["std"]) == count:
            raise StoreError(
                f"{source}: {name} has {len(scale['mean'])} means and {len(scale['std'])} deviations; expected {count} "
                "of each. The file was changed after it was written, or damaged."
            )


def read_inputs(source: str | Path, record: dict[str, Any]) -> tuple[list[str], Tensor]:
    """New inputs for a network that was trained on data with this record.

    Args:
        source: an image, a folder of images, a table with the columns of the training data (a target is
            ignored), an .npy or .npz array (x), or for texts a file with one on each line.
        record: `Data.record` of the training data.

    Returns:
        A name for each input (its file, or its row), and the raw inputs (N, ...), still to go through
        `prepare`.
    """
    path, shape = Path(source).expanduser(), tuple(record["shape"])
    if not path.exists():
        raise DataError(f"{path} is not there; expected an image, a folder of images, a table or an array")
    if not path.is_dir():
        check_file(path, "an image, a folder of images, a table or an array")
    if "tensors" in record:
        inputs = read_prepared(path, record)
    elif table.is_table(path):
        if not record["columns"]:
            raise DataError(f"{path} is a table, but the network was trained on inputs of shape {shape}")
        inputs = encode(table.read_frame(path, words_of(record["columns"])), record["columns"], str(path))
    elif path.suffix in (".npy", ".npz"):
        inputs = _array(path, record)
    elif record["columns"] and record["columns"][0]["kind"] == tokens.KIND:
        inputs = tokens.encode_text(_lines(path), record["columns"][0])
    else:
        if len(shape) != 3:
            raise DataError(f"{path}: expected a table or an array, for inputs of shape {shape}")
        files = pictures.image_files(path) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path} holds no images")
        inputs = pictures.read_images(files, size=shape)
        return [str(p.relative_to(path)) if path.is_dir() else p.name for p in files], inputs
    if not len(inputs):
        raise DataError(f"{path} holds no samples; expected at least one")
    if tuple(inputs.shape[1:]) != shape:
        raise DataError(
            f"{path} holds inputs of shape {tuple(inputs.shape[1:])}; the network was trained on {shape}"
        )
    return [str(row) for row in range(len(inputs))], inputs


def _lines(path: Path) -> list[str]:
    """The texts of a file, one a line."""
    if path.is_dir() or path.suffix not in (".txt", ".text"):
        raise DataError(
            f"{path}: expected a table with a column of texts, or a .txt file with a text on each line"
        )
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from error


def prepare(inputs: Tensor, record: dict[str, Any]) -> Tensor:
    """What `Data.prepare` does, from the record alone: normalised images, int64 bytes, tables as they are."""
    if record["task"] == "language":
        return inputs.long()
    if record["normalisation"] is None:
        return inputs
    scale = record["normalisation"]
    return Normalisation(tuple(scale["mean"]), tuple(scale["std"])).apply(inputs)


def _array(path: Path, record: dict[str, Any]) -> Tensor:
    if path.suffix == ".npy":
        x = read_npy(path)
    else:
        arrays = read_npz(path)
        if "x" not in arrays:
            raise DataError(f"{path} holds {', '.join(arrays) or 'no arrays'}; expected an array called x")
        x = arrays["x"]
    check_numbers(x, "x", path)
    if x.ndim != 2:
        return torch.from_numpy(as_images(x, path))
    if not record["columns"] or record["columns"][0]["kind"] == tokens.KIND:
        raise DataError(
            f"{path} has shape {x.shape}; the network was trained on inputs of {tuple(record['shape'])}"
        )
    pandas = load("pandas")

    names = [column["name"] for column in record["columns"]]
    if x.shape[1] != len(names):
        raise DataError(f"{path} has {x.shape[1]} columns; the network was trained on {len(names)}")
    return encode(pandas.DataFrame(x.astype(np.float64), columns=names), record["columns"], str(path))
