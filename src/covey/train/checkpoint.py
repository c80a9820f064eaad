"""Checkpoints: one safetensors file each, written in one step, with everything a run needs to go on.

Random numbers need no storing: data order, augmentation and whatever the network draws are functions of the seed and of
the minibatches consumed.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey import layout
from covey.errors import CoveyError, StoreError, TrainingError, reason
from covey.files import whole
from covey.schema import Both, Either, Many, Maybe, Named, Number, Plain, Record, Truth, Whole, Word, check
from covey.tensor_files import listing, read_tensors, write_tensors
from covey.train import same_run
from covey.train.state import Job, State
from covey.ways import WAYS

FORMAT = 2
_RUN = Word(("auto", *WAYS))
SPEC = Record(
    {
        "phase": Whole(),
        "consumed": Whole(),
        "steps": Whole(),
        "rows": Many(Named()),
        "notes": Both(
            (Named(Either((Word(), Number()))), Record(optional={"waited": Whole(), "best": Number()}))
        ),
        "runs": Record({"train": _RUN, "eval": _RUN}),
        "layout": layout.SPEC,
        "optimizer": Named(Named()),
        "precision": Named(),
        "settings": Record({"recipe": Named(), "method": Plain(), "data": Plain()}),
    },
    optional={
        "tensors": Named(Many(least=2, most=2)),
        "measured": Named(Many(Many(Whole(), most=3))),
        "groups": Many(Named(Maybe(Either((Word(), Number(), Truth(), Many(Number())))))),
    },
)
"""What the record of a checkpoint looks like."""

_ADAM = {"step", "exp_avg", "exp_avg_sq"}
_MOMENTS = {"sgd": {"momentum_buffer"}, "adam": _ADAM, "adamw": _ADAM}  # Lamb's are timm's affair
KEPT = 2  # the newest, and one more in case a disk damages it
_log = logging.getLogger("covey")


def folder_of(run: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run / "checkpoints"


def begun(run: Path) -> bool:
    """Whether a folder holds a run: a checkpoint, or the ensemble that one ended with."""
    return bool(_files(run)) or (run / "ensemble").exists()


def names(run: Path) -> list[str]:
    """The checkpoints of a run, the newest last."""
    return [path.name for path in _files(run)]


def prepare_folder(run: Path, *, resume: bool) -> None:
    """Make the run's folder, and find out before the first epoch whether it can be used."""
    try:
        folder_of(run).mkdir(parents=True, exist_ok=True)
        with whole(run / ".writable") as path:
            path.write_bytes(b"covey")
        (run / ".writable").unlink()
    except OSError as error:
        raise StoreError(f"cannot write to {run}: {reason(error)}. Choose another folder.") from error
    found = _files(run)
    if found and not resume:
        raise StoreError(
            f"{run} holds a run already, whose newest checkpoint is {found[-1].name}. Go on with it by resuming "
            "(resume=True), replace it (--overwrite), or choose another folder."
        )
    if not resume and (run / "ensemble").exists():
        raise StoreError(
            f"{run} holds the ensemble of a finished run, which a new one would replace (--overwrite). Choose another "
            "folder, or remove this one."
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
        "measured": state.ensemble.measured,
        "layout": state.ensemble.layout.to_dict(),
        "optimizer": _plain_state(state),
        "precision": job.fabric.strategy.precision.state_dict(),
        "settings": same_run.settings(job),
        "tensors": listing(tensors),
    }
    if job.optimizer is not None:
        about["groups"] = [_plain_group(group) for group in state.optimizer.param_groups]
    folder = folder_of(job.folder)
    try:
        path = write_tensors(folder, f"{state.consumed:010d}", tensors, about)
    except OSError as error:
        raise StoreError(
            f"cannot write a checkpoint to {folder}: {error}. The one before is kept; make room and resume."
        ) from error
    for old in _files(job.folder)[:-KEPT]:
        if not old.is_dir() or old.is_symlink():  # a folder of that name is none of ours
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
        check(about, SPEC, path)
        if about.get("tensors", listing(tensors)) != listing(tensors):
            raise StoreError(
                f"{path} holds other tensors than its record says. It was changed after it was written."
            )
        return path, about, tensors
    return None


