"""Example pictures out of stored evaluations, which anyone may have written: decoded, checked and encoded anew."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.extras import load

from .results import Results

PREFIX = "data:image/png;base64,"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_SIDE = 512
"""Pixels. covey itself stores pictures of 256 at most."""

MOST_BYTES = 4 * MOST_SIDE * MOST_SIDE


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
    """A test sample with its picture.

    Args:
        index: its place in the test set.
        label: the name of its class.
        predicted: the name of the class that the method answers.
        confidence: the probability of that answer.
        picture: a data URL.
    """

    index: int
    label: str
    predicted: str
    confidence: float
    picture: str

    @property
    def wrong(self) -> bool:
        """Whether the answer is another class."""
        return self.label != self.predicted

    @property
    def percent(self) -> str:
        """The confidence as it is written."""
        return f"{100 * self.confidence:.1f}"

    @property
    def alt(self) -> str:
        """The sample in words."""
        return f"Test sample {self.index}: {self.label}, predicted {self.predicted}"


@dataclass(frozen=True)
class Pictures:
    """Examples under a title."""

    title: str
    examples: Sequence[Example]


def pictures(results: Results) -> tuple[list[Pictures], list[str]]:
    """The most and the least certain samples of each method's first run, and notes on those that cannot be shown."""
    groups: list[Pictures] = []
    notes: list[str] = []
    for method in results.methods:
        evaluation = method.runs[0].evaluation
        by_kind: dict[str, list[Example]] = {"most certain": [], "least certain": []}
        unreadable = 0
        for stored in evaluation.examples:
            example = _example(stored, evaluation.about["classes"])
            kind = str(stored.get("kind")) if isinstance(stored, Mapping) else ""
            if example is None or kind not in by_kind:
                unreadable += 1
            else:
                by_kind[kind].append(example)
        for kind, examples in by_kind.items():
            if examples:
                groups.append(Pictures(f"{method.name}: {kind}", examples))
        if unreadable:
            notes.append(
                f"{method.name}: {unreadable} stored example(s) left out, because their pictures are no small PNG or "
                "their values cannot be read."
            )
    return groups, notes


def _example(stored: Any, classes: Sequence[Any]) -> Example | None:
    """A stored example, None if it is not as covey writes it."""
    if not isinstance(stored, Mapping):
        return None
    picture = checked_picture(stored.get("picture"))
    if picture is None:
        return None
    try:
        label = int(stored["label"])
        predicted = int(stored["predicted"])
        return Example(
            index=int(stored["index"]),
            label=_class_name(classes, label),
            predicted=_class_name(classes, predicted),
            confidence=float(stored["confidence"]),
            picture=picture,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _class_name(classes: Sequence[Any], label: int) -> str:
    if 0 <= label < len(classes):
        return str(classes[label])
    return f"class {label}"
