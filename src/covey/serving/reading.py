"""What a client sent as raw inputs, (N, ...), or a refusal that says what was expected and what came."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from covey.data import pictures, tokens
from covey.data.columns import encode
from covey.errors import CoveyError, suggest
from covey.extras import load
from covey.serving.limits import Limits
from covey.serving.model import Model
from covey.serving.refusals import RefusedError

_OPTIONS = ("members", "budget_ms")
KEYS: dict[str, tuple[str, ...]] = {
    "table": ("rows",),
    "text": ("texts",),
    "image": ("inputs", "pixels"),
    "array": ("inputs",),
}
"""Under which names a JSON request holds its inputs."""
_BRIGHT = 10.0  # above it, a value is no intensity from 0 to 1, whatever was done to the images


def parse(body: bytes) -> Any:
    """JSON as it is meant: NaN and infinities, which Python would read, are none."""
    try:
        return json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise RefusedError(422, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise RefusedError(422, f"the body is not JSON: {error}") from None


def _no_number(word: str) -> NoReturn:
    raise RefusedError(422, f"the body holds {word}; expected finite numbers")


def read_request(payload: Any, model: Model, limits: Limits) -> Tensor:
    """The raw inputs of a JSON request."""
    known = KEYS[model.takes]
    wanted = " or ".join(f'"{key}"' for key in known)
    if not isinstance(payload, dict):
        raise RefusedError(422, f"expected a JSON object with {wanted}; got {_kind(payload)}")
    for key in payload:
        if key not in (*known, *_OPTIONS):
            raise RefusedError(
                422, f"there is no {key[:80]!r} in a request{suggest(key, (*known, *_OPTIONS))}"
            )
    given = [key for key in known if key in payload]
    if len(given) != 1:
        raise RefusedError(422, f"expected {wanted} in the request; got {', '.join(given) or 'neither'}")
    value = payload[given[0]]
    if not isinstance(value, list) or not value:
        raise RefusedError(422, f'"{given[0]}" is a list of at least one sample; got {_kind(value)}')
    check_count(len(value), limits)
    if model.takes == "table":
        return read_table(_columns(value, model), model)
    if model.takes == "text":
        return read_texts(value, model)
    return read_array(_numbers(value, given[0]), model, pixels=given[0] == "pixels")


def read_options(payload: Mapping[str, Any]) -> tuple[bool, float | None]:
    """Whether members' own answers are wanted, and the budget in milliseconds."""
    each, budget = payload.get("members", False), payload.get("budget_ms")
    if not isinstance(each, bool):
        raise RefusedError(422, f'"members" is true or false; got {_kind(each)}')
    if budget is None:
        return each, None
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise RefusedError(422, f'"budget_ms" is a number of milliseconds above 0; got {str(budget)[:40]}')
    return each, float(budget)


def check_count(count: int, limits: Limits) -> None:
    """Refuse a request of too many samples."""
    if count > limits.rows:
        raise RefusedError(
            413, f"a request has at most {limits.rows} samples; got {count}. Send several requests"
        )


def read_array(array: np.ndarray, model: Model, *, pixels: bool) -> Tensor:
    """Numbers as the ensemble's inputs; `pixels` are whole numbers from 0 to 255."""
    if tuple(array.shape[1:]) != model.shape:
        expected = ", ".join(map(str, ("N", *model.shape)))
        hint = " (put a single sample into a list)" if tuple(array.shape) == model.shape else ""
        raise RefusedError(422, f"expected numbers of shape ({expected}); got {tuple(array.shape)}{hint}")
    if pixels:
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
            raise RefusedError(
                422, '"pixels" are whole numbers from 0 to 255; send other numbers as "inputs"'
            )
        return torch.from_numpy(array.astype(np.uint8))
    with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise RefusedError(422, "the inputs hold NaN, infinite or too large numbers; expected finite ones")
    scale = model.record["normalisation"]
    if model.takes == "image" and scale is not None and max(scale["std"]) <= 0.5 and numbers.max() > _BRIGHT:
        raise RefusedError(
            422,
            f"the inputs reach {numbers.max():g}, and the training images lay from 0 to 1; send whole numbers from "
            '0 to 255 as "pixels"',
        )
    return torch.from_numpy(numbers)


