"""One run from its settings: data, network, training, evaluation, and what is written of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from covey.cli.memory import keep_freed_memory
from covey.cli.overwrite import replacing
from covey.cli.reading import HISTORY, SETTINGS, read_history, read_settings
from covey.cli.settings import Settings
from covey.cli.spoken import with_flags
from covey.collapsing import collapse
from covey.data import Data
from covey.ensemble import Ensemble
from covey.errors import EvaluationError, StoreError
from covey.files import write_text
from covey.locks import locked
from covey.report import Run
from covey.report.members import clusters_by_depth
from covey.schema import read_json, read_text
from covey.scores import Cost, Evaluation, Measured, Record, evaluate, stored
from covey.scores import cost as costs
from covey.scores.subsets import of_record
from covey.train import History, checkpoint, fit
from covey.zoo import from_file

_log = logging.getLogger("covey")
SCORES, OUTPUTS = "evaluation.json", "outputs.npz"
COST, COLLAPSED, SUBSETS = "cost.json", "collapsed.json", "subsets.json"
SUBSETS_BATCH = 64  # samples in the batch that subsets of members are timed on
STATISTICS_BATCHES = 20  # of 512 training samples, to estimate norms' statistics of an averaged network anew


@dataclass(frozen=True)
class Lesson:
    """What a student learns from a teacher.

    Args:
        learn: does what `covey.fit` does, with the teacher's answers.
        check: refuses data that the teacher cannot answer.
        described: the teacher, and how it teaches, as settings.json holds it.
    """

    learn: Callable[..., History]
    check: Callable[[Data], None]
    described: dict[str, Any]


def train(
    settings: Settings,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool = False,
    longer: bool = False,
    lesson: Lesson | None = None,
) -> tuple[History, Data]:
    """Train, and write settings, history, checkpoints and the ensemble to the folder.

    Args:
        settings: of the run.
        folder: of the run.
        resume: go on from the newest whole checkpoint in the folder, if there is one.
        overwrite: replace a run that is in the folder.
        longer: whether a run that is resumed may get more epochs, which not every schedule takes as a longer run would.
        lesson: what is learnt instead of the data's own answers, if a teacher gives others.
    """
    keep_freed_memory()
    if resume and not longer:
        _check_same_length(folder, settings)
    if resume:
        _check_same_lesson(folder, lesson)
    data = settings.dataset.load()
    if resume:
        _check_same_images(folder, data)
    recipe = settings.recipe
    network = settings.network.build(data, recipe)
    code = {name: from_file.digest(name) for name in settings.network.code}
    described = {**settings.to_dict(), "record": data.record, **({"code": code} if code else {})}
    if lesson is not None:
        lesson.check(data)
        described["lesson"] = lesson.described
    begun = {**described, "seconds": None, "ended": "not finished"}
    before = _seconds_before(folder) if resume else 0.0
    with writing(folder), _replacing(folder, overwrite), _begun(folder, begun):
        ensemble_before = _stored(folder)
        started = time.perf_counter()
        learn = fit if lesson is None else lesson.learn
        history = learn(
            network,
            data,
            recipe,
            method=settings.options,
            folder=folder,
            machine=settings.machine,
            resume=resume,
        )
        seconds = round(before + time.perf_counter() - started, 1)
        if leads():
            if _stored(folder) != ensemble_before:
                _drop_scores(folder)
            _write(folder, {**described, "seconds": seconds, "ended": history.ended})
    return history, data


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Nobody else writes into the run's folder meanwhile; the first of several processes sees to that."""
    with locked(folder) if leads() else contextlib.nullcontext():
        yield


def _replacing(folder: Path, overwrite: bool) -> contextlib.AbstractContextManager[None]:
    return replacing(folder) if overwrite and leads() else contextlib.nullcontext()


@contextlib.contextmanager
def _begun(folder: Path, begun: dict[str, Any]) -> Iterator[None]:
    """Settings are there from the start, so that a run that is killed can be shown and resumed; those from before come
    back if it fails before its next checkpoint."""
    if not leads():
        yield
        return
    path = folder / SETTINGS
    old = read_text(path) if os.path.lexists(path) else None
    checkpoints = checkpoint.names(folder)
    _write(folder, begun)
    try:
        yield
    except BaseException:
        if checkpoint.names(folder) == checkpoints:
            path.unlink(missing_ok=True) if old is None else write_text(path, old)
        raise


