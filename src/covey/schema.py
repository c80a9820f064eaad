"""What a stored JSON file must look like: specs that are checked before anything is made of the file.

A file may come from a stranger, or have been cut short. So its text is read with bounds on its size, its depth and its
numbers, and what it says is compared with a spec, which names the first thing that is wrong:

>>> spec = Record({"members": Whole(1, 100), "seed": Maybe(Whole())})
>>> check({"members": 4, "seed": None}, spec, "config.json")
>>> check({"members": "4", "seed": None}, spec, "config.json")
Traceback (most recent call last):
covey.errors.StoreError: config.json: members should be a whole number from 1 to 100; got '4'. The file was changed ...

Keys that a spec does not name may be there: a later version can have written them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.errors import StoreError
from covey.files import check_stored

MOST_BYTES = 1 << 26  # of a file; the objects that JSON of this size stands for still fit into 2 GB
MOST_DEPTH = 48
LARGEST = 2**63 - 1
_SHOWN = 80  # characters of a value in a message


class Spec:
    """What a value must be."""

    def fault(self, value: Any, where: str) -> str | None:
        """What is wrong with a value, as a sentence without its end; None if nothing is."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Spec):
    """Anything that JSON holds."""

    def fault(self, value: Any, where: str) -> str | None:
        """Nothing is wrong."""
        return None


@dataclass(frozen=True)
class Word(Spec):
    """A text; one of the choices, if there are some."""

    choices: tuple[str, ...] = ()

    def fault(self, value: Any, where: str) -> str | None:
        """Another type, or none of the choices."""
        if isinstance(value, str) and (not self.choices or value in self.choices):
            return None
        wanted = "one of " + ", ".join(map(repr, self.choices)) if self.choices else "a text"
        return _unlike(where, wanted, value)


@dataclass(frozen=True)
class Truth(Spec):
    """True or false."""

    def fault(self, value: Any, where: str) -> str | None:
        """Another type."""
        return None if isinstance(value, bool) else _unlike(where, "true or false", value)


@dataclass(frozen=True)
class Whole(Spec):
    """A whole number within bounds."""

    least: int = 0
    most: int = LARGEST

    def fault(self, value: Any, where: str) -> str | None:
        """Another type, or out of bounds."""
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return None
        return _unlike(where, f"a whole number from {self.least} to {self.most}", value)


@dataclass(frozen=True)
class Number(Spec):
    """A number; NaN and infinities only where they are allowed."""

    least: float = -math.inf
    most: float = math.inf
    finite: bool = True

    def fault(self, value: Any, where: str) -> str | None:
        """Another type, or out of bounds."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not self.finite and not math.isfinite(value):
            return None
        if is_number and math.isfinite(value) and self.least <= value <= self.most:
            return None
        bounds = "" if math.isinf(self.least) else f" of at least {self.least:g}"
        bounds += "" if math.isinf(self.most) else f" of at most {self.most:g}"
        return _unlike(where, f"a number{bounds}", value)


@dataclass(frozen=True)
class Maybe(Spec):
    """What another spec says, or null."""

    spec: Spec

    def fault(self, value: Any, where: str) -> str | None:
        """As the other spec, for what is not null."""
        return None if value is None else self.spec.fault(value, where)


@dataclass(frozen=True)
class Either(Spec):
    """What one of several specs says."""

    specs: tuple[Spec, ...]

    def fault(self, value: Any, where: str) -> str | None:
        """The last spec's words, if no spec is content."""
        found = None
        for spec in self.specs:
            found = spec.fault(value, where)
            if found is None:
                return None
        return found


@dataclass(frozen=True)
class Both(Spec):
    """What each of several specs says."""

    specs: tuple[Spec, ...]

    def fault(self, value: Any, where: str) -> str | None:
        """The words of the first spec that is not content."""
        for spec in self.specs:
            found = spec.fault(value, where)
            if found is not None:
                return found
        return None