def read_texts(texts: Sequence[Any], model: Model) -> Tensor:
    """Texts as tokens."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise RefusedError(422, f"row {row}: expected a text; got {_kind(text)}")
    return tokens.encode_text(texts, model.columns[0])


def read_table(given: Mapping[str, Sequence[Any]], model: Model) -> Tensor:
    """Columns of values as the numbers that the ensemble was trained on."""
    pandas = load("pandas")
    columns = {}
    for spec in model.columns:
        values = [_cell(value, spec, row) for row, value in enumerate(given[spec["name"]])]
        columns[spec["name"]] = pandas.Series(
            values, dtype=np.float64 if spec["kind"] == "number" else object
        )
    try:
        inputs = encode(pandas.DataFrame(columns), model.columns, "the request")
    except CoveyError as error:
        raise RefusedError(422, str(error)) from error
    if not inputs.isfinite().all():
        raise RefusedError(
            422, "the rows hold numbers that are too large; expected ones like those of the training data"
        )
    return inputs


def read_images(files: Sequence[bytes], model: Model, limits: Limits) -> Tensor:
    """Image files, which are scaled and cropped to the training images' size."""
    if model.takes != "image":
        keys = " or ".join(KEYS[model.takes])
        raise RefusedError(415, f'this service takes no images; send JSON with "{keys}"')
    if not files:
        raise RefusedError(422, "the form holds no image; expected at least one file")
    check_count(len(files), limits)
    found = []
    for place, content in enumerate(files):
        try:
            found.append(torch.from_numpy(pictures.decode(io.BytesIO(content), model.shape)))
        except CoveyError as error:
            raise RefusedError(422, f"image {place}: {error}") from error
    return torch.stack(found)


def _columns(rows: Sequence[Any], model: Model) -> dict[str, list[Any]]:
    """Rows, each a list in the columns' order or an object by name, as columns."""
    names = [spec["name"] for spec in model.columns]
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            missing = [name for name in names if name not in row]
            if missing:
                raise RefusedError(422, f"row {number} has no {missing[0]!r}{suggest(missing[0], row)}")
            cells = [row[name] for name in names]
        elif isinstance(row, list):
            cells = row
        else:
            raise RefusedError(422, f"row {number}: expected a list or an object; got {_kind(row)}")
        if len(cells) != len(names):
            raise RefusedError(
                422, f"row {number} has {len(cells)} values; expected {len(names)}: {', '.join(names[:20])}"
            )
        for name, cell in zip(names, cells, strict=True):
            found[name].append(cell)
    return found


def _cell(value: Any, spec: Mapping[str, Any], row: int) -> Any:
    """One value of a table, checked against its column's kind."""
    where = f"row {row}, column {spec['name']!r}"
    if isinstance(value, list | dict):
        raise RefusedError(422, f"{where}: expected one value; got {_kind(value)}")
    if value is None:
        if spec["kind"] != "category" and not spec["missing"]:
            raise RefusedError(
                422, f"{where}: no value was missing in training; expected a {spec['kind']}, got null"
            )
        return math.nan if spec["kind"] == "number" else None
    if spec["kind"] == "number":
        if isinstance(value, str):
            raise RefusedError(422, f"{where}: expected a number; got the text {value[:40]!r}")
        if isinstance(value, bool):
            raise RefusedError(422, f"{where}: expected a number; got true or false")
        return _finite(value, where)
    if spec["kind"] == "date" and not isinstance(value, str):
        raise RefusedError(422, f"{where}: expected a date as text ({spec['format']}); got {_kind(value)}")
    return str(value)


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RefusedError(422, f"{where}: expected a finite number; got {str(value)[:40]}")
    return number


def _numbers(value: list, key: str) -> np.ndarray:
    """Nested lists as an array; anything but numbers in equally long lists is refused."""
    if holds_truth(value):
        raise RefusedError(422, f'"{key}" holds true or false; expected numbers')
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise RefusedError(
            422, f'"{key}" holds lists of unequal length; expected one shape for all samples'
        ) from error
    if array.dtype.kind in "iuf":
        return array
    kinds = {"U": "texts", "O": "null, objects or numbers that are too large"}
    raise RefusedError(422, f'"{key}" holds {kinds.get(array.dtype.kind, "other things")}; expected numbers')


def holds_truth(value: list) -> bool:
    """Whether true or false is among the values of nested lists, which NumPy would take for 1 and 0."""
    kinds = set(map(type, value))
    if bool in kinds:
        return True
    return list in kinds and any(holds_truth(each) for each in value if isinstance(each, list))


def _kind(value: Any) -> str:
    """What a JSON value is, in a word or two."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number")
