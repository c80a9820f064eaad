"""The small commands, one function each: from what was typed to what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from covey import registry
from covey.cli import run
from covey.cli.flags import describe, flag_names, parse, parse_one
from covey.cli.settings import Dataset, usual_network
from covey.cli.train import TrainFlags, first_line
from covey.data.show import contact_sheet, list_known, summary
from covey.schema import read_text
from covey.train import Recipe


@dataclass(frozen=True, kw_only=True)
class MethodsFlags:
    """List the methods, or explain one.

    Args:
        name: of a method; all are listed if not given.
    """

    name: Positional[str] = ""


def methods(args: Sequence[str]) -> int:
    """List the methods, or explain one: covey methods [NAME]"""
    own = parse_one("covey methods", MethodsFlags, args, about="List the methods, or explain one.")
    if not own.name:
        for name in registry.names():
            print(f"{name:16} {first_line(registry.lookup(name))}")
        return 0
    kind = registry.lookup(own.name)
    print(f"{own.name}: {first_line(kind)}\n")
    told, example = describe(kind), kind()
    names = flag_names({"own": TrainFlags(), "recipe": Recipe(), "options": example}, "options")
    for name, flag in names.items():
        print(f"  {flag:16} {told.get(name, '')} (default {getattr(example, name)})")
    return 0


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """What `covey data` takes besides the data set.

    Args:
        sheet: a PNG file to draw a contact sheet to.
    """

    sheet: str | None = None


def data(args: Sequence[str]) -> int:
    """Show what would be trained on: covey data SOURCE [--sheet FILE]"""
    words = list(args)
    if not words:
        print(list_known())
        return 0
    if not words[0].startswith("-"):
        words[:1] = ["--data", words[0]]
    about = "Show what would be trained on; without a source, list the known ones."
    found = parse("covey data", {"dataset": Dataset(), "own": DataFlags()}, words, about=about)
    loaded = found["dataset"].load()
    print(summary(loaded))
    if found["own"].sheet:
        print(f"contact sheet  {contact_sheet(loaded, found['own'].sheet)}")
    return 0


@dataclass(frozen=True, kw_only=True)
class ShowFlags:
    """Show a run.

    Args:
        folder: of the run.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        tensors: list what became of every tensor of the network.
    """

    folder: Positional[str]
    network: str | None = None
    tensors: bool = False


def show(args: Sequence[str]) -> int:
    """Show a run: its settings, its history and its scores: covey show FOLDER"""
    own = parse_one("covey show", ShowFlags, args, about="Show a run: settings, history, scores.")
    folder = Path(own.folder)
    stored = run.read_settings(folder)
    settings = run.settings_of(stored)
    finished = (folder / "ensemble").exists()
    on = run.how_to_resume(folder, stored)
    ensemble = run.read_ensemble(folder, own.network) if finished else None
    usual = usual_network(stored["record"]) if run.BY_FIT not in stored else "one of your own"
    if ensemble is not None:
        usual = getattr(ensemble.skeleton(), "covey_zoo", {}).get("name", usual)
    print(f"method    {settings.method} {_differences(settings.options)}")
    print(f"network   {settings.network.network or usual}")
    print(f"data      {settings.dataset.data}")
    print(f"recipe    {_differences(settings.recipe)}")
    if "lesson" in stored:
        print(f"teacher   {stored['lesson']['teacher']}")
    if ensemble is None:
        print(f"training  {stored['ended']}: {on}")
        if (folder / "history.csv").exists():
            print("\n" + read_text(folder / "history.csv").strip())
        return 0
    coverage = ensemble.coverage
    print(f"run       {ensemble.runs['train']} in training, {ensemble.runs['eval']} in evaluation")
    print(
        f"size      {coverage.total:,} parameters, {coverage.ratio:.3f} of the network's {coverage.network:,}"
    )
    if stored["seconds"] is None:
        print(f"training  {stored['ended']}: {on}; the ensemble is that from before\n")
    else:
        print(f"training  {stored['ended']}, {stored['seconds']} s\n")
    print(read_text(folder / "history.csv").strip())
    if (folder / "evaluation.json").exists():
        from covey.scores import Evaluation

        print("\ntest scores:\n" + run.headline(Evaluation.load(folder, outputs=False)))
    if own.tensors:
        print(f"\n{coverage}")
    return 0


def _differences(options: Any) -> str:
    """What differs from the defaults, as flags."""
    default = asdict(type(options)())
    changed = {k: v for k, v in asdict(options).items() if v != default[k] and not callable(v)}
    return " ".join(f"{k}={v}" for k, v in changed.items())
