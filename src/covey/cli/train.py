"""covey train: one run, from what was typed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from covey import registry
from covey.cli import reading, recipes, run
from covey.cli.calibrated import offer
from covey.cli.flags import UsageError, parse
from covey.cli.idle import check_idle
from covey.cli.settings import TABLE, TRANSFORMER, Settings, is_table
from covey.data import Data
from covey.ensemble import Ensemble
from covey.tables import counted
from covey.train import History, checkpoint
from covey.zoo import from_file


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What `covey train` takes besides the run's own settings.

    Args:
        recipe: a recipe file, whose settings are the defaults of all other flags.
        scale: the size of the recipe: "full", or "small" for a run on a CPU.
        folder: where to write the run; runs/... if not given.
        resume: go on from the newest whole checkpoint in the folder; --resume FOLDER alone takes the run's settings
            from there.
        overwrite: replace the run in the folder, if it holds nothing else.
        evaluate: score on the test data at the end.
    """

    recipe: str | None = None
    scale: Literal["full", "small"] = "full"
    folder: str | None = None
    resume: bool = False
    overwrite: bool = False
    evaluate: bool = True


def train(args: Sequence[str]) -> int:
    """Train a network or an ensemble: covey train METHOD --data NAME --network NAME ..."""
    name, rest = _method_first(_spelled_out(args))
    file = flag_value(rest, "--recipe")
    scale = flag_value(rest, "--scale") or "full"
    if scale not in ("full", "small"):
        raise UsageError(f"--scale is full or small; got {scale!r}.")
    start = recipes.read(file).at(scale) if file else usual_settings(rest)
    if name is None and not file and "--resume" in rest:
        start = _started_with(flag_value(rest, "--folder"))
        name = start.method
    if name is None and not file:
        if any(word in ("-h", "--help") for word in rest):
            print(train_help())
            return 0
        raise UsageError(
            "covey train takes a method, or a recipe file that names one; `covey methods` lists them. --resume FOLDER "
            "goes on with a run."
        )
    name = name or start.method
    options = start.options if name == start.method else registry.lookup(name)()
    settings, own = read_run(f"covey train {name}", name, options, start, TrainFlags(), rest)
    check_typed(settings, rest)
    check_idle(settings, rest)
    if own.resume and own.overwrite:
        raise UsageError("--resume goes on with a run and --overwrite replaces it; choose one.")
    settings = settings.complete()
    folder = Path(own.folder) if own.folder else run.usual_folder(settings)
    with run.writing(folder):
        with _stoppable(folder):
            history, data = run.train(
                settings, folder, resume=own.resume, overwrite=own.overwrite, longer=True
            )
        if not run.leads():
            return 0
        print("\n".join([ended(folder, history), *run.data_notes(data)]))
        if own.evaluate:
            tell_scores(folder, history.ensemble, data)
    return 0


@contextlib.contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """After Ctrl-C, say how to go on with this run."""
    try:
        yield
    except KeyboardInterrupt:
        on = f"`covey train --resume {folder}` goes on from the last checkpoint"
        raise KeyboardInterrupt(
            on if checkpoint.names(folder) else "no epoch was done, so nothing is stored"
        ) from None


def ended(folder: Path, history: History) -> str:
    """A run's end in a line."""
    ensemble = history.ensemble
    parameters = sum(p.numel() for p in ensemble.parameters())
    how = f", run as {ensemble.runs['train']}" if ensemble.members > 1 else ""
    return f"{folder}: {history.ended}, {counted(ensemble.members, 'member')}, {parameters:,} parameters{how}"


def tell_scores(folder: Path, ensemble: Ensemble, data: Data) -> None:
    """Score a run that has ended on its test data, if there are any, and print the scores."""
    if len(data.test):
        scores = run.score(folder, ensemble, data)
        told = [run.headline(scores), *run.told(scores), *offer(folder, scores)]
        print("\n".join(["test scores:", *told]))


