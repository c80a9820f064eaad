"""What a run is, in plain data, and whether a stored one is the same: it goes on only with its own settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from covey.errors import StoreError
from covey.quantiles import Quantiles
from covey.train.recipe import Recipe
from covey.train.state import Job


def settings(job: Job) -> dict[str, Any]:
    """What a resumed run must have in common with the one before, as JSON holds it."""
    recipe = asdict(job.recipe)
    recipe.pop("checkpoint")
    record = {key: job.data.record.get(key) for key in ("source", "indices_sha256")}
    found = {"recipe": recipe, "method": job.way, "data": record, "own": _own(job)}
    return json.loads(json.dumps(found, default=str))


def check_settings(path: Path, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with other settings than those of the checkpoint.

    A setting that the checkpoint does not name is one that covey did not have then: it had what is the default now.
    """
    defaults = {"recipe": json.loads(json.dumps(asdict(Recipe()), default=str))}
    for part in now:
        # A setting of the recipe is known by its own name, to users of the command line too.
        where = "" if part == "recipe" else part
        if part == "method":
            found = _other_method(stored.get(part), now[part])
        else:
            found = _difference(where, stored.get(part, {}), now[part], defaults.get(part))
        if found is not None:
            raise StoreError(
                f"{path} was written with other settings: {found}. Resume with the same, or start in another folder."
            )


def _other_method(stored: Any, now: str) -> str | None:
    """How two methods differ, which are known by their descriptions: of one with other options, those alone."""
    if stored == now:
        return None
    kind, _, options = str(stored).rstrip(")").partition("(")
    kind_now, _, options_now = now.rstrip(")").partition("(")
    before, after = options.split(", "), options_now.split(", ")
    if kind != kind_now or len(before) != len(after):
        return f"method was {stored} and is {now}"
    pairs = [(was, is_now) for was, is_now in zip(before, after, strict=True) if was != is_now]
    was, is_now = (", ".join(side) for side in zip(*pairs, strict=True))
    return f"method was {kind}({was}) and is {kind}({is_now})"


def _difference(where: str, stored: Any, now: Any, default: Any) -> str | None:
    """The first setting that differs, in words."""
    if not isinstance(stored, dict) or not isinstance(now, dict):
        return None if stored == now else f"{where} was {stored!r} and is {now!r}"
    defaults = default if isinstance(default, dict) else {}
    for key in now:
        was = stored.get(key, defaults.get(key))
        found = _difference(f"{where}.{key}".lstrip("."), was, now[key], defaults.get(key))
        if found is not None:
            return found
    for key in stored:
        if key not in now:
            return f"{where}.{key} was {stored[key]!r}, and this covey has no such setting".lstrip(".")
    return None


def _own(job: Job) -> dict[str, str | None]:
    """What the user brought of functions and weights, in words that are the same for the same thing."""
    data = job.data
    return {
        "loss": None if isinstance(job.loss, str) else _called(job.loss),
        "optimizer": _called(job.optimizer),
        "schedule": _called(job.schedule),
        "transform": _called(data.transform),
        "class_weight": None if data.class_weights is None else str(data.class_weights.tolist()),
        "sample_weight": None
        if data.sample_weights is None
        else hashlib.sha256(repr(data.sample_weights.tolist()).encode()).hexdigest(),
    }


def _called(function: Any) -> str | None:
    """A function's name, or an object's description without its place in memory."""
    if function is None:
        return None
    if isinstance(function, Quantiles):
        return str(function)  # with its levels
    if isinstance(function, partial):
        given = [_value(value) for value in function.args]
        given += [f"{name}={_value(value)}" for name, value in sorted(function.keywords.items())]
        return f"{_called(function.func)}({', '.join(given)})"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _value(value: Any) -> str:
    """An argument as itself where that is short and always the same, else by its kind."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else type(value).__qualname__
