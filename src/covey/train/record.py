"""fit.json: what a run of `covey.fit` is and what it was trained on, so that commands can show, score and ask it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from covey import registry
from covey.data import Data
from covey.data.prepared import KINDS, SEVERAL
from covey.errors import CoveyError
from covey.files import write_text
from covey.method import Method, Training
from covey.train.state import Job, State

FILE = "fit.json"
COMMANDS = "settings.json"
"""What the command line writes instead, which says more."""


def write(job: Job, state: State, way: Method | Training | None, ended: str, seconds: float | None) -> None:
    """Write what is known of a run, unless the command line has done so."""
    if job.folder is None or not job.leads or os.path.lexists(job.folder / COMMANDS):
        return
    found = {
        **_described(way or state.ensemble.method, job),
        "recipe": asdict(job.recipe),
        "record": data_record(job.data),
        "seconds": None if seconds is None else round(seconds, 1),
        "ended": ended,
    }
    write_text(Path(job.folder) / FILE, json.dumps(found, indent=1, default=str) + "\n")


def data_record(data: Data) -> dict[str, Any]:
    """The record of the data, with all that predictions need of it."""
    scales = {"normalisation": data.normalisation, "target_normalisation": data.target_normalisation}
    found: dict[str, Any] = {
        "source": "data of your own",
        "columns": [],
        **data.record,
        "task": data.task,
        "classes": list(data.classes),
        "shape": list(data.shape),
        **{name: None if scale is None else asdict(scale) for name, scale in scales.items()},
    }
    if not found["columns"] and data.normalisation is None and data.task != "language":
        found["tensors"] = _kind(data.train.example())
    return found


def _kind(example: Any) -> str:
    """The type of the numbers that the network takes as they are; SEVERAL where it takes more than one tensor."""
    if not isinstance(example, Tensor):
        return SEVERAL
    return next((name for name, kind in KINDS.items() if kind == example.dtype), SEVERAL)


def _described(way: Method | Training, job: Job) -> dict[str, Any]:
    try:
        return registry.described(way)
    except CoveyError:  # a way of training of the user's own, which has no name; what it makes has one
        if isinstance(way, Training):
            return registry.described(way.result(job.recipe))
        raise
