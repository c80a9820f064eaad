"""Tables: from columns of any kind to standardised numbers, by statistics of the training rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from covey.data.container import Split, Task
from covey.data.raw import Raw, class_numbers
from covey.errors import DataError, suggest

if TYPE_CHECKING:
    import pandas

SUFFIXES = {".csv", ".tsv", ".parquet", ".pq"}
_MOST_CATEGORIES = 64  # of one column; the rarer ones share the code of unknown ones


def read_frame(path: Path) -> pandas.DataFrame:
    """A CSV, TSV or Parquet file as a table."""
    import pandas

    try:
        if path.suffix in (".parquet", ".pq"):
            frame = pandas.read_parquet(path)
        else:
            frame = pandas.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    except (OSError, ValueError, ImportError) as error:  # pandas' and pyarrow's parser errors are ValueErrors
        raise DataError(f"cannot read the table {path}: {error}") from error
    frame.columns = [str(name) for name in frame.columns]
    if frame.columns.has_duplicates:
        raise DataError(f"{path}: two columns are called {frame.columns[frame.columns.duplicated()][0]!r}")
    return frame


def read_table(path: Path, target: str | None, task: Task | None) -> Raw:
    """A table of the user's own, with the column that is to be predicted."""
    frame = read_frame(path)
    if target is None:
        raise DataError(
            f"{path}: say which column is to be predicted with target=; there are {_listed(frame)}"
        )
    if target not in frame:
        raise DataError(f"{path} has no column {target!r}" + suggest(target, frame.columns))
    if len(frame.columns) < 2:
        raise DataError(f"{path} has no column besides the target {target!r}")
    column = frame.pop(target)
    if column.isna().any():
        bad = np.flatnonzero(column.isna().to_numpy())
        raise DataError(
            f"{path}: the target {target!r} is missing (NaN) in {len(bad)} rows, the first is row {bad[0]}; "
            "remove those rows or fill them in"
        )
    found, why = (task, "as asked for") if task else _detect(column)
    notes = (f"target {target!r}: {found}, {why}",)
    rows = torch.arange(len(frame))
    if found == "regression":
        try:
            values = torch.from_numpy(column.to_numpy(np.float64, copy=True))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}: the target {target!r} is not numeric, so it cannot be regressed on"
            ) from error
        return Raw({"train": Split(rows, values)}, "regression", frame=frame, notes=notes)
    labels = column.to_numpy() if _is_number(column) else column.astype(str).to_numpy(str)
    numbers, classes = class_numbers(labels)
    return Raw({"train": Split(rows, numbers)}, "classification", classes, frame, notes)


def _detect(column: pandas.Series) -> tuple[Task, str]:
    """Whether a target is a class or a number, and why."""
    if not _is_number(column):
        return "classification", "since it is not numeric"
    values = column.to_numpy(np.float64)
    distinct = len(np.unique(values))
    if distinct == 1:
        return "regression", "but it is constant"
    if column.dtype.kind == "b" or distinct == 2:
        return "classification", "since it has two values"
    if np.array_equal(values, np.round(values)) and distinct <= min(20, len(values) // 10):
        return (
            "classification",
            f"since it has {distinct} whole values only (say task='regression' if it is a number)",
        )
    return "regression", f"since it has {distinct} distinct numbers"


def _is_number(column: pandas.Series) -> bool:
    import pandas

    return pandas.api.types.is_numeric_dtype(column) and not isinstance(column.dtype, pandas.CategoricalDtype)


def _is_time(column: pandas.Series) -> bool:
    import pandas

    return bool(pandas.api.types.is_datetime64_any_dtype(column))


def _listed(frame: pandas.DataFrame) -> str:
    names = [repr(name) for name in frame.columns]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def fit_columns(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """How to encode each column, learned from the training rows; JSON-able.

    A number is standardised; where one is missing, the mean stands in and a further column says so. A
    category becomes one column for each value, a missing one being a value like another.
    """
    columns: list[dict[str, Any]] = []
    for name in frame.columns:
        column = frame[name]
        if _is_number(column) or _is_time(column):
            values = _numbers(column)
            there = values[np.isfinite(values)]
            if not len(there):
                raise DataError(f"column {name!r} has no value in any training row; remove it")
            std = float(there.std())
            missing = len(there) < len(values)
            mean = float(there.mean())
            # A column that is constant but for rounding would otherwise be blown up to noise.
            std = std if std > 1e-12 * max(1.0, abs(mean)) else 1.0
            columns.append({"name": name, "kind": "number", "mean": mean, "std": std, "missing": missing})
        else:
            counts = _text(column).value_counts()
            kept = sorted(counts.index[:_MOST_CATEGORIES])
            columns.append(
                {"name": name, "kind": "category", "values": kept, "rare": len(counts) - len(kept)}
            )
    return columns


def encode(frame: pandas.DataFrame, columns: list[dict[str, Any]], where: str) -> Tensor:
    """A table as (N, D) float32, by what `fit_columns` learned; values never seen there become zeros.

    Args:
        frame: the table; further columns are ignored.
        columns: what `fit_columns` gave.
        where: what to call the table in an error.
    """
    pieces = []
    for spec in columns:
        name = spec["name"]
        if name not in frame:
            raise DataError(
                f"{where} has no column {name!r}, which the network was trained on" + suggest(name, frame)
            )
        if spec["kind"] == "number":
            try:
                values = _numbers(frame[name])
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{where}: column {name!r} was numeric in training and is not here"
                ) from error
            lacking = ~np.isfinite(values)
            pieces.append(((np.where(lacking, spec["mean"], values) - spec["mean"]) / spec["std"])[:, None])
            if spec["missing"]:
                pieces.append(lacking[:, None])
        else:
            pieces.append(_text(frame[name]).to_numpy(str)[:, None] == np.array(spec["values"], str)[None])
    return torch.from_numpy(np.concatenate(pieces, 1).astype(np.float32))


def _numbers(column: pandas.Series) -> np.ndarray:
    """A column as float64: times in days since 1970, missing values as NaN."""
    if _is_time(column):
        nanoseconds = column.dt.tz_localize(None) if column.dt.tz is not None else column
        days = nanoseconds.to_numpy("datetime64[ns]").astype("int64") / 86_400e9
        return np.where(column.isna().to_numpy(), np.nan, days)
    return column.to_numpy(np.float64, na_value=np.nan)


def _text(column: pandas.Series) -> pandas.Series:
    """A column as strings, in which a missing value is a value."""
    return column.astype(object).where(column.notna(), "(missing)").map(str)
