"""Example pictures out of stored evaluations, which anyone may have written: decoded, checked and encoded anew."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.extras import load
from covey.scores.examples import KINDS, MAP

from .evidence import Table
from .results import MethodRuns, Results

PREFIX = "data:image/png;base64,"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_SIDE = 512
"""Pixels. covey itself stores pictures of 256 at most."""

MOST_BYTES = 4 * MOST_SIDE * MOST_SIDE
MOST_VALUES = 50
"""Numbers of a row. covey itself stores a few."""


def checked_picture(stored: Any) -> str | None:
    """A PNG as a data URL that covey encoded itself, or None if what is stored is no small PNG.

    Nothing of the stored text is handed on: the pixels are decoded and encoded again, without comments or profiles.
    """
    data = _decoded(stored)
    if data is None or not _small_png(data):
        return None
    pil = load("PIL.Image")

    try:
        with pil.open(io.BytesIO(data), formats=["PNG"]) as image:
            mode = "L" if image.mode in ("1", "L") else "RGB"
            pixels = image.convert(mode).tobytes()
            clean = pil.frombytes(mode, image.size, pixels)
    except Exception:  # whatever a decoder trips over, there is no picture to show
        return None
    file = io.BytesIO()
    clean.save(file, "PNG", optimize=True)
    return PREFIX + base64.b64encode(file.getvalue()).decode("ascii")


def _decoded(stored: Any) -> bytes | None:
    """The bytes behind a data URL."""
    if not isinstance(stored, str) or not stored.startswith(PREFIX):
        return None
    payload = stored.removeprefix(PREFIX)
    if len(payload) > 2 * MOST_BYTES:
        return None
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError:
        return None


def _small_png(data: bytes) -> bool:
    """Whether the file's first chunk announces a PNG of a size worth decoding."""
    header = data[:24]
    if len(header) < 24 or not header.startswith(SIGNATURE) or header[12:16] != b"IHDR":
        return False
    width, height = struct.unpack(">II", header[16:24])
    return 0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE


@dataclass(frozen=True)
class Example:
    """A sample to look at.

    Args:
        index: its place in its set.
        label: the name of its class; empty for an input from elsewhere, which has none.
        predicted: the name of the class that the method answers.
        confidence: the probability of that answer.
        picture: a data URL; empty where there are values instead.
        values: a row's first numbers by the names of their columns.
        told: what is said below a picture that shows more than a sample, instead of its class and answer.
    """

    index: int
    label: str
    predicted: str
    confidence: float
    picture: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)
    told: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the answer is another class than the sample's."""
        return self.label not in ("", self.predicted)

    @property
    def percent(self) -> str:
        """The confidence as it is written."""
        return f"{100 * self.confidence:.1f}"

    @property
    def alt(self) -> str:
        """The sample in words."""
        if self.told:
            return f"Image {self.index}, its classes, the answer and its uncertainty: {self.told}"
        if not self.label:
            return f"Out-of-distribution sample {self.index}, predicted {self.predicted}"
        return f"Test sample {self.index}: {self.label}, predicted {self.predicted}"


@dataclass(frozen=True)
class Pictures:
    """Examples under a title."""

    title: str
    examples: Sequence[Example]


def examples(results: Results) -> tuple[list[Pictures], list[Table], list[str]]:
    """Samples of each method's first run, as pictures and as rows, and notes on those that cannot be shown."""
    groups: list[Pictures] = []
    tables: list[Table] = []
    notes: list[str] = []
    for method in results.methods:
        by_title, unreadable = _by_title(method)
        for title, found in by_title.items():
            with_picture = [example for example in found if example.picture]
            rows = [example for example in found if not example.picture]
            if with_picture:
                groups.append(Pictures(title, with_picture))
            if rows:
                tables.append(_table(title, rows))
        if unreadable:
            notes.append(
                f"{method.name}: {unreadable} stored example(s) left out, because their pictures are no small PNG or "
                "their values cannot be read."
            )
    return groups, tables, notes


def _by_title(method: MethodRuns) -> tuple[dict[str, list[Example]], int]:
    """A method's examples under the titles that they are shown with, and how many cannot be read."""
    evaluation = method.runs[0].evaluation
    found: dict[str, list[Example]] = {}
    unreadable = 0
    for kind in KINDS:
        for stored in evaluation.examples:
            if not isinstance(stored, Mapping) or stored.get("kind") != kind:
                continue
            read = _map if kind == MAP else _example
            example = read(stored, evaluation.about["classes"])
            if example is None:
                unreadable += 1
                continue
            where = f", {stored['set']}" if "set" in stored else ""
            found.setdefault(f"{method.name}: {kind}{where}", []).append(example)
    known = [s for s in evaluation.examples if isinstance(s, Mapping) and s.get("kind") in KINDS]
    return found, unreadable + len(evaluation.examples) - len(known)


def _table(title: str, found: Sequence[Example]) -> Table:
    """Rows of a table as a table; the first row names the columns."""
    columns = list(found[0].values)
    rows = []
    for example in found:
        told = [f"{example.index}", example.label or MISSING, example.predicted, example.percent]
        for column in columns:
            value = example.values.get(column)
            told.append(MISSING if value is None else f"{value:.3g}")
        rows.append(told)
    return Table(f"{title} (inputs as the network gets them)", [*HEADS, *columns], rows)


HEADS = ("Sample", "Class", "Answer", "Sure, %")
MISSING = "\u2013"


def _example(stored: Mapping[str, Any], classes: Sequence[Any]) -> Example | None:
    """A stored example, None if it is not as covey writes it."""
    picture = checked_picture(stored.get("picture")) if "picture" in stored else ""
    values = _values(stored.get("values", {}))
    if picture is None or values is None or not (picture or values):
        return None
    try:
        label = stored["label"]
        predicted = int(stored["predicted"])
        return Example(
            index=int(stored["index"]),
            label="" if label is None else _class_name(classes, int(label)),
            predicted=_class_name(classes, predicted),
            confidence=float(stored["confidence"]),
            picture=picture,
            values=values,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _map(stored: Mapping[str, Any], classes: Sequence[Any]) -> Example | None:
    """An image with its classes, answer and uncertainty side by side, None if it is not as covey writes it."""
    picture = checked_picture(stored.get("picture"))
    if picture is None:
        return None
    try:
        accuracy = stored["accuracy"]
        right = (
            "no pixel counts" if accuracy is None else f"{100 * float(accuracy):.1f} % of its pixels right"
        )
        told = f"{right}, mean entropy {float(stored['entropy']):.2f}"
        return Example(int(stored["index"]), "", "", 0.0, picture, told=told)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _values(stored: Any) -> dict[str, float | None] | None:
    """A row's numbers by name, None if they are something else."""
    if not isinstance(stored, Mapping) or len(stored) > MOST_VALUES:
        return None
    found: dict[str, float | None] = {}
    for name, value in stored.items():
        if value is not None and not isinstance(value, (int, float)):
            return None
        found[str(name)] = value
    return found


def _class_name(classes: Sequence[Any], label: int) -> str:
    if 0 <= label < len(classes):
        return str(classes[label])
    return f"class {label}"
