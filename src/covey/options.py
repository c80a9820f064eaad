"""Checks of options, one for each kind of mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from covey.errors import OptionError


def check_choice(name: str, value: Any, known: Sequence[Any]) -> None:
    """Refuse a value that is not one of the known ones.

    >>> check_choice("init", "new", ("copy", "fresh"))
    Traceback (most recent call last):
    covey.errors.OptionError: init is one of 'copy', 'fresh'; got 'new'.
    """
    if value not in known:
        raise _wrong(name, f"one of {', '.join(map(repr, known))}; got {value!r}.")


def check_least(name: str, value: Any, least: float) -> None:
    """Refuse a number below the least, or what is no finite number."""
    if not is_number(value) or value < least:
        raise _wrong(name, f"at least {least:g}; got {value!r}.")


def check_above(name: str, value: Any, bound: float = 0.0) -> None:
    """Refuse a number that is not above a bound."""
    if not is_number(value) or value <= bound:
        raise _wrong(name, f"above {bound:g}; got {value!r}.")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(name, f"a whole number of at least {least}; got {value!r}.")


def check_between(name: str, value: Any, low: float, high: float) -> None:
    """Refuse a number outside a range; its ends belong to it."""
    if not is_number(value) or not low <= value <= high:
        raise _wrong(name, f"from {low:g} to {high:g}; got {value!r}.")


def check_share(name: str, value: Any) -> None:
    """Refuse a number that is no share of a whole, or all of it."""
    if not is_number(value) or not 0 <= value < 1:
        raise _wrong(name, f"at least 0 and below 1; got {value!r}.")


def _wrong(name: str, rest: str) -> OptionError:
    return OptionError(f"{name} is {rest}", setting=name)


def check_types(given: Any) -> None:
    """Refuse options whose values are not of the types that their dataclass declares; numbers must be finite."""
    hints = type_hints(type(given))  # type: ignore[arg-type]
    for field in fields(given):
        if not field.init:
            continue
        value = getattr(given, field.name)
        if not fits(value, hints[field.name]):
            raise _wrong(field.name, f"{in_words(hints[field.name])}; got {value!r}.")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as one writes it in an annotation.

    >>> fits(3, float), fits(True, int), fits(("a", "b"), str | Sequence[str]), fits(float("nan"), float | None)
    (True, False, True, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return any(value == known and type(value) is type(known) for known in parts)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, tuple | list) and _fit_in_order(value, parts)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        words = isinstance(value, Sequence) and not isinstance(value, str)
        return words and all(fits(each, parts[0]) for each in value)
    if origin is Callable:
        return callable(value)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _fit_in_order(values: Sequence[Any], parts: tuple) -> bool:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return all(fits(value, parts[0]) for value in values)
    return len(values) == len(parts) and all(map(fits, values, parts))


@cache
def type_hints(kind: type) -> dict[str, Any]:
    """The types that a dataclass declares; resolving them takes a while, so each class is done once."""
    return get_type_hints(kind)


def in_words(hint: Any) -> str:
    """A type as a person would say it."""
    names = {
        int: "a whole number",
        float: "a finite number",
        str: "a word",
        bool: "True or False",
        type(None): "None",
    }
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(in_words, get_args(hint)))
    parts = get_args(hint)
    if get_origin(hint) is tuple and parts[-1] is not Ellipsis:
        return f"{len(parts)} values, each {in_words(parts[0])}"
    if parts and get_origin(hint) is not Callable:
        return f"several values, each {in_words(parts[0])}"
    return names.get(hint) or f"a {getattr(hint, '__name__', hint)}"


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; truths are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