def _stored(folder: Path) -> str | None:
    """What the ensemble in a run's folder is, its weights by their checksum; None if there is none."""
    path = folder / "ensemble" / "config.json"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _drop_scores(folder: Path) -> None:
    """Remove scores and cost of an ensemble that another one took the place of."""
    for name in (SCORES, OUTPUTS, COST, COLLAPSED, SUBSETS):
        (folder / name).unlink(missing_ok=True)


def _check_same_length(folder: Path, settings: Settings) -> None:
    if not os.path.lexists(folder / SETTINGS):
        return
    before, now = read_settings(folder)["recipe"].get("epochs"), settings.recipe.epochs
    if before is not None and before != now:
        raise StoreError(
            f"{folder} holds a run with other settings: epochs was {before} and is {now}. Remove it, or choose another "
            "folder."
        )


def _check_same_lesson(folder: Path, lesson: Lesson | None) -> None:
    """Refuse to go on with a run that learnt something else."""
    if not os.path.lexists(folder / SETTINGS):
        return
    before, now = read_settings(folder).get("lesson"), None if lesson is None else lesson.described
    if before != now:
        raise StoreError(
            f"{folder} learnt from {_lesson_in_words(before)}, and would go on with {_lesson_in_words(now)}. Go on "
            "with the command that began it, or choose another folder."
        )


def _check_same_images(folder: Path, data: Data) -> None:
    """Refuse to go on with images that are normalised otherwise than they were."""
    if not os.path.lexists(folder / SETTINGS):
        return
    before, now = read_settings(folder)["record"]["normalisation"], data.record["normalisation"]
    if before is not None and before != now:
        told = {name: " ".join(map(str, before[name])) for name in ("mean", "std")}
        raise StoreError(
            f"{folder} was trained on images normalised otherwise. Go on with --image-mean {told['mean']} --image-std "
            f"{told['std']}, or choose another folder."
        )


def _lesson_in_words(lesson: Mapping[str, Any] | None) -> str:
    if lesson is None:
        return "the data's own answers"
    return f"{lesson['teacher']} (temperature {lesson['temperature']:g}, truth {lesson['truth']:g})"


def _seconds_before(folder: Path) -> float:
    """What a run has taken so far: until its end, or until the last epoch of each time that it was started."""
    if not os.path.lexists(folder / SETTINGS):
        return 0.0
    found = read_settings(folder)["seconds"]
    if found is not None or not (folder / HISTORY).exists():
        return float(found or 0.0)
    clocks = [row["seconds"] for row in read_history(folder)]
    stops = [now for now, then in zip(clocks, [*clocks[1:], 0.0], strict=True) if then < now]
    return float(sum(stops))


def _write(folder: Path, found: dict[str, Any]) -> None:
    write_text(folder / SETTINGS, json.dumps(found, indent=1) + "\n")


def leads() -> bool:
    """Whether this is the first, or the only, process of a run."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def score(
    folder: Path,
    ensemble: Ensemble,
    data: Data,
    *,
    corruptions: int = 0,
    corrupted: str | None = None,
) -> Evaluation:
    """Evaluate on the test data, and write scores and outputs to the folder."""
    return evaluate(ensemble, data, corruptions=corruptions, corrupted=corrupted, folder=folder)


def is_scored(folder: Path, *, corruptions: int = 0) -> bool:
    """Whether a run's scores are there, and as many corrupted images among them as are asked for."""
    if not (folder / SCORES).exists():
        return False
    try:
        found = Evaluation.load(folder, outputs=False)
    except EvaluationError:
        return False  # it is written anew
    return not corruptions or found.scores.get("robustness", {}).get("samples") == min(
        corruptions, found.about["samples"]
    )


