"""`covey compare --search`: settings that suit each method, found on validation data before the comparison.

Most differences between methods on small data are untuned learning rates. So every method, the baseline too, is
tried with equally many settings, and with the same draws; the test data are not looked at. One seed's luck is often
larger than what a setting changes. So where the comparison has several seeds, the better half of the settings is tried
with the second, the better half of those with the third, until one is left.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from covey import registry
from covey.cli import reading, run
from covey.cli.flags import UsageError
from covey.cli.planned import OWN_LAST, PlannedRun, apply_settings, said_of
from covey.cli.settings import Settings
from covey.errors import OptionError
from covey.files import write_text
from covey.schema import Maybe, Number, Record, Word, read_json
from covey.scores import evaluate
from covey.train.watch import RISING

TRIAL = "trial.json"
TRIAL_SPEC = Record({"score": Word(), "value": Maybe(Number())})
REACH = 10.0  # how far around the given learning rate to look where no range is given

Way = Callable[[Iterable[PlannedRun]], Iterator[tuple[PlannedRun, str | None]]]


@dataclass(frozen=True)
class Space:
    """One setting to search: numbers between two ends, evenly on a logarithmic scale, or a list of values."""

    name: str
    ends: tuple[float, float] | None = None
    values: tuple[Any, ...] = ()

    def draw(self, count: int, random: random.Random) -> list[Any]:
        """So many values in random order, spread evenly over the space."""
        if self.ends is None:
            drawn = [self.values[k % len(self.values)] for k in range(count)]
        else:
            low, high = (math.log(end) for end in self.ends)
            # one draw in each of `count` equal parts, so that few draws leave no large hole
            shares = [(k + random.random()) / count for k in range(count)]
            drawn = [float(f"{math.exp(low + share * (high - low)):.3g}") for share in shares]
        random.shuffle(drawn)
        return drawn


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and the validation score that each seed led to; None where training failed."""

    settings: Mapping[str, Any]
    values: list[float | None] = field(default_factory=list)

    @property
    def value(self) -> float | None:
        """The mean over the seeds that were tried."""
        done = [value for value in self.values if value is not None]
        return fmean(done) if done and len(done) == len(self.values) else None


def read_spaces(given: Sequence[str], lr: float) -> list[Space]:
    """The spaces that --space describes; without any, the learning rate around the given one.

    >>> read_spaces(["lr=0.01..0.5", "batch=32,64"], lr=0.1)
    [Space(name='lr', ends=(0.01, 0.5), values=()), Space(name='batch', ends=None, values=(32, 64))]
    """
    if not given:
        return [Space("lr", (lr / REACH, lr * REACH))]
    spaces: list[Space] = []
    for text in given:
        name, equals, listed = text.partition("=")
        name = name.replace("-", "_")
        if not equals or not listed:
            raise UsageError(f"--space is written name=low..high or name=value,value; got {text!r}.")
        if name in [space.name for space in spaces]:
            raise UsageError(f"--space names {name} twice.")
        if ".." in listed:
            spaces.append(Space(name, _ends(listed, text)))
        else:
            values = [registry.read_value(value) for value in registry.split_options(listed)]
            spaces.append(Space(name, values=tuple(values)))
    return spaces


def _ends(listed: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in listed.split(".."))
    except ValueError:
        raise UsageError(f"--space: low and high of {text!r} should be two numbers.") from None
    if not 0 < low < high < math.inf:
        raise UsageError(f"--space: {text!r} should have 0 < low < high.")
    return low, high


def candidates(spaces: Sequence[Space], count: int, seed: int) -> list[dict[str, Any]]:
    """What every method is tried with: the settings as they are given (an empty dict), then seeded draws."""
    found: list[dict[str, Any]] = [{}]
    drawn = {}
    for space in spaces:
        drawn[space.name] = space.draw(count - 1, random.Random(f"{seed} {space.name}"))
    for k in range(count - 1):
        found.append({name: values[k] for name, values in drawn.items()})
    return found


def searched(
    planned: Sequence[PlannedRun], folder: Path, *, count: int, space: Sequence[str], way: Way
) -> list[PlannedRun]:
    """The same runs with the settings that did best on validation data, which are printed and kept in search.json."""
    if count < 2:
        raise UsageError(f"--search is how many settings to try, at least 2; got {count}.")
    repeats: dict[str, list[PlannedRun]] = {}
    for one in planned:
        repeats.setdefault(one.label, []).append(one)
    data = planned[0].settings.dataset.load()
    if not len(data.validation):
        raise UsageError(
            "--search chooses by validation data, and there are none; give --validation a share above 0."
        )
    score = score_name(planned[0].settings, data.task)
    spaces = read_spaces(space, planned[0].settings.recipe.lr)
    for runs in repeats.values():
        _check_free(runs[0], spaces)
    found: dict[str, list[Trial]] = {}
    for label, runs in repeats.items():
        given = candidates(spaces, count, runs[0].settings.recipe.seed)
        found[label] = [Trial(settings) for settings in given]
    best = _race(repeats, found, folder / "search", score, way)
    return _chosen(planned, folder, found, best, score, spaces)


