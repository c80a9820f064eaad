"""The small commands, one function each: from what was typed to what is printed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from covey import registry
from covey.cli import reading, run
from covey.cli.flags import UsageError, describe, flag_names, parse, parse_one
from covey.cli.settings import Dataset, usual_network
from covey.cli.spoken import with_flags
from covey.cli.train import TrainFlags, first_line
from covey.data import download
from covey.data.show import contact_sheet, list_known, summary
from covey.errors import StoreError
from covey.schema import read_text
from covey.tables import number, text_table
from covey.train import Recipe

HISTORY = "history.csv"
SHOWN = 10  # epochs at the beginning and at the end of a long run


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
        download: fetch first what is missing of a known set.
    """

    sheet: str | None = None
    download: bool = False


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
    dataset, own = found["dataset"], found["own"]
    if own.download:
        if Path(dataset.data).exists():
            raise UsageError(f"--download is for known data sets; {dataset.data} is a file or folder here.")
        download(dataset.data, dataset.root)
    loaded = dataset.load()
    for line in summary(loaded).splitlines():
        print(with_flags(line) if line.startswith("note ") else line)
    if own.sheet:
        print(f"contact sheet  {contact_sheet(loaded, own.sheet)}")
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
    stored = reading.read_settings(folder)
    settings = reading.settings_of(stored)
    finished = (folder / "ensemble").exists()
    on = reading.how_to_resume(folder, stored)
    ensemble = reading.read_ensemble(folder, own.network) if finished else None
    usual = usual_network(stored["record"]) if reading.BY_FIT not in stored else "one of your own"
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
        if (folder / HISTORY).exists():
            print("\n" + _history(folder))
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
    print(_history(folder))
    if (folder / "evaluation.json").exists():
        from covey.scores import Evaluation

        print("\ntest scores:\n" + run.headline(Evaluation.load(folder, outputs=False)))
    if own.tensors:
        print(f"\n{coverage}")
    return 0


def _history(folder: Path) -> str:
    """The epochs of a run as a table: all of a short one, the first and the last of a long one."""
    lines = read_text(folder / HISTORY).splitlines()
    if not lines:
        raise StoreError(f"{folder / HISTORY} is empty: it was cut short.")
    headings, *rows = csv.reader(lines)
    table = [[_shown(cell) for cell in row] for row in rows]
    if len(rows) > 2 * SHOWN:
        table[SHOWN:-SHOWN] = [["..."] * len(headings)]
    text = text_table(headings, table, right=headings)
    return text if len(rows) <= 2 * SHOWN else f"{text}\nall {len(rows)} epochs: {folder / HISTORY}"


def _shown(cell: str) -> str:
    """A cell of the history with the digits that say something."""
    if not cell or cell.isdigit():
        return cell or "-"
    try:
        return number(float(cell))
    except ValueError:
        return cell


def _differences(options: Any) -> str:
    """What differs from the defaults, as flags."""
    default = asdict(type(options)())
    changed = {k: v for k, v in asdict(options).items() if v != default[k] and not callable(v)}
    return " ".join(f"{k}={v}" for k, v in changed.items())
