"""Checks of the options that networks take: one function for each kind of mistake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from covey.errors import OptionError


def whole(name: str, value: object, *, at_least: int = 1) -> int:
    """`value` if it is a whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise OptionError(f"{name} must be a whole number of at least {at_least}, got {value!r}")
    return value


def wholes(name: str, values: object) -> tuple[int, ...]:
    """`values` if it is a sequence of whole numbers of at least 1; it may be empty."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise OptionError(f"{name} must be a sequence of whole numbers, such as [200, 200], got {values!r}")
    return tuple(whole(f"{name}[{i}]", value) for i, value in enumerate(values))


def share(name: str, value: object) -> float:
    """`value` if it is a probability that leaves something: 0 <= value < 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise OptionError(f"{name} must be a number from 0 to below 1, got {value!r}")
    return float(value)


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Nothing, if `value` is one of `allowed`."""
    allowed = list(allowed)
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def depth_of_blocks(depth: object, *, per_block: int, outside: int) -> int:
    """Blocks in each of three stages, n, where depth = `per_block` n + `outside`."""
    blocks, rest = divmod(whole("depth", depth) - outside, per_block)
    if rest or blocks < 1:
        examples = ", ".join(str(per_block * n + outside) for n in (1, 2, 3, 4))
        raise OptionError(f"depth must be {per_block} n + {outside} ({examples}, ...), got {depth}")
    return blocks