def _spelled_out(args: Sequence[str]) -> list[str]:
    """The same with `--resume FOLDER` as `--resume --folder FOLDER`."""
    found: list[str] = []
    for word in args:
        flag, _, value = word.partition("=")
        if flag == "--resume" and value:
            found += ["--resume", "--folder", value]
        elif found[-1:] == ["--resume"] and not word.startswith("-"):
            found += ["--folder", word]
        else:
            found.append(word)
    if sum(word.partition("=")[0] == "--folder" for word in found) > 1:
        raise UsageError("there are two folders, by --folder and --resume; a run has one.")
    return found


def _started_with(folder: str | None) -> Settings:
    """The settings of the run in a folder."""
    if folder is None:
        raise UsageError("--resume without a method takes the folder of a run: covey train --resume FOLDER")
    stored = reading.read_settings(reading.existing(folder))
    if reading.BY_FIT in stored:
        raise UsageError(
            f"{folder} was trained by covey.fit; go on with it there: covey.fit(..., resume=True)."
        )
    if "lesson" in stored:
        raise UsageError(
            f"{folder} learns from a teacher; go on with it by the command that began it: covey distill "
            f"{stored['lesson']['teacher']} {stored['method']} --folder {folder} --resume"
        )
    return reading.settings_of(stored)


def usual_settings(args: Sequence[str]) -> Settings:
    """The defaults for what was typed: tables and transformers are not trained as images are."""
    network = flag_value(args, "--network") or ""
    if network.startswith("hf:"):
        return Settings(recipe=TRANSFORMER)
    if is_table(flag_value(args, "--data") or ""):
        return Settings(recipe=TABLE)
    return Settings()


def check_typed(settings: Settings, args: Sequence[str]) -> None:
    """Refuse to run a Python file that was not named on the command line, but in a recipe or in a stored run."""
    typed = set()
    for word in args:
        for piece in (word, *re.split("[=,+]", word)):  # --network=..., single:network=..., a.py:f+b.py:g
            if from_file.is_code(piece) and ":" in piece:
                typed.add(from_file.absolute(piece))
    for name in settings.network.code:
        if from_file.absolute(name) not in typed:
            raise UsageError(
                f"the network is made by {name}. That is code, and only run if you name it: --network {name}"
            )


def read_run(
    command: str, name: str, options: Any, start: Settings, own: Any, args: Sequence[str]
) -> tuple[Settings, Any]:
    """Settings and a command's own flags, from `start` and what was typed."""
    parts = {
        "own": own,
        "recipe": start.recipe,
        "options": options,
        "network": start.network,
        "dataset": start.dataset,
        "machine": start.machine,
    }
    about = (registry.lookup(name).__doc__ or "").strip().split("\n\n")[0]
    found = parse(command, parts, args, about=" ".join(about.split()))
    if "--quantiles" in args and not found["recipe"].quantiles:
        raise UsageError(
            "--quantiles takes levels between 0 and 1 that rise, such as 0.05 0.5 0.95; got none."
        )
    settings = Settings(
        method=name,
        options=found["options"],
        dataset=found["dataset"],
        network=found["network"],
        recipe=found["recipe"],
        machine=found["machine"],
    )
    return settings, found["own"]


def train_help() -> str:
    """What `covey train --help` says: the methods, each with its first line."""
    lines = ["usage: covey train METHOD [flags]", "       covey train --recipe FILE [flags]", "", "methods:"]
    lines += [f"  {name:16} {first_line(registry.lookup(name))}" for name in registry.names()]
    return "\n".join([*lines, "", "`covey train METHOD --help` explains every flag."])


def _method_first(args: Sequence[str]) -> tuple[str | None, list[str]]:
    if args and not args[0].startswith("-"):
        if args[0] not in registry.names() and Path(args[0]).exists():
            raise UsageError(
                f"covey train takes a method first, and data behind a flag: covey train METHOD --data {args[0]}"
            )
        registry.lookup(args[0])
        return args[0], list(args[1:])
    return None, list(args)


def flag_value(args: Sequence[str], flag: str) -> str | None:
    """A flag's value before all flags are read, since the recipe file changes their defaults."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def first_line(kind: type) -> str:
    """What a method says of itself in a line."""
    return (kind.__doc__ or "").strip().splitlines()[0]
