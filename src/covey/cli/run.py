"""One run from its settings: data, network, training, evaluation, and what is written of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from covey.cli.memory import keep_freed_memory
from covey.cli.overwrite import replacing
from covey.cli.settings import Network, Settings
from covey.collapsing import collapse
from covey.data import Data
from covey.data.inputs import RECORD, check_record
from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.files import write_text
from covey.locks import locked
from covey.networks.layers import origin_of
from covey.quantiles import KIND, kind_of
from covey.report import Run
from covey.schema import Both, Maybe, Named, Number, Record, Word, check, parse_json, read_json, read_text
from covey.scores import Cost, Evaluation, evaluate, stored
from covey.scores import cost as costs
from covey.store import load, needs_network
from covey.train import History, checkpoint, fit, record
from covey.zoo import from_file, names

_log = logging.getLogger("covey")
SETTINGS, COST, COLLAPSED, HISTORY = "settings.json", "cost.json", "collapsed.json", "history.jsonl"
STATISTICS_BATCHES = 20  # of 512 training samples, to estimate norms' statistics of an averaged network anew
BY_FIT = "by_fit"  # marks what covey.fit wrote, of data and a network that only the user knows
_BESIDE = (
    "record",
    "seconds",
    "ended",
    "code",
    "lesson",
    BY_FIT,
)  # what settings.json holds besides the settings
_PARTS = ("options", "dataset", "network", "recipe", "machine")
SPEC = Record(
    {
        "method": Word(),
        **dict.fromkeys(_PARTS, Named()),  # their dataclasses check what is in them
        "record": RECORD,
        "seconds": Maybe(Number(0)),
        "ended": Word(),
    },
    optional={
        "code": Named(Word()),  # SHA-256 of Python files that networks came from
        "lesson": Record({"teacher": Word(), "temperature": Number(0), "truth": Number(0, 1)}),
    },
)
"""What settings.json looks like."""

_FIT_KEYS = ("method", "options", "recipe", "seconds", "ended")
FIT_SPEC = Record(
    {**{key: SPEC.keys[key] for key in _FIT_KEYS}, "record": Both((RECORD, Record({"source": Word()})))}
)
"""What fit.json looks like."""


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
    for name in ("evaluation.json", "outputs.npz", COST, COLLAPSED):
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
    folder: Path, ensemble: Ensemble, data: Data, *, limit: int | None = None, corruptions: int = 0
) -> Evaluation:
    """Evaluate on the test data, and write scores and outputs to the folder."""
    return evaluate(ensemble, data, limit=limit, corruptions=corruptions, folder=folder)


def score_collapsed(folder: Path, ensemble: Ensemble, data: Data) -> None:
    """Score every way of averaging the members' weights into one network, and write the scores to the folder."""
    scores: dict[str, Any] = {}
    norms: Literal["exact", "mean"]
    for norms in ("exact", "mean"):
        scores[norms] = evaluate(collapse(ensemble, norms=norms), data).scores["ensemble"]
    train = data.train.inputs[: STATISTICS_BATCHES * 512].split(512)
    refreshed = collapse(ensemble, norms="mean", inputs=[data.prepare(part) for part in train])
    scores["mean, new statistics"] = evaluate(refreshed, data).scores["ensemble"]
    write_text(folder / COLLAPSED, json.dumps(scores))


def measure_cost(folder: Path, ensemble: Ensemble, data: Data, place: Path | None = None) -> None:
    """Measure what the ensemble of a run costs here, and write it to its folder, or to another place."""
    example = data.prepare(data.test.inputs[:32])
    seconds = read_settings(folder)["seconds"]
    cost = costs.measure_cost(ensemble, example, repeats=5, warmup=1, training_seconds=seconds)
    write_text((place or folder) / COST, json.dumps(cost.to_dict()))