def _race(
    repeats: Mapping[str, Sequence[PlannedRun]],
    found: Mapping[str, Sequence[Trial]],
    folder: Path,
    score: str,
    way: Way,
) -> dict[str, Trial]:
    """Try all settings with the first seed, the better half with the second, and so on; returns the best of each."""
    left = {label: list(trials) for label, trials in found.items()}
    for turn in range(max(len(runs) for runs in repeats.values())):
        tries: list[tuple[PlannedRun, Trial]] = []
        for label, trials in left.items():
            if turn < len(repeats[label]) and (turn == 0 or len(trials) > 1):
                tries += [
                    (_planned(repeats[label][turn], found[label].index(t), t, folder), t) for t in trials
                ]
        _do(way, [planned for planned, _ in tries])
        for planned, trial in tries:
            trial.values.append(read_trial(planned.folder))
        left = {label: _better_half(label, trials, score) for label, trials in left.items()}
    return {label: trials[0] for label, trials in left.items()}


def _planned(one: PlannedRun, number: int, trial: Trial, folder: Path) -> PlannedRun:
    """The run that tries these settings with a repetition's seed."""
    with said_of("--space"):
        settings = apply_settings(one.settings, trial.settings, OWN_LAST)
    place = folder / f"{one.folder.name}-{number}"
    label = f"{one.label} repetition {one.repeat} trial {number}"
    return PlannedRun(label, settings, place, one.repeat, trial=True)


def _better_half(label: str, trials: Sequence[Trial], score: str) -> list[Trial]:
    """Best first; those that could not be trained are never among them."""
    done = [trial for trial in trials if trial.value is not None]
    if not done:
        raise OptionError(f"--search: none of the {len(trials)} settings of {label} could be trained.")
    sign = -1 if RISING[score] else 1
    done.sort(key=lambda trial: sign * (trial.value or 0.0))
    return done[: math.ceil(len(trials) / 2)]


def _check_free(one: PlannedRun, spaces: Sequence[Space]) -> None:
    """Refuse to search a setting that the run names itself."""
    for space in spaces:
        if space.name in one.fixed:
            raise UsageError(
                f"{one.label} sets {space.name}, which --search is to choose; leave it out there, or give another "
                "--space."
            )


def _do(way: Way, trials: Sequence[PlannedRun]) -> None:
    for done, (one, error) in enumerate(way(trials), 1):
        print(f"search [{done}/{len(trials)}] {one.label}: {error or 'done'}", flush=True)


def _chosen(
    planned: Sequence[PlannedRun],
    folder: Path,
    found: Mapping[str, Sequence[Trial]],
    best: Mapping[str, Trial],
    score: str,
    spaces: Sequence[Space],
) -> list[PlannedRun]:
    kept = {
        "score": f"validation {score}",
        "methods": {
            label: {
                "chosen": best[label].settings,
                "trials": [{"settings": trial.settings, "values": trial.values} for trial in trials],
            }
            for label, trials in found.items()
        },
    }
    write_text(folder / "search.json", json.dumps(kept, indent=1) + "\n")
    for label, trials in found.items():
        print(_sentence(label, best[label], trials, score, spaces), flush=True)
    return [
        replace(one, settings=apply_settings(one.settings, best[one.label].settings, OWN_LAST))
        for one in planned
    ]


def _sentence(label: str, best: Trial, trials: Sequence[Trial], score: str, spaces: Sequence[Space]) -> str:
    words = ", ".join(f"{name} {value}" for name, value in best.settings.items()) or "the settings as given"
    seeds = f", mean of {len(best.values)} seeds" if len(best.values) > 1 else ""
    text = f"search: {label}: {words} (validation {score} {best.value:.4f}{seeds}, best of {len(trials)})"
    for space in spaces:
        drawn = [trial.settings[space.name] for trial in trials if space.name in trial.settings]
        at_end = (
            best.settings and space.ends is not None and best.settings[space.name] in (min(drawn), max(drawn))
        )
        if at_end:
            text += f"; {space.name} is the {_which(best.settings[space.name], drawn)} tried: --space may be too narrow"
    return text


def _which(value: float, drawn: Sequence[float]) -> str:
    return "smallest" if value == min(drawn) else "largest"


def score_name(settings: Settings, task: str) -> str:
    """The validation score that is searched by: what `choose` says, else the likelihood, the RMSE of numbers, or the
    pinball loss of quantiles."""
    if settings.recipe.quantiles and settings.recipe.choose is None:
        return "pinball"
    return settings.recipe.choose or ("rmse" if task == "regression" else "nll")


def try_out(one: PlannedRun) -> None:
    """Train with the settings of a trial and score the result on the validation data; the test data stay unseen."""
    history, data = run.train(one.settings, one.folder, resume=True)
    score = score_name(one.settings, data.task)
    nothing = data.validation.take(torch.arange(0))
    without_test = replace(data, test=data.validation, validation=nothing, ood={})
    value = evaluate(history.ensemble, without_test).scores["ensemble"][score]
    write_text(one.folder / TRIAL, json.dumps({"score": score, "value": value}) + "\n")


def is_tried(one: PlannedRun) -> bool:
    """Whether the trial was made before, with the same settings."""
    if not (one.folder / TRIAL).exists():
        return False
    return (
        replace(reading.settings_of(reading.read_settings(one.folder)), machine=one.settings.machine)
        == one.settings
    )


def read_trial(folder: Path) -> float | None:
    """The score of a trial, or None where training failed."""
    if not (folder / TRIAL).exists():
        return None
    return read_json(folder / TRIAL, TRIAL_SPEC)["value"]
