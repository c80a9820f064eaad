"""Results of an experiment as one file, from which pages are made: settings, versions, wall time and raw scores."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from covey.cli import reading, run
from covey.cli.planned import PlannedRun
from covey.cli.settings import Settings
from covey.errors import StoreError
from covey.files import write_text
from covey.schema import Many, Maybe, Named, Number, Record, Whole, Word, check, read_json
from covey.scores import Evaluation, stored
from covey.tables import counted
from covey.train import Machine
from covey.version import __version__

FORMAT = 1
DIGITS = 6
# what is too long for a file that is kept, and can be computed again from the runs' outputs
LEFT_OUT = (
    "kinds",
    "disagreement_matrix",
    "normalised_disagreement_matrix",
    "per_class",
    "confused",
    "confusion",
)
RESULTS = Record(
    {
        "planned": Whole(),
        "runs": Many(
            Record(
                {
                    "label": Word(),
                    "repeat": Whole(),
                    "seconds": Maybe(Number(0, 1e12)),
                    "settings": Record({"dataset": Named()}),
                }
            )
        ),
    }
)


def write(
    path: Path,
    name: str,
    about: Mapping[str, Any],
    command: str,
    runs: Sequence[Mapping[str, Any]],
    planned: int,
) -> None:
    """Write the entries of the runs that are done, of so many planned."""
    found = {
        "format": FORMAT,
        "name": name,
        "about": dict(about),
        "command": command,
        "written": datetime.now(timezone.utc).date().isoformat(),
        "versions": {"covey": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
        },
        "planned": planned,
        "runs": list(runs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _in_lines(found))


def _in_lines(found: Mapping[str, Any]) -> str:
    """JSON with a line for each run, so that one more run is one more line."""
    head = {key: value for key, value in found.items() if key != "runs"}
    lines = ",\n".join(json.dumps(one) for one in found["runs"])
    return json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n'


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote."""
    found = read_json(path, Record({"format": Whole()}))
    if found["format"] != FORMAT:
        raise StoreError(f"{path} holds results of format {found['format']}; this covey reads {FORMAT}.")
    check(found, RESULTS, path)
    return found


def folder() -> Path:
    """The folder of covey's own results, in the package or beside the sources."""
    inside = Path(__file__).parents[1] / "results"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "results"


def state(found: Mapping[str, Any]) -> str:
    """How much of an experiment is done, in words."""
    runs = found["runs"]
    repeats = len({one["repeat"] for one in runs})
    hours = sum(one["seconds"] or 0 for one in runs) / 3600
    planned = counted(found["planned"], "run")
    return f"{len(runs)} of {planned}, {counted(repeats, 'seed')}, {hours:.1f} h"


def entry(label: str, repeat: int, folder: Path) -> dict[str, Any]:
    """What is kept of a run that is done: its name in tables, which repetition, settings, scores and cost."""
    settings = reading.read_settings(folder)
    kept = {k: v for k, v in settings.items() if k not in ("record", "seconds", "ended", "machine")}
    kept["dataset"] = {
        **kept["dataset"],
        "root": None,
    }  # where data lie on this machine is nobody else's business
    scores = dict(Evaluation.load(folder).scores)
    del scores["members"]  # each member's, which add up to their mean
    found = {
        "label": label,
        "repeat": repeat,
        "seconds": settings["seconds"],
        "ended": settings["ended"],
        "settings": kept,
        "scores": _short(scores),
        "cost": _short(read_json(folder / run.COST, stored.COST)),
    }
    if (folder / run.COLLAPSED).exists():
        collapsed = _short(read_json(folder / run.COLLAPSED, Named(Named())))
        if collapsed:
            found["collapsed"] = collapsed
    if subsets := run.read_subsets(folder):
        found["subsets"] = _short(subsets)
    return found


def is_of(entry: Mapping[str, Any], settings: Settings) -> bool:
    """Whether an entry is of a run with these settings, on whatever machine."""
    elsewhere = replace(settings, machine=Machine(), dataset=replace(settings.dataset, root=None))
    return reading.settings_of(dict(entry["settings"])) == elsewhere


def has(entry: Mapping[str, Any], one: PlannedRun) -> bool:
    """Whether an entry has every score that a run is to have."""
    if one.subsets and "subsets" not in entry:
        return False
    if one.collapsed and "collapsed" not in entry and entry["cost"].get("members") != 1:
        return False
    return not one.corruptions or entry["scores"].get("robustness", {}).get("samples") == one.corruptions


def _short(value: Any) -> Any:
    """Numbers to six digits, without what is left out."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return value


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Over repetitions; the deviation of one is 0."""
    found = torch.tensor(list(values), dtype=torch.float64)
    return float(found.mean()), float(found.std()) if len(found) > 1 else 0.0
