"""What a reader hands over: samples as they are on disk, before splits and normalisation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from covey.data.container import Split, Task
from covey.errors import DataError, suggest
from covey.files import is_ordinary, machine_memory

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Raw:
    """Samples as a reader found them.

    Args:
        parts: "train", "validation" and "test", as far as the source has them.
        task: what is to be predicted.
        classes: names of the classes, in the order of their numbers.
        frame: for tables, the columns of all rows; the parts' inputs are then row numbers (N,).
        notes: what a user should be told.
    """

    parts: dict[str, Split]
    task: Task
    classes: tuple[str, ...] = ()
    frame: pandas.DataFrame | None = None
    notes: tuple[str, ...] = field(default=())


def check_file(path: Path, expected: str) -> None:
    """Refuse what is no ordinary file, or is larger than this machine's memory."""
    if not is_ordinary(path):
        raise DataError(f"{path} is no ordinary file; expected {expected}")
    size, there = path.stat().st_size, machine_memory()
    if there is not None and size > 0.9 * there:
        raise DataError(
            f"{path} has {size / 2**30:.1f} GiB, and this machine has {there / 2**30:.1f} GiB of memory; give fewer "
            "samples"
        )


def check_targets(raw: Raw, source: str) -> Raw:
    """The same, if there is something to learn: no missing target, and more than one value."""
    if raw.task == "language":
        return raw  # any byte may follow any other
    targets = torch.cat([part.targets for part in raw.parts.values()])
    if not len(targets):
        raise DataError(f"{source}: there are no samples")
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        bad = (~torch.isfinite(targets)).nonzero()[:, 0]
        raise DataError(
            f"{source}: {len(bad)} targets are missing or not finite (NaN), the first in row {int(bad[0])}; "
            "remove those rows or fill them in"
        )
    if raw.task == "classification" and len(raw.classes) < 2:
        raise DataError(
            f"{source}: there is one class only, {', '.join(raw.classes)!r}; classification needs at least "
            f"two"
        )
    if raw.task == "regression" and bool((targets == targets[0]).all()):
        value = targets[0].tolist()
        raise DataError(f"{source}: the target is constant, {value} in every row; choose another target")
    return raw


def hold_out(raw: Raw, held_out: tuple[int | str, ...]) -> tuple[Raw, Tensor]:
    """Take classes away from every part and renumber the rest.

    Returns:
        What is left, and the held-out inputs: those of the test part, or of all if the source has none.
    """
    if raw.task != "classification":
        raise DataError(f"held_out takes classes away, but the task is {raw.task}; leave it empty")
    numbers = sorted({_class_number(name, raw.classes) for name in held_out})
    kept = [k for k in range(len(raw.classes)) if k not in numbers]
    if len(kept) < 2:
        raise DataError(f"held_out leaves {len(kept)} of {len(raw.classes)} classes; at least two must stay")
    renumber = torch.full((len(raw.classes),), -1)
    renumber[kept] = torch.arange(len(kept))
    parts, taken = {}, []
    for name, part in raw.parts.items():
        new = renumber[part.targets]
        parts[name] = Split(part.inputs[new >= 0], new[new >= 0])
        if name == "test" or "test" not in raw.parts:
            taken.append(part.inputs[new < 0])
    return replace(raw, parts=parts, classes=tuple(raw.classes[k] for k in kept)), torch.cat(taken)


def _class_number(name: int | str, classes: tuple[str, ...]) -> int:
    if isinstance(name, str) and name in classes:
        return classes.index(name)
    if str(name).isdecimal() and int(name) < len(classes):
        return int(name)
    raise DataError(
        f"held_out names {name!r}, which is no class (0 to {len(classes) - 1})" + suggest(str(name), classes)
    )


def class_numbers(labels: np.ndarray) -> tuple[Tensor, tuple[str, ...]]:
    """Labels of any kind (N,) as numbers (N,) int64, and the classes' names in sorted order."""
    values, numbers = np.unique(labels, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64).reshape(-1)), tuple(str(v) for v in values)
