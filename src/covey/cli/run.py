"""One run from its settings: data, network, training, evaluation, and what is written of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from covey.cli.memory import keep_freed_memory
from covey.cli.settings import Network, Settings
from covey.collapsing import collapse
from covey.data import Data
from covey.data.inputs import RECORD, check_record
from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.files import write_text
from covey.locks import locked
from covey.report import Run
from covey.schema import Maybe, Named, Number, Record, Word, check, parse_json, read_json, read_text
from covey.scores import Cost, Evaluation, evaluate, stored
from covey.scores import cost as costs
from covey.store import load
from covey.train import History, checkpoint, fit
from covey.zoo import from_file

_log = logging.getLogger("covey")
SETTINGS, COST, COLLAPSED = "settings.json", "cost.json", "collapsed.json"
STATISTICS_BATCHES = 20  # of 512 training samples, to estimate norms' statistics of an averaged network anew
_BESIDE = ("record", "seconds", "ended", "code")  # what settings.json holds besides the settings
_PARTS = ("options", "dataset", "network", "recipe", "machine")
SPEC = Record(
    {
        "method": Word(),
        **dict.fromkeys(_PARTS, Named()),  # their dataclasses check what is in them
        "record": RECORD,
        "seconds": Maybe(Number(0)),
        "ended": Word(),
    },
    optional={"code": Named(Word())},  # SHA-256 of Python files that networks came from
)
"""What settings.json looks like."""


def train(settings: Settings, folder: Path, *, resume: bool) -> tuple[History, Data]:
    """Train, and write settings, history, checkpoints and the ensemble to the folder."""
    keep_freed_memory()
    data = settings.dataset.load()
    recipe = settings.recipe
    network = settings.network.build(data, loss=recipe.loss, seed=recipe.seed)
    code = {name: from_file.digest(name) for name in settings.network.code}
    described = {**settings.to_dict(), "record": data.record, **({"code": code} if code else {})}
    with writing(folder), _begun(folder, {**described, "seconds": None, "ended": "not finished"}):
        started = time.perf_counter()
        history = fit(
            network,
            data,
            recipe,
            method=settings.options,
            folder=folder,
            machine=settings.machine,
            resume=resume,
        )
        seconds = round(time.perf_counter() - started, 1)
        if leads():
            _write(folder, {**described, "seconds": seconds, "ended": history.ended})
    return history, data


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Nobody else writes into the run's folder meanwhile; the first of several processes sees to that."""
    with locked(folder) if leads() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _begun(folder: Path, record: dict[str, Any]) -> Iterator[None]:
    """Settings are there from the start, so that a run that is killed can be shown; none are left of one that failed
    before its first checkpoint."""
    if not leads() or checkpoint.begun(folder):
        yield
        return
    _write(folder, record)
    try:
        yield
    except BaseException:
        if not checkpoint.begun(folder):
            (folder / SETTINGS).unlink(missing_ok=True)
        raise


def _write(folder: Path, record: dict[str, Any]) -> None:
    write_text(folder / SETTINGS, json.dumps(record, indent=1) + "\n")


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
    path = folder / "history.jsonl"
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        row = parse_json(line, f"{path}, line {number}")
        check(row, stored.HISTORY, f"{path}, line {number}")
        rows.append(row)
    return rows


def existing(folder: str) -> Path:
    """The folder of a run, if it is there."""
    if not Path(folder).is_dir():
        raise StoreError(f"{folder} is no finished run of `covey train`: there is no such folder.")
    return Path(folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """What `train` wrote of a run."""
    path = folder / SETTINGS
    if not os.path.lexists(path):
        raise StoreError(f"{folder} is no finished run of `covey train`: it has no {SETTINGS}.")
    found = read_json(path, SPEC)
    check_record(found["record"], str(path))
    return found


def settings_of(stored: dict[str, Any]) -> Settings:
    """The settings out of what `train` wrote."""
    return Settings.from_dict({k: v for k, v in stored.items() if k not in _BESIDE})


def read_ensemble(folder: Path, code: str | None = None) -> Ensemble:
    """The trained ensemble of a run.

    Args:
        folder: of the run.
        code: the network as FILE.py:FUNCTION, which is run, for a run whose network was one. What is stored in the
            folder never is: somebody else may have written it.
    """
    stored = read_settings(folder)
    network = settings_of(stored).network
    if code is None:
        _check_no_code(folder, network)
        return load(folder / "ensemble").eval()
    named = replace(network, network=code).absolute()
    if not named.code:
        raise OptionError(
            f"--network names the Python file of a run's network again, as FILE.py:FUNCTION; got {code!r}."
        )
    if not network.code:
        raise OptionError(
            f"the network of {folder} is {network.network}, no Python file; leave --network out."
        )
    for name in named.code:
        if from_file.digest(name) not in stored.get("code", {}).values():
            _log.warning("%s was changed since %s was trained with it", name, folder)
    made = named.made(stored["record"], loss=stored["recipe"].get("loss", "auto"))
    return load(folder / "ensemble", made[0] if len(made) == 1 else made).eval()


def _check_no_code(folder: Path, network: Network) -> None:
    if network.code:
        raise OptionError(
            f"the network of {folder} is made by {network.network}. That is code, and only run if you name it again: "
            f"--network {network.network}"
        )


def check_same_data(data: Data, record: Mapping[str, Any], folder: Path) -> None:
    """Refuse to score a run on other data than it was trained on."""
    now = {"task": data.task, "shape": list(data.shape), "classes": list(data.classes)}
    for name, value in now.items():
        if record[name] != value:
            raise StoreError(
                f"{folder} was trained on data with {name} {_short(record[name])}, and {SETTINGS} leads to data with "
                f"{name} {_short(value)}: the data are others now, or {SETTINGS} was changed."
            )


def _short(value: Any) -> str:
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
