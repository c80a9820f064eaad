"""How a network is called: what is given to it, and which part of what it returns is the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from covey.errors import ConversionError, CoveyError, DataError
from covey.networks.held import DEPTH, is_plain_object, slots_of

Arguments = tuple[tuple, dict[str, Any]]
"""Positional and keyword arguments of a call."""

_ATOMS = {type(None), bool, int, float, str, bytes, torch.dtype, torch.device}

Output = str | int | None
"""Which part of a network's output is the answer: a key, an attribute or a position; None where there is only one."""


def arguments(example: Any) -> Arguments:
    """An example input as (args, kwargs)."""
    open_objects(example)
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


# --- objects that hold tensors ---------------------------------------------------------------------------------------


def open_objects(inputs: Any) -> None:
    """Let torch's trees look into the objects among some inputs that hold tensors: dataclasses, graphs, caches.

    To a tree they are leaves. Members would then all get the same object, and a network that sets an attribute of it,
    as many of those do that hand a graph from layer to layer, would hand one member's features to the next.
    """
    if torch.compiler.is_compiling():
        return
    for leaf in _leaves(inputs):
        if type(leaf) in _ATOMS or isinstance(leaf, Tensor) or type(leaf) in pytree.SUPPORTED_NODES:
            continue
        if _tensors_in(leaf, ()):
            pytree.register_pytree_node(type(leaf), _taken_apart, _put_together)
            open_objects(_taken_apart(leaf)[0])


def _leaves(inputs: Any) -> list[Any]:
    try:
        return pytree.tree_leaves(inputs)
    except RecursionError:
        raise DataError(
            "an input leads back to itself, so it cannot be copied for each member: give the network objects without "
            "such a circle."
        ) from None


def _tensors_in(value: Any, around: tuple[int, ...]) -> bool:
    """Whether an object leads to a tensor, and nowhere back to itself, since a tree has no circles."""
    leaves = [value] if not around else pytree.tree_leaves(value)
    found = False
    for leaf in leaves:
        if id(leaf) in around or len(around) > DEPTH:
            return False
        if isinstance(leaf, Tensor):
            found = True
        elif type(leaf) not in _ATOMS and (is_plain_object(leaf) or isinstance(leaf, dict)):
            found |= _tensors_in(_taken_apart(leaf)[0], (*around, id(leaf)))
    return found


def _taken_apart(value: Any) -> tuple[list[Any], tuple[type, list[Any], list[str]]]:
    """What an object holds, and its kind with the keys and names it holds it under."""
    items = dict(value) if isinstance(value, dict) else {}
    attributes = {**getattr(value, "__dict__", {}), **dict(slots_of(value))}
    return [*items.values(), *attributes.values()], (type(value), list(items), list(attributes))


def _put_together(values: Iterable[Any], how: tuple[type, list[Any], list[str]]) -> Any:
    kind, keys, names = how
    left = iter(values)
    made: Any = kind.__new__(kind)  # type: ignore[call-overload]
    for key in keys:
        dict.__setitem__(made, key, next(left))
    for name in names:
        # not by the class's own way, which may forbid it (frozen) or do more
        if hasattr(made, "__dict__") and not hasattr(type(made), name):
            made.__dict__[name] = next(left)
        else:
            object.__setattr__(made, name, next(left))
    return made


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
