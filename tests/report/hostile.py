"""Stored runs with texts that try to become a script, a link or a command of the template engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from covey.report import Run
from covey.scores import Cost, Evaluation

PAYLOADS = (
    '"><script>document.title="owned"</script>',
    "javascript:document.title='owned'",
    "{{7*7}}{% if %}",
    "'><img src=x onerror=\"document.title='owned'\">",
    "</style></script></title><svg onload=document.title='owned'>",
    "--><!--]]>",
    "[x](javascript:alert) | `a` \n# b\x00 $x_{$",
)
HOSTILE = " ".join(PAYLOADS)

Path = tuple[str | int, ...]


def strings(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where each string of a JSON value is."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from strings(inner, (*path, place))


def planted(value: Any, path: Path, text: str) -> Any:
    """A copy with another string at one place."""
    result = copy.deepcopy(value)
    parent = result
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = text
    return result


def renamed(value: Any, old: str, new: str) -> Any:
    """A copy in which a name is another wherever it stands, as a key or as a string."""
    if isinstance(value, dict):
        return {new if key == old else key: renamed(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, old, new) for inner in value]
    return new if value == old else value


def stored(run: Run) -> dict[str, Any]:
    """A run as the JSON of its files."""
    assert run.cost is not None
    result = {
        "method": run.method,
        "evaluation": run.evaluation.to_dict(),
        "cost": run.cost.to_dict(),
        "history": [dict(row) for row in run.history],
        "settings": dict(run.settings),
        "landscape": dict(run.landscape),
    }
    result["evaluation"]["notes"].append("a note")
    return result


def restored(found: dict[str, Any], seed: int = 0) -> Run:
    """The run that such JSON describes."""
    return Run(
        found["method"],
        seed,
        Evaluation.from_dict(found["evaluation"]),
        Cost(**found["cost"]),
        found["history"],
        found["settings"],
        found["landscape"],
    )


NAMES = ("far away", "train_loss", "script")
"""An OOD set, a quantity of training and a setting: names that users choose and that files hold as keys."""


def one_at_a_time(run: Run) -> dict[str, dict[str, Any]]:
    """Stored runs with one hostile text each, by where it is; entries of one kind count as one place."""
    clean = stored(run)
    found: dict[str, dict[str, Any]] = {}
    for path in strings(clean):
        steps = ["*" if isinstance(step, int) else step for step in path]
        if steps[1:2] == ["calibration"] or "versions" in steps:
            steps[2:3] = ["*"]
        found.setdefault("/".join(steps), planted(clean, path, HOSTILE))
    for name in NAMES:
        found[f"the name {name}"] = renamed(clean, name, HOSTILE)
    return found


def all_at_once(run: Run) -> dict[str, Any]:
    """A stored run with every text hostile, but those that say what kind of thing a calibration is."""
    result = stored(run)
    for path in strings(result):
        if path[:2] != ("evaluation", "calibration") and path[-1] != "kind":
            result = planted(result, path, f"{HOSTILE} {path[-1]}")
    for name in NAMES:
        result = renamed(result, name, f"{HOSTILE} {name}")
    return result
