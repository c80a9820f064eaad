"""An .npz file of arrays: x and y, or x_train, y_train, x_test, y_test and perhaps x_val, y_val."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from covey.data.container import IGNORED, Split, Task
from covey.data.npy import read_npz
from covey.data.raw import Raw, class_numbers
from covey.errors import DataError
from covey.extras import load

_NAMES = {"train": ("_train", ""), "validation": ("_val", "_validation"), "test": ("_test",)}


def read_arrays(path: Path, task: Task | None) -> Raw:
    """Arrays of the user's own: inputs (N, D), (N, H, W) or (N, C, H, W), targets (N,), (N, K) or (N, H, W)."""
    found = _pairs(path)
    labels = np.concatenate([y for _, y in found.values()])
    shape = "" if labels.ndim == 1 else f" and shape {labels.shape}"
    why = "as asked for" if task else f"since y has dtype {labels.dtype}{shape}"
    if task is None:
        task = _task_of(labels)
    if task not in _TARGETS:
        raise DataError(f"{path}: arrays cannot be read for task={task!r}; expected {', '.join(_TARGETS)}")
    notes = (f"target y: {task}, {why}",)
    targets, classes = _TARGETS[task](labels, path)
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


def _task_of(labels: np.ndarray) -> Task:
    """The task that targets look like: numbers of a regression, classes, classes of pixels, or several labels."""
    if labels.dtype.kind == "f":
        return "regression"
    by_axes: dict[int, Task] = {1: "classification", 2: "multilabel", 3: "segmentation"}
    return by_axes[labels.ndim]


def _class_targets(labels: np.ndarray, path: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    _check_axes(labels, path, "classification", (1,))
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(f"{path}: y has missing values (NaN); remove those rows")
    return class_numbers(labels)


def _number_targets(labels: np.ndarray, path: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    _check_axes(labels, path, "regression", (1, 2))
    try:
        return torch.from_numpy(labels.astype(np.float64)), ()
    except ValueError as error:
        raise DataError(f"{path}: y holds {labels.dtype}, which cannot be regressed on") from error


def _label_targets(labels: np.ndarray, path: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    _check_axes(labels, path, "multilabel", (2,))
    if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
        raise DataError(f"{path}: labels of which several may be true are 0 or 1; y has other values")
    names = tuple(f"label {k}" for k in range(labels.shape[1]))
    return torch.from_numpy(labels.astype(np.float32)), names


def _pixel_targets(labels: np.ndarray, path: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    _check_axes(labels, path, "segmentation", (3,))
    if labels.dtype.kind not in "biu" or labels.min() < 0 or labels.max() > IGNORED:
        raise DataError(
            f"{path}: classes of pixels are whole numbers from 0, and {IGNORED} for pixels that do not count; y has "
            f"{labels.dtype} from {labels.min()} to {labels.max()}"
        )
    counted = labels[labels != IGNORED]
    if not counted.size:
        raise DataError(f"{path}: every pixel has the class {IGNORED}, which does not count")
    names = tuple(f"class {k}" for k in range(int(counted.max()) + 1))
    return torch.from_numpy(labels.astype(np.uint8)), names


def _check_axes(labels: np.ndarray, path: Path, task: str, expected: tuple[int, ...]) -> None:
    if labels.ndim not in expected:
        raise DataError(f"{path}: y has shape {labels.shape}, which does not suit task={task!r}")


_TARGETS: dict[str, Callable[[np.ndarray, Path], tuple[torch.Tensor, tuple[str, ...]]]] = {
    "classification": _class_targets,
    "regression": _number_targets,
    "multilabel": _label_targets,
    "segmentation": _pixel_targets,
}
"""How targets of each task are read."""


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
                pixels = y.ndim == 3 and x.ndim in (3, 4) and y.shape[1:] in (x.shape[-2:], x.shape[1:3])
                if not (y.ndim in (1, 2) or pixels) or len(x) != len(y) or 0 in y.shape:
                    raise DataError(
                        f"{path}: x{ending} is {x.shape} and y{ending} is {y.shape}; expected (N, ...) and (N,), "
                        "(N, K) for several targets, or (N, H, W) for a class of each pixel"
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
