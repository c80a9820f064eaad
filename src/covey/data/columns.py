"""How each column of a table becomes numbers, by statistics of the training rows alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from covey.data import tokens
from covey.errors import DataError, suggest
from covey.extras import load

if TYPE_CHECKING:
    import pandas

_MOST_CATEGORIES = 64  # of one column; the rarer ones share the code of unknown ones
_LONG = 20  # characters on average, from which on values that mostly differ are sentences and not categories
_EMPTY = "(missing)"  # the category of empty cells
_ISO = "ISO8601"
_DAYS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_LIKE_A_DATE = (
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}[ -][A-Za-z]{3,}[ -]\d{2,4}|[A-Za-z]{3,} \d{1,2}, \d{4}"
)
_MANY = 20  # values that begin with a digit, from which on they are hardly names of categories

Spec = dict[str, Any]
"""How one column is encoded, as JSON holds it."""


def fit_columns(frame: pandas.DataFrame, rows: np.ndarray) -> list[Spec]:
    """How to encode each column; JSON-able.

    A number is standardised; where one is missing, the mean stands in and a further column says so. A date is the
    number of days since 1970. A category becomes one column for each value, a missing one being a value like another.

    Args:
        frame: all rows, which decide what kind each column is.
        rows: numbers of the training rows, which alone decide means, deviations and categories.
    """
    columns = []
    for name in frame.columns:
        column = frame[name]
        train = column.iloc[rows]
        formats = [] if is_number(column) else _date_formats(column)
        if is_number(column):
            spec = {"kind": "number", **_scale(_numbers(train), name)}
        elif formats:
            scale = _scale(_days(train, formats[0]), name)
            spec = {"kind": "date", "format": formats[0], "also": formats[1:], **scale}
        else:
            _check_categories(column)
            counts = _words(train).value_counts()
            kept = sorted(counts.index[:_MOST_CATEGORIES])
            spec = {"kind": "category", "values": kept, "rare": len(counts) - len(kept)}
        columns.append({"name": name, **spec})
    return columns


def words_of(columns: list[Spec]) -> list[str]:
    """Names of the columns whose values were words in training, and are words in new tables too.

    Not truths, which pandas reads from True, true and TRUE alike.
    """
    named = [spec for spec in columns if spec["kind"] == "category"]
    return [spec["name"] for spec in named if not set(spec["values"]) <= {"True", "False", _EMPTY}]


def column_notes(frame: pandas.DataFrame | None, columns: list[Spec]) -> list[str]:
    """What a user should be told about the columns: dates that can be read in two ways, numbers that are none."""
    notes = []
    for spec in columns:
        if spec["kind"] == "category":
            notes += _note_on_words(frame[spec["name"]], spec) if frame is not None else []
        if spec["kind"] == "number" and frame is not None and _counts_rows(frame[spec["name"]]):
            notes.append(
                f"column {spec['name']!r} numbers the rows; if it is no measurement, leave it out "
                f"(ignore=({spec['name']!r},))"
            )
        if spec["kind"] == "date" and spec["also"]:
            notes.append(
                f"column {spec['name']!r}: dates, read as {spec['format']}; every one could be {spec['also'][0]} too"
            )
    return notes


def encode(frame: pandas.DataFrame, columns: list[Spec], where: str) -> Tensor:
    """A table as (N, D) float32, by what `fit_columns` learned; values never seen there become zeros.

    Args:
        frame: the table; further columns are ignored.
        columns: what `fit_columns` gave.
        where: what to call the table in an error.

    A column of texts, which is always alone, becomes (N, T) int64.
    """
    pieces = []
    for spec in columns:
        name = spec["name"]
        if name not in frame:
            raise DataError(
                f"{where} has no column {name!r}, which the network was trained on" + suggest(name, frame)
            )
        if spec["kind"] == tokens.KIND:
            return tokens.encode_column(frame, spec)
        try:
            pieces += _ENCODERS[spec["kind"]](frame[name], spec)
        except (ValueError, TypeError) as error:
            held = "numbers" if spec["kind"] == "number" else f"dates such as {_example(spec)!r}"
            raise DataError(
                f"{where}: column {name!r} held {held} in training, and here {_first_other(frame[name], spec)}"
            ) from error
    whole = np.concatenate(pieces, 1)
    with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and predictions say so
        return torch.from_numpy(whole.astype(np.float32))


def is_number(column: pandas.Series) -> bool:
    """Whether a column holds numbers or truths."""
    pandas = load("pandas")

    return pandas.api.types.is_numeric_dtype(column) and not isinstance(column.dtype, pandas.CategoricalDtype)


def _encode_number(column: pandas.Series, spec: Spec) -> list[np.ndarray]:
    values = _days(column, _ISO) if _is_time(column) else _numbers(column)
    return _standardised(values, spec)


def _encode_date(column: pandas.Series, spec: Spec) -> list[np.ndarray]:
    return _standardised(_days(column, spec["format"]), spec)


def _encode_category(column: pandas.Series, spec: Spec) -> list[np.ndarray]:
    values = np.array(spec["values"], str)
    return [_words(column).to_numpy(str)[:, None] == values[None]]


_ENCODERS: dict[str, Callable[[pandas.Series, Spec], list[np.ndarray]]] = {
    "number": _encode_number,
    "date": _encode_date,
    "category": _encode_category,
}


def _first_other(column: pandas.Series, spec: Spec) -> str:
    """The first value of a column that cannot be encoded, and its row."""
    for row in range(len(column)):
        try:
            _ENCODERS[spec["kind"]](column.iloc[[row]], spec)
        except (ValueError, TypeError):
            return f"it holds {str(column.iloc[row])[:40]!r} in row {row}"
    return "its values are of another kind"


def _example(spec: Spec) -> str:
    """A date as a column held it in training, the last of a year: day and month cannot be mistaken for each other."""
    form = "%Y-%m-%d" if spec["format"] == _ISO else spec["format"]
    middle = datetime(1970, 1, 1) + timedelta(days=spec["mean"])
    return datetime(middle.year, 12, 31).strftime(form)


def _note_on_words(column: pandas.Series, spec: Spec) -> list[str]:
    """That a column of categories looks as if it were one of numbers or dates, if it does."""
    words = _words(column.dropna()).drop_duplicates()
    like_numbers = words.str.match(r"\W*\d")
    if like_numbers.sum() <= max(_MANY, len(words) // 2):
        return []
    other = "" if like_numbers.all() else f" and not {words[~like_numbers].iloc[0][:40]!r}"
    return [
        f"column {spec['name']!r}: {len(spec['values'])} categories, although {like_numbers.sum()} of its {len(words)} "
        f"values begin with a digit, such as {words[like_numbers].iloc[0][:40]!r}{other}. If they are numbers or "
        "dates, write all in one form, without units and thousands separators, and leave cells without one empty"
    ]


def _counts_rows(column: pandas.Series) -> bool:
    """Whether a column is a running number."""
    if column.dtype.kind not in "iu" or len(column) < 3:
        return False
    return bool((np.diff(column.to_numpy()) == 1).all())


def _scale(values: np.ndarray, name: str) -> Spec:
    """Mean and deviation of the values that are there, and whether some are not."""
    there = values[np.isfinite(values)]
    if not len(there):
        raise DataError(f"column {name!r} has no value in any training row; remove it")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(there.mean()), float(there.std())
    if not np.isfinite(std):
        raise DataError(
            f"column {name!r} reaches {np.abs(there).max():.3g}, too much for a mean and a deviation; scale it down"
        )
    # A column that is constant but for rounding would otherwise be blown up to noise.
    std = std if std > 1e-12 * max(1.0, abs(mean)) else 1.0
    return {"mean": mean, "std": std, "missing": len(there) < len(values)}


def _standardised(values: np.ndarray, spec: Spec) -> list[np.ndarray]:
    lacking = ~np.isfinite(values)
    filled = np.where(lacking, spec["mean"], values)
    pieces = [((filled - spec["mean"]) / spec["std"])[:, None]]
    if spec["missing"]:
        pieces.append(lacking[:, None])
    return pieces


def _numbers(column: pandas.Series) -> np.ndarray:
    """A column as float64, missing values as NaN."""
    return column.to_numpy(np.float64, na_value=np.nan)


def _is_time(column: pandas.Series) -> bool:
    pandas = load("pandas")

    return bool(pandas.api.types.is_datetime64_any_dtype(column))


def _date_formats(column: pandas.Series) -> list[str]:
    """The formats in which every value of a column is a date, the preferred one first; none if it holds no dates.

    Further ones are only listed if they read other dates.
    """
    if _is_time(column):
        return [_ISO]
    there = column.dropna()
    if not len(there):
        return []
    if all(isinstance(value, date) for value in there):  # what Parquet's dates without a time become
        return [_ISO]
    if not all(isinstance(value, str) for value in there):
        return []
    if not there.str.match(_LIKE_A_DATE).all():
        return []
    candidates = [_ISO, *(day + time for time in _TIMES for day in _DAYS)]
    found: dict[str, np.ndarray] = {}
    for form in candidates:
        try:
            days = _days(there, form)
        except (ValueError, TypeError):
            continue
        if not any(np.array_equal(days, other) for other in found.values()):
            found[form] = days
    return list(found)


def _days(column: pandas.Series, form: str) -> np.ndarray:
    """Dates as days since 1970, missing ones as NaN. Numbers are taken to be days already."""
    pandas = load("pandas")

    if is_number(column):
        return _numbers(column)
    if not _is_time(column):
        text = column.astype(object).map(str).where(column.notna(), None)
        column = pandas.to_datetime(text, format=form, utc=True)
    if column.dt.tz is not None:
        column = column.dt.tz_localize(None)
    microseconds = column.to_numpy("datetime64[us]").astype("int64")
    return np.where(column.isna().to_numpy(), np.nan, microseconds / 86_400e6)


def _words(column: pandas.Series) -> pandas.Series:
    """A column as strings, in which a missing value is a value."""
    return column.astype(object).where(column.notna(), _EMPTY).map(str)


def _check_categories(column: pandas.Series) -> None:
    """Refuse free text and identifiers, of which a column for each value would be made."""
    words = column.dropna().map(str)
    distinct = words.nunique()
    if distinct <= _MOST_CATEGORIES:
        return
    length = words.str.len().mean()
    sentences = distinct > len(words) / 2 and length >= _LONG
    if not sentences and distinct < len(words):
        return
    what = "free text" if sentences else "an identifier"
    raise DataError(
        f"column {column.name!r} looks like {what}: {distinct} of its {len(words)} values differ, with {length:.0f} "
        f"characters on average, the first is {words.iloc[0][:40]!r}. covey makes categories of words, which would say "
        f"nothing here: leave the column out (ignore=({column.name!r},)), or make numbers or categories of it first"
    )