@dataclass(frozen=True)
class Many(Spec):
    """A list, each entry of which another spec describes."""

    of: Spec = field(default_factory=Plain)
    least: int = 0
    most: int = 1 << 24

    def fault(self, value: Any, where: str) -> str | None:
        """No list, too short or too long a one, or the first entry that is wrong."""
        if not isinstance(value, list):
            return _unlike(where, "a list", value)
        if not self.least <= len(value) <= self.most:
            return f"{where} should have {self.least} to {self.most} entries; it has {len(value)}"
        for place, entry in enumerate(value):
            found = self.of.fault(entry, f"{where}[{place}]")
            if found is not None:
                return found
        return None


@dataclass(frozen=True)
class Named(Spec):
    """A table from any names to values that another spec describes."""

    of: Spec = field(default_factory=Plain)

    def fault(self, value: Any, where: str) -> str | None:
        """No table, or the first value that is wrong."""
        if not isinstance(value, dict):
            return _unlike(where, "a table", value)
        for name, entry in value.items():
            found = self.of.fault(entry, _inside(where, name))
            if found is not None:
                return found
        return None


@dataclass(frozen=True)
class Record(Spec):
    """A table with keys that must be there, and others that may be."""

    keys: Mapping[str, Spec] = field(default_factory=dict)
    optional: Mapping[str, Spec] = field(default_factory=dict)

    def fault(self, value: Any, where: str) -> str | None:
        """No table, a key that is missing, or the first value that is wrong."""
        if not isinstance(value, dict):
            return _unlike(where, "a table", value)
        for key in self.keys:
            if key not in value:
                return f"{where or 'it'} lacks {key!r}"
        for key, spec in {**self.keys, **self.optional}.items():
            if key in value:
                found = spec.fault(value[key], _inside(where, key))
                if found is not None:
                    return found
        return None


@dataclass(frozen=True)
class Kinds(Spec):
    """A table of one of several kinds, which one of its keys tells."""

    key: str
    kinds: Mapping[str, Spec]

    def fault(self, value: Any, where: str) -> str | None:
        """No table, an unknown kind, or what is wrong for its kind."""
        found = Record({self.key: Word(tuple(self.kinds))}).fault(value, where)
        return self.kinds[value[self.key]].fault(value, where) if found is None else found


def check(value: Any, spec: Spec, source: str | Path) -> None:
    """Refuse a value that is not what the spec says, as a StoreError that names the file and the place."""
    found = spec.fault(value, "")
    if found is not None:
        raise StoreError(f"{source}: {found.strip()}. The file was changed after it was written, or damaged.")


def read_json(path: Path, spec: Spec | None = None) -> Any:
    """What a stored JSON file holds, if it is what the spec says."""
    value = parse_json(read_text(path), path)
    if spec is not None:
        check(value, spec, path)
    return value


def read_text(path: Path) -> str:
    """The text of a stored file, if it is an ordinary one of bounded size."""
    check_stored(path)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise StoreError(
                f"{path} has {size:,} bytes; what covey stores there has at most {MOST_BYTES:,}."
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def parse_json(text: str, source: str | Path) -> Any:
    """The value of a JSON text: not too deep, no whole number above 64 bits, no half of a character."""
    try:
        value = json.loads(text, parse_int=_whole)
        _check_plain(value)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{source} is broken or cut short: {error}.") from error
    return value


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"a whole number of {len(digits)} digits")
    value = int(digits)
    if abs(value) > LARGEST:
        raise ValueError(f"the whole number {digits} needs more than 64 bits")
    return value


def _check_plain(value: Any, depth: int = 0) -> None:
    if depth > MOST_DEPTH:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
    if isinstance(value, str):
        value.encode()  # a UnicodeEncodeError, which is a ValueError, for half a pair of surrogates
    elif isinstance(value, list):
        for entry in value:
            _check_plain(entry, depth + 1)
    elif isinstance(value, dict):
        for key, entry in value.items():
            key.encode()
            _check_plain(entry, depth + 1)


def _inside(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _unlike(where: str, wanted: str, value: Any) -> str:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "..."
    return f"{where} should be {wanted}; got {shown}"
