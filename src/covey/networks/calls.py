"""How a network is called: what is given to it, and which part of what it returns is the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from covey.errors import ConversionError, CoveyError, DataError

Arguments = tuple[tuple, dict[str, Any]]
"""Positional and keyword arguments of a call."""

Output = str | int | None
"""Which part of a network's output is the answer: a key, an attribute or a position; None where there is only one."""


def arguments(example: Any) -> Arguments:
    """An example input as (args, kwargs)."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


@contextmanager
def inputs_explained(given: Any) -> Iterator[None]:
    """Say what was given to a network that does not take it."""
    try:
        yield
    except (CoveyError, torch.OutOfMemoryError):
        raise
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        if isinstance(given, Mapping):
            what = "the keywords " + ", ".join(f"{name} {_sized(value)}" for name, value in given.items())
            advice = "Name the columns that it takes: covey.data.adapt(data, inputs=...)."
        else:
            several = given if isinstance(given, tuple) else (given,)
            what, advice = ", ".join(map(_sized, several)), "Check their shape and type."
        raise DataError(
            f"the network does not take the data's inputs. It was given {what}, and said: "
            f"{type(error).__name__}: {error}. {advice}"
        ) from error


def _sized(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def pick(result: Any, output: Output) -> Tensor:
    """The answer's tensor out of whatever a network returns.

    >>> import torch
    >>> pick({"logits": torch.zeros(2, 3), "loss": None}, None).shape
    torch.Size([2, 3])
    """
    if isinstance(result, Tensor) and output is None:
        return result
    try:
        if output is None:
            return _only(result)
        found = getattr(result, output, None) if isinstance(output, str) else None
        found = result[output] if found is None else found
    except (KeyError, IndexError, TypeError) as error:
        raise ConversionError(
            f"output={output!r} is not in what the network returns: {_describe(result)}."
        ) from error
    if not isinstance(found, Tensor):
        raise ConversionError(f"output={output!r} is a {type(found).__name__}, not a tensor.")
    return found


def _only(result: Any) -> Tensor:
    if isinstance(result, Mapping) and isinstance(result.get("logits"), Tensor):
        return result["logits"]
    parts = list(result.values()) if isinstance(result, Mapping) else result
    if isinstance(parts, tuple | list) and len(parts) == 1 and isinstance(parts[0], Tensor):
        return parts[0]
    raise ConversionError(
        f"the network returns {_describe(result)}; say which part is the answer with output=, a key or a position."
    )


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a {type(result).__name__} with the keys {', '.join(map(repr, result))}"
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)} parts ({', '.join(type(p).__name__ for p in result)})"
    return f"a {type(result).__name__}"
