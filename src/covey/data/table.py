"""Tables: CSV, TSV and Parquet files, and the column in them that is to be predicted."""

from __future__ import annotations

import csv
import re
import warnings
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
_MISSING = "?"  # what tables of the UCI repository write; pandas knows the usual words, such as NA
_FEW = 20  # whole numbers that may be classes, and words that may all differ
_DECIMAL_COMMA = r"\s*[+-]?\d+(,\d+)?\s*"


def is_table(path: Path) -> bool:
    """Whether a file is called like a table."""
    return path.suffix.lower() in SUFFIXES


def read_frame(path: Path, words: Sequence[str] = ()) -> pandas.DataFrame:
    """A CSV, TSV or Parquet file as a table.

    Args:
        path: of the file.
        words: columns of a text file that hold words, even where they look like numbers: 01 is not 1.
    """
    pandas = load("pandas")

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            frame = pandas.read_parquet(path)
        else:
            frame = _read_text(path, words)
    except UnicodeDecodeError as error:
        raise DataError(
            f"cannot read the table {path}: byte {error.start} ({error.object[error.start]:#x}) is not UTF-8; save the "
            "table as UTF-8"
        ) from error
    except Exception as error:  # pandas and pyarrow stumble over damaged files in many ways
        raise DataError(f"cannot read the table {path}: {_in_words(error)}") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.columns.has_duplicates:
        raise DataError(f"{path}: two columns are called {frame.columns[frame.columns.duplicated()][0]!r}")
    return frame


def _in_words(error: Exception) -> str:
    """What is wrong with a table, where pandas's words for it say little."""
    said = str(error)
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", said):
        return f"line {found[2]} has {found[3]} values where there are {found[1]} columns; mend or remove it"
    if "Length of header" in said:
        return "its rows have more values than its first line has names; name every column there"
    if "No columns to parse" in said:
        return "it is empty"
    return said


def _read_text(path: Path, words: Sequence[str]) -> pandas.DataFrame:
    """A text file of columns, whatever separates them."""
    pandas = load("pandas")

    separator = "\t" if path.suffix.lower() == ".tsv" else _separator(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # about values that it leaves out
        frame = pandas.read_csv(
            path,
            sep=separator,
            index_col=False,  # else it takes the first value of a row that is too long for the row's name
            dtype=dict.fromkeys(words, str),
            na_values=[_MISSING],
            skipinitialspace=separator != "\t",
            low_memory=False,  # else a long column of numbers and words would be both
        )
    for name in frame:
        if separator != "," and name not in words and _has_decimal_commas(frame[name]):
            frame[name] = pandas.to_numeric(frame[name].str.replace(",", "."))
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
    if task not in (None, "classification", "regression"):
        raise DataError(f"{path}: a table is for classification or regression; got task={task!r}")
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
    numbers, classes = class_numbers(labels_of(column))
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
        _check_classes(column)
        return "classification", "since it is not numeric"
    values = column.to_numpy(np.float64)
    distinct = len(np.unique(values))
    if distinct == 1:
        return "regression", "but it is constant"
    if column.dtype.kind == "b" or distinct == 2:
        return "classification", "since it has two values"
    if np.array_equal(values, np.round(values)) and distinct <= min(_FEW, len(values) // 10):
        return (
            "classification",
            f"since it has {distinct} whole values only (say task='regression' if it is a number)",
        )
    return "regression", f"since it has {distinct} distinct numbers"


def labels_of(column: pandas.Series) -> np.ndarray:
    """A target's classes as they are written, without spaces around them."""
    if is_number(column):
        return column.to_numpy()
    return column.astype(str).str.strip().to_numpy(str)


def _check_classes(column: pandas.Series) -> None:
    """Refuse words that mostly differ, of which there would be as many classes as samples."""
    distinct = column.nunique()
    if distinct > max(_FEW, len(column) // 2):
        raise DataError(
            f"the target {column.name!r} is not numeric, and {distinct} of its {len(column)} values differ, the first "
            f"is {str(column.iloc[0])[:40]!r}: too many for classes. If it is a number, write it without units, "
            "currencies and thousands separators"
        )


def _listed(frame: pandas.DataFrame) -> str:
    names = [repr(name) for name in frame.columns]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
