"""Checks of options, one for each kind of mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from covey.errors import OptionError


def check_choice(name: str, value: Any, known: Sequence[Any]) -> None:
    """Refuse a value that is not one of the known ones.

    >>> check_choice("init", "new", ("copy", "fresh"))
    Traceback (most recent call last):
    covey.errors.OptionError: init is one of 'copy', 'fresh'; got 'new'.
    """
    if value not in known:
        raise OptionError(f"{name} is one of {', '.join(map(repr, known))}; got {value!r}.")


def check_least(name: str, value: Any, least: float) -> None:
    """Refuse a number below the least, or what is no finite number."""
    if not is_number(value) or value < least:
        raise OptionError(f"{name} is at least {least:g}; got {value!r}.")


def check_above(name: str, value: Any, bound: float = 0.0) -> None:
    """Refuse a number that is not above a bound."""
    if not is_number(value) or value <= bound:
        raise OptionError(f"{name} is above {bound:g}; got {value!r}.")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is a whole number of at least {least}; got {value!r}.")


def check_between(name: str, value: Any, low: float, high: float) -> None:
    """Refuse a number outside a range; its ends belong to it."""
    if not is_number(value) or not low <= value <= high:
        raise OptionError(f"{name} is from {low:g} to {high:g}; got {value!r}.")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; truths are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