def check_place(path: Path, about: dict[str, Any], job: Job) -> None:
    """Refuse a checkpoint of a moment that the run does not have."""
    last = job.recipe.epochs * job.stream.per_epoch
    if about["phase"] >= len(job.phases) or about["consumed"] > last:
        raise StoreError(
            f"{path} says phase {about['phase']} after {about['consumed']} minibatches, and the run has "
            f"{len(job.phases)} phases and {last} minibatches. It was changed after it was written."
        )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a checkpoint is put into place is laid to the checkpoint."""
    try:
        yield
    except Exception as error:
        what = str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {error}"
        raise StoreError(f"{path} does not fit this run: {what}") from error


@contextlib.contextmanager
def going_on(path: Path | None, job: Job) -> Iterator[None]:
    """Whatever goes wrong in a run that was resumed may be the checkpoint's fault, and the error says so.

    What ways of training keep in a checkpoint only they know, so that a schema cannot check it.
    """
    try:
        yield
    except (CoveyError, OSError):
        raise
    except Exception as error:
        if (
            path is None or job.fabric.world_size > 1
        ):  # another process may have ended, which is said elsewhere
            raise
        raise TrainingError(
            f"the run that was resumed from {path} failed: {type(error).__name__}: {error}. The checkpoint was changed "
            "after it was written; or the run fails from its start too, which starting it in another folder tells."
        ) from error


def restore(job: Job, state: State, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Put a checkpoint into a state whose ensemble and optimiser are those of its phase, if it fits them."""
    parts = _sorted(tensors, job.fabric.device)
    _check_model(state.ensemble.state_dict(), parts["model"])
    state.ensemble.load_state_dict(parts["model"])
    state.ensemble.runs = dict(about["runs"])
    state.ensemble.measured = dict(about.get("measured", {}))
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    state.optimizer.state.clear()
    kind = None if job.optimizer is not None else job.recipe.optimizer
    stored = _optimizer_state(about["optimizer"], parts["optimizer"], parameters, kind)
    for index, values in stored.items():
        state.optimizer.state[parameters[index]] = values
    for group, values in zip(state.optimizer.param_groups, about.get("groups", ()), strict=False):
        group |= values
    state.consumed, state.steps = about["consumed"], about["steps"]
    state.rows, state.notes, state.kept = about["rows"], about["notes"], parts["kept"]
    job.fabric.strategy.precision.load_state_dict(about["precision"])


def _sorted(tensors: dict[str, Tensor], device: torch.device) -> dict[str, dict[str, Tensor]]:
    """A checkpoint's tensors by what they belong to."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "kept": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(":")
        if kind not in parts:
            raise StoreError(f"the checkpoint holds a tensor {name!r}, which belongs to nothing.")
        parts[kind][rest] = tensor.to(device)
    return parts


def _check_model(ours: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    for name in [*ours, *stored]:
        wanted, found = (_described(tensors.get(name)) for tensors in (ours, stored))
        if wanted != found:
            raise StoreError(f"the checkpoint does not fit: {name!r} should be {wanted} and is {found}.")


def _optimizer_state(
    plain: dict[str, dict[str, Any]], tensors: dict[str, Tensor], parameters: list[Tensor], kind: str | None
) -> dict[int, dict[str, Any]]:
    """What the optimiser remembers of each parameter, by the parameter's number."""
    places = {str(index): index for index in range(len(parameters))}
    found: dict[int, dict[str, Any]] = {}
    for place, values in plain.items():
        found[_placed(place, places)] = dict(values)
    for name, tensor in tensors.items():
        place, _, key = name.partition(":")
        found.setdefault(_placed(place, places), {})[key] = tensor
    for index, values in found.items():
        if kind is not None:  # what an optimiser of the user's own remembers, only it knows
            _check_moments(index, values, parameters[index], kind)
    return found


def _placed(place: str, places: dict[str, int]) -> int:
    if place not in places:
        raise StoreError(f"its optimiser remembers a parameter {place!r}, which there is not.")
    return places[place]


def _check_moments(index: int, values: dict[str, Any], parameter: Tensor, kind: str) -> None:
    """Refuse what an optimiser would stumble over: moments that are missing or have another shape."""
    known = _MOMENTS.get(kind)
    if known is not None and values and set(values) != known:
        raise StoreError(
            f"its optimiser remembers {sorted(values)} of parameter {index}, not {sorted(known)}."
        )
    for key, value in values.items():
        wanted = torch.Size() if key == "step" else parameter.shape
        if isinstance(value, Tensor) and value.shape != wanted:
            raise StoreError(
                f"its optimiser remembers {key!r} of parameter {index} with shape {tuple(value.shape)}, not "
                f"{tuple(wanted)}."
            )
        if not isinstance(value, Tensor) and known is not None and value is not None:
            raise StoreError(
                f"its optimiser remembers {key!r} of parameter {index} as {value!r}, not as a tensor."
            )


def _described(tensor: Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    """What an optimiser keeps of a group besides its parameters, as JSON holds it."""
    plain = (str, int, float, bool, type(None), tuple, list)
    odd = [key for key, value in group.items() if key != "params" and not isinstance(value, plain)]
    if odd:
        raise StoreError(
            f"the optimiser keeps {odd[0]!r} as {type(group[odd[0]]).__name__} in its groups, which a "
            "checkpoint cannot hold. Train without a folder, or choose another optimiser."
        )
    return {key: value for key, value in group.items() if key != "params"}


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
