"""Checkpoints: one safetensors file each, written in one step, with everything a run needs to go on.

Random numbers need no storing: data order, augmentation and whatever the network draws are functions of the seed and of
the minibatches consumed.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.errors import StoreError, TrainingError
from covey.files import whole
from covey.tensor_files import read_tensors, write_tensors
from covey.train.state import Job, State

FORMAT = 2
KEPT = 2  # the newest, and one more in case a disk damages it
_log = logging.getLogger("covey")


def folder_of(run: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run / "checkpoints"


def prepare_folder(run: Path, *, resume: bool) -> None:
    """Make the run's folder, and find out before the first epoch whether it can be used."""
    try:
        folder_of(run).mkdir(parents=True, exist_ok=True)
        with whole(run / ".writable") as path:
            path.write_bytes(b"covey")
        (run / ".writable").unlink()
    except OSError as error:
        raise StoreError(f"cannot write to {run}: {error}. Choose another folder.") from error
    found = _files(run)
    if found and not resume:
        raise StoreError(
            f"{run} holds a run already, whose newest checkpoint is {found[-1].name}. Go on with it by resuming "
            "(--resume, resume=True), or choose another folder."
        )


def check_space(run: Path, state: State) -> None:
    """Refuse to start where the checkpoints will not fit on the disk."""
    size = sum(t.numel() * t.element_size() for t in state.ensemble.state_dict().values())
    needed = size * 3 * (KEPT + 1)  # weights, optimiser state and the best weights
    free = shutil.disk_usage(run).free
    if free < needed:
        raise StoreError(
            f"the disk of {run} has {free / 2**20:.1f} MiB free, and its checkpoints take about "
            f"{needed / 2**20:.1f} MiB. Make room, or choose another folder."
        )


def save(job: Job, state: State) -> Path | None:
    """Write a checkpoint and drop old ones. The last good one stays if that fails."""
    if job.folder is None or not job.leads:
        return None
    tensors = _tensors(state)
    bad = [name for name, t in tensors.items() if t.is_floating_point() and not torch.isfinite(t).all()]
    if bad:
        raise TrainingError(
            f"{bad[0]!r} holds numbers that are NaN or infinite at step {state.steps}; it was not saved, and the last "
            "good checkpoint is kept. Lower lr, clip the gradient, or warm up."
        )
    about = {
        "format": FORMAT,
        "phase": state.phase,
        "consumed": state.consumed,
        "steps": state.steps,
        "rows": state.rows,
        "notes": state.notes,
        "runs": state.ensemble.runs,
        "layout": state.ensemble.layout.to_dict(),
        "optimizer": _plain_state(state),
        "precision": job.fabric.strategy.precision.state_dict(),
        "settings": settings(job),
    }
    folder = folder_of(job.folder)
    try:
        path = write_tensors(folder, f"{state.consumed:010d}", tensors, about)
    except OSError as error:
        raise StoreError(
            f"cannot write a checkpoint to {folder}: {error}. The one before is kept; make room and resume."
        ) from error
    for old in _files(job.folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def newest(run: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]] | None:
    """The newest whole checkpoint of a run: its path, its record and its tensors. None if there is none."""
    for path in reversed(_files(run)):
        if "-" not in path.stem:
            raise StoreError(
                f"the checkpoint {path} was written by an earlier version of covey, whose runs this one cannot go on "
                "with: resume it with that version, or start again in another folder."
            )
        try:
            about, tensors = read_tensors(path)
        except StoreError as error:
            _log.warning("checkpoint %s is damaged and not used: %s", path, error)
            continue
        if about.get("format") != FORMAT:
            raise StoreError(f"{path} has format {about.get('format')!r}; this covey reads format {FORMAT}.")
        return path, about, tensors
    return None


def restore(job: Job, state: State, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Put a checkpoint into a state whose ensemble and optimiser are those of its phase."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "kept": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(":")
        parts[kind][rest] = tensor.to(job.fabric.device)
    state.ensemble.load_state_dict(parts["model"])
    state.ensemble.runs = dict(about["runs"])
    stored: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in about["optimizer"].items()}
    for name, tensor in parts["optimizer"].items():
        place, _, key = name.partition(":")
        stored.setdefault(int(place), {})[key] = tensor
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    state.optimizer.state.clear()
    for index, values in stored.items():
        state.optimizer.state[parameters[index]] = values
    state.consumed, state.steps = about["consumed"], about["steps"]
    state.rows, state.notes, state.kept = about["rows"], about["notes"], parts["kept"]
    job.fabric.strategy.precision.load_state_dict(about["precision"])


def settings(job: Job) -> dict[str, Any]:
    """What a resumed run must have in common with the one before, as JSON holds it."""
    recipe = asdict(job.recipe)
    recipe.pop("checkpoint")
    record = {key: job.data.record.get(key) for key in ("source", "indices_sha256")}
    found = {"recipe": recipe, "method": job.way, "data": record}
    return json.loads(json.dumps(found, default=str))


def check_settings(path: Path, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with other settings than those of the checkpoint."""
    for part in now:
        if stored.get(part) != now[part]:
            raise StoreError(
                f"{path} was written with other settings: {_difference(part, stored.get(part), now[part])}. Resume "
                "with the same, or start in another folder."
            )


def _difference(where: str, stored: Any, now: Any) -> str:
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in now | stored:
            if stored.get(key) != now.get(key):
                return _difference(f"{where}.{key}", stored.get(key), now.get(key))
    return f"{where} was {stored!r} and is {now!r}"


def _files(run: Path) -> list[Path]:
    return sorted(folder_of(run).glob("*.safetensors"))


def _tensors(state: State) -> dict[str, Tensor]:
    found = {f"model:{name}": tensor for name, tensor in state.ensemble.state_dict().items()}
    for index, values in enumerate(_optimizer_states(state)):
        found |= {f"optimizer:{index}:{key}": v for key, v in values.items() if isinstance(v, Tensor)}
    found |= {f"kept:{name}": tensor for name, tensor in state.kept.items()}
    return found


def _plain_state(state: State) -> dict[str, dict[str, Any]]:
    """What the optimiser remembers besides tensors."""
    return {
        str(index): {key: value for key, value in values.items() if not isinstance(value, Tensor)}
        for index, values in enumerate(_optimizer_states(state))
        if values
    }


def _optimizer_states(state: State) -> list[dict[str, Any]]:
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    return [state.optimizer.state.get(p, {}) for p in parameters]
