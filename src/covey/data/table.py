"""Tables: CSV, TSV and Parquet files, and the column in them that is to be predicted."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from covey.data.columns import is_number
from covey.data.container import Split, Task
from covey.data.raw import Raw, class_numbers
from covey.data.tokens import text_column
from covey.errors import DataError, suggest
from covey.extras import load
from covey.tables import counted

if TYPE_CHECKING:
    import pandas

SUFFIXES = {".csv", ".tsv", ".parquet", ".pq"}
_SEPARATORS = (",", ";", "\t", "|")
_DECIMAL_COMMA = r"\s*[+-]?\d+(,\d+)?\s*"


def read_frame(path: Path) -> pandas.DataFrame:
    """A CSV, TSV or Parquet file as a table."""
    pandas = load("pandas")

    try:
        if path.suffix in (".parquet", ".pq"):
            frame = pandas.read_parquet(path)
        else:
            frame = _read_text(path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"cannot read the table {path}: byte {error.start} ({error.object[error.start]:#x}) is not UTF-8; save the "
            "table as UTF-8"
        ) from error
    except Exception as error:  # pandas and pyarrow stumble over damaged files in many ways
        raise DataError(f"cannot read the table {path}: {_in_words(error)}") from error
    frame.columns = [str(name) for name in frame.columns]
    if frame.columns.has_duplicates:
        raise DataError(f"{path}: two columns are called {frame.columns[frame.columns.duplicated()][0]!r}")
    return frame


def _in_words(error: Exception) -> str:
    """What is wrong with a table, where pandas's words for it say little."""
    said = str(error)
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", said):
        return f"line {found[2]} has {found[3]} values where there are {found[1]} columns; mend or remove it"
    if "No columns to parse" in said:
        return "it is empty"
    return said


def _read_text(path: Path) -> pandas.DataFrame:
    """A text file of columns, whatever separates them."""
    pandas = load("pandas")

    separator = "\t" if path.suffix == ".tsv" else _separator(path)
    frame = pandas.read_csv(path, sep=separator)
    if separator != "," and any(_has_decimal_commas(frame[name]) for name in frame):
        frame = pandas.read_csv(path, sep=separator, decimal=",")
    return frame


def _separator(path: Path) -> str:
    """The character that cuts the first line into most columns."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline(1 << 20)
    columns = {}
    for separator in _SEPARATORS:
        header = next(csv.reader([first], delimiter=separator), [])
        columns[separator] = len(header)
    return max(columns, key=lambda separator: columns[separator])  # the comma, if none cuts it


def _has_decimal_commas(column: pandas.Series) -> bool:
    """Whether a column holds numbers such as 1,5."""
    there = column.dropna()
    if is_number(column) or not len(there) or not all(isinstance(value, str) for value in there):
        return False
    return bool(there.str.fullmatch(_DECIMAL_COMMA).all())


def read_table(path: Path, target: str | None, task: Task | None, ignore: Sequence[str] = ()) -> Raw:
    """A table of the user's own, with the column that is to be predicted.

    Args:
        path: of the table.
        target: the column that is to be predicted.
        task: where it should not be found out from the target.
        ignore: columns to leave out.
    """
    frame = read_frame(path)
    if target is None:
        raise DataError(
            f"{path}: say which column is to be predicted with target=; there are {_listed(frame)}"
        )
    if target not in frame:
        raise DataError(f"{path} has no column {target!r}" + suggest(target, frame.columns))
    for name in ignore:
        if name not in frame:
            raise DataError(f"{path} has no column {name!r} to ignore" + suggest(name, frame.columns))
        if name == target:
            raise DataError(f"{path}: {name!r} is to be ignored and to be predicted; choose one")
    frame = frame.drop(columns=list(ignore))
    if len(frame.columns) < 2:
        raise DataError(f"{path} has no column besides the target {target!r}")
    column = frame.pop(target)
    if column.isna().any():
        bad = np.flatnonzero(column.isna().to_numpy())
        raise DataError(
            f"{path}: the target {target!r} is missing (NaN) in {counted(len(bad), 'row')}, the first is row {bad[0]}; "
            "remove those rows or fill them in"
        )
    found, why = (task, "as asked for") if task else _detect(column)
    notes = [f"target {target!r}: {found}, {why}"]
    if ignore:
        notes.append("ignored columns: " + ", ".join(ignore))
    rows = torch.arange(len(frame))
    if found == "regression":
        try:
            values = torch.from_numpy(column.to_numpy(np.float64, copy=True))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}: the target {target!r} is not numeric, so it cannot be regressed on"
            ) from error
        return Raw({"train": Split(rows, values)}, "regression", frame=frame, notes=tuple(notes))
    labels = column.to_numpy() if is_number(column) else column.astype(str).to_numpy(str)
    numbers, classes = class_numbers(labels)
    return Raw({"train": Split(rows, numbers)}, "classification", classes, frame, tuple(notes))


def texts_of(raw: Raw, column: str | None, where: str) -> Raw:
    """A table whose only input is a column of texts."""
    frame = raw.frame
    assert frame is not None
    if column is not None and column not in frame:
        raise DataError(f"{where} has no column {column!r}" + suggest(column, frame.columns))
    chosen = text_column(frame, column, where)
    unused = [name for name in frame.columns if name != chosen]
    notes = [f"texts: column {chosen!r}"]
    if unused:
        notes.append(f"columns that are not used beside the texts: {', '.join(unused)}")
    return replace(raw, frame=frame[[chosen]], notes=(*raw.notes, *notes))


def _detect(column: pandas.Series) -> tuple[Task, str]:
    """Whether a target is a class or a number, and why."""
    if not is_number(column):
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


def _listed(frame: pandas.DataFrame) -> str:
    names = [repr(name) for name in frame.columns]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
