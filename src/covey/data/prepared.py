"""Files of inputs just as a network takes them, for networks that were trained on tensors of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.data.npy import read_npy, read_npz
from covey.errors import DataError

_SUFFIXES = (".npy", ".npz")
SEVERAL = "several"
"""What `tensors` says where a sample is more than one tensor."""

KINDS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    )
}  # fmt: skip
"""The types of numbers that networks take, by name."""


def read_prepared(path: Path, record: Mapping[str, Any]) -> Tensor:
    """The inputs (N, ...) in a file, which no more is done to.

    Args:
        path: an .npy file, or an .npz file with an array x.
        record: of the training data, whose `tensors` names the type of the numbers that the network takes.
    """
    wanted, shape = record["tensors"], tuple(record["shape"])
    if wanted == SEVERAL or not shape:
        raise DataError(
            f"{path}: the network was trained by covey.fit on samples that are more than one tensor, which a file of "
            "inputs cannot hold. Load the ensemble in Python: covey.load."
        )
    if path.suffix not in _SUFFIXES:
        raise DataError(
            f"{path}: the network was trained by covey.fit on tensors, and how images, tables or texts were made into "
            f"them is not known. Prepare inputs as for training, and save them as numbers of type {wanted} and shape "
            f"(N, {', '.join(map(str, shape))}) in an .npy file, or as x in an .npz file."
        )
    values = read_npy(path) if path.suffix == ".npy" else _named(path, "x")
    _check(values, "x", path)
    if tuple(values.shape[1:]) != shape:
        raise DataError(
            f"{path} holds inputs of shape {tuple(values.shape[1:])}; the network was trained on {shape}"
        )
    kind = KINDS[wanted]
    found = torch.from_numpy(values)
    if found.is_floating_point() != kind.is_floating_point:
        raise DataError(
            f"{path} holds numbers of type {values.dtype}; the network was trained on {wanted}. Prepare them as for "
            "training."
        )
    return found.to(kind)


def read_answers(path: Path, record: Mapping[str, Any]) -> Tensor:
    """The answers y (N, ...) beside the inputs in an .npz file: numbers of classes, or numbers to regress on."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: expected an .npz file with inputs x and answers y")
    values = _named(path, "y")
    _check(values, "y", path)
    if len(values) != len(_named(path, "x")):
        raise DataError(f"{path} holds {len(_named(path, 'x'))} inputs and {len(values)} answers")
    found = torch.from_numpy(values)
    if record["task"] == "regression":
        return found.to(torch.get_default_dtype())
    if found.is_floating_point():
        raise DataError(f"{path}: y are the numbers of classes, from 0; got numbers of type {values.dtype}")
    most = 1 if record["task"] == "multilabel" else len(record["classes"]) - 1
    inside = (found >= 0) & (found <= most)
    if record["task"] == "segmentation":
        inside |= found == 255
    if not bool(inside.all()):
        outside = int(found[~inside][0])
        raise DataError(f"{path}: y has the class {outside}; the network knows 0 to {most}")
    return found.long()


def _named(path: Path, name: str) -> np.ndarray:
    arrays = read_npz(path)
    if name not in arrays:
        raise DataError(f"{path} holds {', '.join(arrays) or 'no arrays'}; expected an array called {name}")
    return arrays[name]


def _check(values: np.ndarray, name: str, path: Path) -> None:
    """Refuse what is no row of numbers, and numbers that are none."""
    if values.dtype.kind not in "biuf" or not values.ndim:
        raise DataError(
            f"{path}: {name} is {values.dtype} of shape {values.shape}; expected numbers (N, ...)"
        )
    if not len(values):
        raise DataError(f"{path}: {name} holds no samples; expected at least one")
    if not np.isfinite(values).all():
        raise DataError(f"{path}: {name} holds NaN or infinite values; correct or remove these samples")