def result(folder: Path, label: str, repeat: int, place: Path | None = None) -> Run:
    """A trained, scored and measured run as the report takes it; scores and cost may lie in another place."""
    return Run(
        method=label,
        seed=repeat,
        evaluation=Evaluation.load(place or folder),
        cost=Cost.from_dict(read_json((place or folder) / COST, stored.COST)),
        history=read_history(folder),
        settings=read_settings(folder),
    )


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run, one record each."""
    path = folder / HISTORY
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        row = parse_json(line, f"{path}, line {number}")
        check(row, stored.HISTORY, f"{path}, line {number}")
        rows.append(row)
    return rows


def existing(folder: str) -> Path:
    """The folder of a run, if it is there."""
    if not Path(folder).is_dir():
        why = "it is a file" if Path(folder).exists() else "there is no such folder"
        raise StoreError(f"{folder} is no finished run of `covey train`: {why}.")
    return Path(folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """What `train` wrote of a run."""
    path = folder / SETTINGS
    if not os.path.lexists(path) and os.path.lexists(folder / record.FILE):
        return _read_fit(folder / record.FILE)
    if not os.path.lexists(path):
        raise StoreError(f"{folder} is no finished run of `covey train`: {_no_run(folder)}.")
    found = read_json(path, SPEC)
    check_record(found["record"], str(path))
    return found


def _no_run(folder: Path) -> str:
    """Why a path is no run, and which one was meant if it lies in one."""
    if (folder.parent / SETTINGS).is_file():
        return f"it lies in one, {folder.parent}"
    return f"it has no {SETTINGS}" if folder.is_dir() else "it is a file; the folder of a run comes first"


def _read_fit(path: Path) -> dict[str, Any]:
    """What `covey.fit` wrote of a run, as if `train` had: data and network are the user's own."""
    found = read_json(path, FIT_SPEC)
    check_record(found["record"], str(path))
    unknown = {"dataset": {"data": found["record"]["source"]}, "network": {}, "machine": {}}
    return {**found, **unknown, BY_FIT: True}


def settings_of(stored: dict[str, Any]) -> Settings:
    """The settings out of what `train` wrote."""
    return Settings.from_dict({k: v for k, v in stored.items() if k not in _BESIDE})


def how_to_resume(folder: Path, stored: Mapping[str, Any]) -> str:
    """What goes on with a run that is not finished."""
    if BY_FIT in stored:
        return "covey.fit(..., resume=True) goes on"
    if "lesson" in stored:
        return "the command that began it goes on, with --resume,"
    return f"`covey train --resume {folder}` goes on"


def read_ensemble(folder: Path, code: str | None = None) -> Ensemble:
    """The trained ensemble of a run.

    Args:
        folder: of the run.
        code: the network as FILE.py:FUNCTION, which is run, for a run whose network was one. What is stored in the
            folder never is: somebody else may have written it.
    """
    stored = read_settings(folder)
    if not (folder / "ensemble").exists():
        raise StoreError(f"{folder} is not finished: {how_to_resume(folder, stored)} with it.")
    network = settings_of(stored).network
    by_fit = stored.get(BY_FIT, False)
    if code is None:
        _check_no_code(folder, network)
        if by_fit and needs_network(folder / "ensemble"):
            raise OptionError(
                f"{folder} was trained by covey.fit with a network of your own: name the function that makes it, "
                "--network FILE.py:FUNCTION, which is run."
            )
        return _checked(load(folder / "ensemble").eval(), stored, folder)
    named = replace(network, network=code).absolute()
    if not named.code:
        raise OptionError(
            f"--network names the Python file of a run's network again, as FILE.py:FUNCTION; got {code!r}."
        )
    if not network.code and not by_fit:
        raise OptionError(
            f"the network of {folder} is {network.network}, no Python file; leave --network out."
        )
    for name in named.code:
        if not by_fit and from_file.digest(name) not in stored.get("code", {}).values():
            _log.warning("%s was changed since %s was trained with it", name, folder)
    made = named.made(stored["record"], settings_of(stored).recipe)
    ensemble = load(folder / "ensemble", made[0] if len(made) == 1 else made)
    return _checked(ensemble.eval(), stored, folder)


