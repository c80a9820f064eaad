"""What is stored of a run: its settings, its history, its ensemble, and the network and data that these name."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from covey.cli.settings import Network, Settings
from covey.data import Data
from covey.data.inputs import RECORD, check_record
from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.networks.layers import origin_of
from covey.quantiles import KIND, kind_of
from covey.schema import Both, Maybe, Named, Number, Record, Word, check, parse_json, read_json, read_text
from covey.scores import stored
from covey.store import load, needs_network
from covey.train import record
from covey.zoo import from_file, names

_log = logging.getLogger("covey")
SETTINGS, HISTORY = "settings.json", "history.jsonl"
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
    if not os.path.lexists(folder):
        return "there is no such folder"
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
