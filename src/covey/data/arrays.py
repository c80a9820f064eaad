"""An .npz file of arrays: x and y, or x_train, y_train, x_test, y_test and perhaps x_val, y_val."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from covey.data.container import Split, Task
from covey.data.npy import read_npz
from covey.data.raw import Raw, class_numbers
from covey.errors import DataError
from covey.extras import load

_NAMES = {"train": ("_train", ""), "validation": ("_val", "_validation"), "test": ("_test",)}


def read_arrays(path: Path, task: Task | None) -> Raw:
    """Arrays of the user's own: inputs (N, D), (N, H, W) or (N, C, H, W), targets (N,)."""
    found = _pairs(path)
    labels = np.concatenate([y for _, y in found.values()])
    why = "as asked for" if task else f"since y has dtype {labels.dtype}"
    if task is None:
        task = "regression" if labels.dtype.kind == "f" else "classification"
    notes = (f"target y: {task}, {why}",)
    classes: tuple[str, ...] = ()
    if task == "classification":
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise DataError(f"{path}: y has missing values (NaN); remove those rows")
        targets, classes = class_numbers(labels)
    else:
        try:
            targets = torch.from_numpy(labels.astype(np.float64))
        except ValueError as error:
            raise DataError(f"{path}: y holds {labels.dtype}, which cannot be regressed on") from error
    sizes = [len(y) for _, y in found.values()]
    pieces = targets.split(sizes)
    first = next(iter(found.values()))[0]
    if first.ndim == 2:
        pandas = load("pandas")

        frame = pandas.DataFrame(np.concatenate([x for x, _ in found.values()]).astype(np.float64))
        frame.columns = [f"x{k}" for k in range(first.shape[1])]
        inputs = torch.arange(len(labels)).split(sizes)
        parts = {p: Split(x, y) for p, x, y in zip(found, inputs, pieces, strict=True)}
        return Raw(parts, task, classes, frame, notes)
    parts = {
        part: Split(torch.from_numpy(as_images(x, path)), y)
        for (part, (x, _)), y in zip(found.items(), pieces, strict=True)
    }
    return Raw(parts, task, classes, notes=notes)


def _pairs(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets of each part that the file has."""
    arrays = {name.lower(): array for name, array in read_npz(path).items()}
    found = {}
    for part, endings in _NAMES.items():
        for ending in endings:
            if f"x{ending}" in arrays and f"y{ending}" in arrays and part not in found:
                x, y = arrays[f"x{ending}"], arrays[f"y{ending}"]
                check_numbers(x, f"x{ending}", path)
                y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
                if y.ndim != 1 or len(x) != len(y) or len(y) == 0:
                    raise DataError(
                        f"{path}: x{ending} is {x.shape} and y{ending} is {y.shape}; expected (N, ...) and "
                        f"(N,)"
                    )
                found[part] = (x, y)
    if "train" not in found:
        raise DataError(
            f"{path} has {', '.join(arrays) or 'no arrays'}; expected x and y, or x_train and y_train (and x_test ...)"
        )
    if len({x.shape[1:] for x, _ in found.values()}) > 1:
        raise DataError(
            f"{path}: inputs differ in shape: " + ", ".join(f"{p} {x.shape}" for p, (x, _) in found.items())
        )
    words = {part: y.dtype.kind in "SU" for part, (_, y) in found.items()}
    if len(set(words.values())) > 1:
        kinds = ", ".join(f"{part} {y.dtype}" for part, (_, y) in found.items())
        raise DataError(f"{path}: targets are words in one part and numbers in another: {kinds}")
    return found


def check_numbers(x: np.ndarray, name: str, path: Path) -> None:
    """Refuse inputs that are words, or a single number without an axis of samples."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: {name} holds words ({x.dtype}); expected numbers")
    if x.ndim < 2:
        raise DataError(
            f"{path}: {name} has shape {x.shape}; expected (N, D), (N, H, W) or (N, C, H, W), where N counts the "
            "samples"
        )
    if 0 in x.shape[1:]:
        raise DataError(f"{path}: {name} has shape {x.shape}, so its samples are empty; expected numbers")


def as_images(x: np.ndarray, path: Path) -> np.ndarray:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W) as (N, C, H, W), uint8 or float32."""
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim != 4:
        raise DataError(f"{path}: inputs have shape {x.shape}; expected (N, D), (N, H, W) or (N, C, H, W)")
    if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused below
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{path}: images have missing (NaN), infinite or too large values")
    return np.ascontiguousarray(x)