def _checked(ensemble: Ensemble, stored: Mapping[str, Any], folder: Path) -> Ensemble:
    """Refuse an ensemble of numbers beside settings of classes, or the other way round: answers would be nonsense."""
    predicts_numbers = kind_of(ensemble.task) in ("regression", "gaussian", KIND)
    if BY_FIT not in stored and predicts_numbers != (stored["record"]["task"] == "regression"):
        raise StoreError(
            f"the files of {folder} do not belong together: its ensemble is one for {ensemble.task}, and its settings "
            f"are of data for {stored['record']['task']}."
        )
    return ensemble


def read_network(folder: Path, ensemble: Ensemble, code: str | None = None) -> nn.Module:
    """The network that the ensemble of a run was made of, with weights of no meaning.

    Args:
        folder: of the run.
        ensemble: of the run.
        code: as in `read_ensemble`.
    """
    stored = read_settings(folder)
    origin = origin_of(ensemble.skeleton())
    if origin is not None:
        return names.rebuild(origin)  # stored with the run, unlike a folder of pretrained weights
    network = settings_of(stored).network
    if code is not None:
        network = replace(network, network=code).absolute()
    return network.made(stored["record"], settings_of(stored).recipe)[0]


def _check_no_code(folder: Path, network: Network) -> None:
    if network.code:
        raise OptionError(
            f"the network of {folder} is made by {network.network}. That is code, and only run if you name it again: "
            f"--network {network.network}"
        )


def read_data(folder: Path) -> Data:
    """The data that a run was trained on."""
    stored = read_settings(folder)
    if BY_FIT in stored:
        raise OptionError(
            f"{folder} was trained by covey.fit, and where its data are is not known: name inputs, --data FILE."
        )
    data = settings_of(stored).dataset.load()
    check_same_data(data, stored["record"], folder)
    return data


def check_same_data(data: Data, before: Mapping[str, Any], folder: Path) -> None:
    """Refuse to score a run on other data than it was trained on."""
    for name in ("task", "shape", "classes"):
        value = data.record[name]
        if before[name] != value:
            raise StoreError(
                f"{folder} was trained on data with {name} {in_short(before[name])}, and {SETTINGS} leads to data with "
                f"{name} {in_short(value)}: the data are others now, or {SETTINGS} was changed."
            )


def in_short(value: Any) -> str:
    """A value in at most 83 characters."""
    text = str(value)
    return text if len(text) <= 80 else text[:80] + "..."


def headline(evaluation: Evaluation) -> str:
    """The scores that a reader wants first, in lines."""
    ensemble, members = evaluation.scores["ensemble"], evaluation.scores.get("member_mean", {})
    lines = []
    for name, value in ensemble.items():
        if isinstance(value, float | int):
            own = members.get(name)
            lines.append(
                f"  {name:14} {value:.4f}" + (f"   members' mean {own:.4f}" if own is not None else "")
            )
    for name, value in evaluation.headline.items():
        if name not in ensemble and value is not None and name in HEADLINE:
            lines.append(f"  {name:14} {value:.4f}")
    return "\n".join(lines)


HEADLINE = ("auroc", "fpr95", "disagreement")
"""What `headline` shows besides the scores of the answers themselves."""


def told(evaluation: Evaluation) -> list[str]:
    """The notes of an evaluation, in lines."""
    return [f"  note: {note}" for note in evaluation.notes]


def usual_folder(settings: Settings) -> Path:
    """Where a run goes if nobody says: runs/method-network-data-seed."""
    network = re.sub(r"[^\w.+-]+", "-", Path(settings.network.network or "network").name)
    data = Path(settings.dataset.data).stem
    return Path("runs") / f"{settings.method}-{network}-{data}-{settings.recipe.seed}"