def score_collapsed(folder: Path, ensemble: Ensemble, data: Data) -> None:
    """Score every way of averaging the members' weights into one network, and write the scores to the folder.

    One member is one network already, and has none.
    """
    scores: dict[str, Any] = {}
    if ensemble.members == 1:
        write_text(folder / COLLAPSED, json.dumps(scores))
        return
    norms: Literal["exact", "mean"]
    for norms in ("exact", "mean"):
        scores[norms] = evaluate(collapse(ensemble, norms=norms), data).scores["ensemble"]
    train = data.train.inputs[: STATISTICS_BATCHES * 512].split(512)
    refreshed = collapse(ensemble, norms="mean", inputs=[data.prepare(part) for part in train])
    scores["mean, new statistics"] = evaluate(refreshed, data).scores["ensemble"]
    write_text(folder / COLLAPSED, json.dumps(scores))


def score_subsets(folder: Path, ensemble: Ensemble, data: Data) -> None:
    """Score every subset of the members by the outputs that `score` kept, time it, and write that to the folder.

    The clusters of layers that share templates stand in the same file, where the method has any.
    """
    record = Record.load(folder / OUTPUTS)
    inputs, _ = next(data.test.in_order(SUBSETS_BATCH))
    found = of_record(ensemble, record, data.prepare(inputs)).to_dict()
    if "clusters" in ensemble.layout.facts:
        found["clusters"] = clusters_by_depth(ensemble)
    write_text(folder / SUBSETS, json.dumps(found))


def measure_cost(folder: Path, ensemble: Ensemble, data: Data, place: Path | None = None) -> None:
    """Measure what the ensemble of a run costs here, and write it to its folder, or to another place."""
    example = data.prepare(data.test.inputs[:32])
    seconds = read_settings(folder)["seconds"]
    cost = costs.measure_cost(ensemble, example, repeats=5, warmup=1, training_seconds=seconds)
    write_text((place or folder) / COST, json.dumps(cost.to_dict()))


def result(folder: Path, label: str, repeat: int, place: Path | None = None) -> Run:
    """A trained, scored and measured run as the report takes it; scores and cost may lie in another place."""
    subsets = read_subsets(folder)
    own = place in (None, folder)  # subsets were scored on the run's own test data
    return Run(
        method=label,
        seed=repeat,
        evaluation=Evaluation.load(place or folder),
        cost=Cost.from_dict(read_json((place or folder) / COST, stored.COST)),
        history=read_history(folder),
        settings=read_settings(folder),
        subsets=Measured.from_dict(subsets) if subsets and own else None,
        clusters=subsets.get("clusters", ()),
    )


def read_subsets(folder: Path) -> Mapping[str, Any]:
    """What `score_subsets` wrote; nothing if it was not asked for."""
    path = folder / SUBSETS
    return read_json(path, stored.SUBSETS) if path.exists() else {}


def headline(evaluation: Evaluation) -> str:
    """The scores that a reader wants first, in lines."""
    ensemble, members = evaluation.scores["ensemble"], evaluation.scores.get("member_mean", {})
    shown: dict[str, tuple[float, float | None]] = {}
    for name, value in ensemble.items():
        if isinstance(value, float | int):
            shown[name] = (value, members.get(name))
    for name, value in evaluation.headline.items():
        if name not in ensemble and value is not None and name in HEADLINE:
            shown[name] = (value, None)
    width = max(14, *map(len, shown))
    lines = []
    for name, (value, own) in shown.items():
        beside = "" if own is None else f"   members' mean {own:.4f}"
        lines.append(f"  {name:{width}} {value:.4f}{beside}")
    return "\n".join(lines)


HEADLINE = ("auroc", "fpr95", "disagreement", "mean_corruption_error")
"""What `headline` shows besides the scores of the answers themselves."""


def told(evaluation: Evaluation) -> list[str]:
    """The notes of an evaluation, in lines."""
    return [f"  note: {note}" for note in evaluation.notes]


def data_notes(data: Data) -> list[str]:
    """What was found out about the data, such as which task a table is for, in lines."""
    return [f"note on the data: {with_flags(note)}" for note in data.record["notes"]]


def usual_folder(settings: Settings) -> Path:
    """Where a run goes if nobody says: runs/method-network-data-seed."""
    network = re.sub(r"[^\w.+-]+", "-", Path(settings.network.network or "network").name)
    data = Path(settings.dataset.data).stem
    return Path("runs") / f"{settings.method}-{network}-{data}-{settings.recipe.seed}"
