"""The papers' experiments: list the recipes, say what this machine can run, and run them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode
from tyro.conf import Positional

from covey import zoo
from covey.cli import recipes
from covey.cli import results as stored
from covey.cli.around import Around
from covey.cli.executing import Results, execute
from covey.cli.flags import UsageError, parse_one
from covey.cli.planned import (
    CompareFlags,
    PlannedRun,
    check_shared,
    from_recipe,
    has_ended,
    passes_of,
    planned_runs,
)
from covey.cli.recipes import RecipeFile
from covey.cli.settings import Settings, parse_options
from covey.cli.train import check_typed
from covey.data.catalogue import KNOWN
from covey.data.known import data_folder
from covey.data.layouts import find
from covey.options import check_whole
from covey.zoo.sizes import SIZES as LISTED
from covey.zoo.sizes import VARIANTS

# training samples and sample shapes of the papers' sets, to say what a run costs without loading anything
SIZES: dict[str, tuple[int, tuple[int, ...], int]] = {
    "cifar10": (50_000, (3, 32, 32), 10),
    "cifar100": (50_000, (3, 32, 32), 100),
    "mnist": (60_000, (1, 28, 28), 10),
    "fashion-mnist": (60_000, (1, 28, 28), 10),
    "svhn": (73_257, (3, 32, 32), 10),
    "tiny-imagenet": (100_000, (3, 64, 64), 200),
    "imagenet": (1_281_167, (3, 224, 224), 1000),
    "enwik8": (900_000, (100,), 256),
}
BACKWARD = 3.0  # a step costs about three forward passes


@dataclass(frozen=True, kw_only=True)
class ReproduceFlags:
    """Run an experiment of the papers.

    Args:
        name: of a recipe; see --list.
        list: list the recipes with paper, table, data and what this machine can run.
        scale: "full", the paper's settings, or "small", the same thing small on a CPU.
        folder: where to write; runs/NAME if not given.
        root: folder of the known data sets.
        seeds: one run for each, instead of the recipe's.
        jobs: runs at the same time.
        ray: run on Ray.
        results: folder for the results' file, NAME.json; the runs' folder if not given. Runs that the file holds
            already are not done again.
    """

    name: Positional[str] = ""
    list: bool = False
    scale: Literal["full", "small"] = "full"
    folder: str | None = None
    root: str | None = None
    seeds: tuple[int, ...] = ()
    jobs: int = 1
    ray: bool = False
    results: str | None = None


def reproduce(args: Sequence[str]) -> int:
    """Run an experiment of the papers: covey reproduce NAME [--scale small], or --list"""
    about = "Run an experiment of the papers, or list them."
    own = parse_one("covey reproduce", ReproduceFlags, args, about=about)
    if own.list:
        print(listing(own.root))
        return 0
    if not own.name:
        raise UsageError("covey reproduce takes a recipe's name; `covey reproduce --list` lists them.")
    check_whole("--jobs", own.jobs)
    file = recipes.read(own.name)
    if "command" in file.about:
        print(f"{file.name} is no training run: {file.about['command']}")
        return 0
    flags, base = from_recipe(file, own.scale)
    flags = replace(
        flags, folder=own.folder or f"runs/{file.name}-{own.scale}", seeds=own.seeds or flags.seeds
    )
    base = replace(base, dataset=replace(base.dataset, root=own.root or base.dataset.root))
    planned = planned_runs(base, flags)
    for one in planned:
        check_typed(one.settings, ())  # a recipe that brings code is for `covey train`, where it can be named
    print(
        f"{file.about.get('title', file.name)} ({file.about.get('paper', '')}, {file.about.get('table', '')})"
    )
    if "reports" in file.about:
        print(f"the paper reports: {file.about['reports']}")
    results = _results(file, own, flags, base)
    left = _left(planned, results)
    if not own.ray:
        check_shared(left)
    return execute(
        left,
        Path(flags.folder),
        jobs=own.jobs,
        ray=own.ray,
        around=Around(flags.flatness, flags.interpolation),
        results=results,
    )


def _left(planned: list[PlannedRun], results: Results) -> list[PlannedRun]:
    """The runs to do: those whose scores the results' file holds, from another machine, are not done again."""
    left = [one for one in planned if one.folder not in results.entries or has_ended(one)]
    if len(left) < len(planned):
        print(
            f"{len(planned) - len(left)} of {len(planned)} runs stand in {results.path} and are not done again"
        )
    return left


def _results(file: RecipeFile, own: ReproduceFlags, flags: CompareFlags, base: Settings) -> Results:
    """The file of results, for the recipe's own seeds and those asked for."""
    recipe_seeds = from_recipe(file, own.scale)[0].seeds
    seeds = tuple(dict.fromkeys((*recipe_seeds, *own.seeds)))
    small = "" if own.scale == "full" else f"-{own.scale}"
    name = f"{file.name}{small}"
    command = f"covey reproduce {file.name}" + (f" --scale {own.scale}" if small else "")
    path = f"{own.results or flags.folder}/{name}.json"
    results = Results(path, name, file.about, command, planned_runs(base, replace(flags, seeds=seeds)))
    if own.results:
        results.read()
    return results


def listing(root: str | None) -> str:
    """All recipes, one a line."""
    speed = _speed()
    rows = [("recipe", "paper", "table", "data", "here", "full", "small", "done", "title")]
    for path in sorted(recipes.folder().glob("*.toml")):
        file = recipes.read(str(path))
        data = file.settings.dataset.data
        rows.append(
            (
                file.name,
                str(file.about.get("paper", "")),
                str(file.about.get("table", "")),
                data,
                "yes" if _is_here(data, root) else "no",
                _verdict(file, "full", speed),
                _verdict(file, "small", speed),
                _done(file.name),
                str(file.about.get("title", "")),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    return "\n".join(
        [
            *lines,
            "",
            "full, small: whether all its runs take under an hour on this machine, and how long",
            "done: what covey's own results hold of it, at full size unless said, and how long that took",
        ]
    )


def _done(name: str) -> str:
    """What the results that come with covey hold of a recipe."""
    for size, words in (("", ""), ("-small", "small: ")):
        path = stored.folder() / f"{name}{size}.json"
        if path.exists():
            return words + stored.state(stored.read(path))
    return "-"


def hours(file: RecipeFile, scale: str, speed: float) -> float | None:
    """About how long all runs of a recipe take here; None where it is not known."""
    if "command" in file.about:
        return None
    flags, base = from_recipe(file, scale)
    total = 0.0
    for one in planned_runs(base, replace(flags, seeds=flags.seeds[:1])):
        seconds = _seconds(one.settings, speed)
        if seconds is None:
            return None
        total += seconds
    return total * len(flags.seeds) / 3600  # one seed takes as long as another


def _verdict(file: RecipeFile, scale: str, speed: float) -> str:
    found = hours(file, scale, speed)
    if found is None:
        return "?"
    return (
        f"{'yes' if found < 1 else 'no'} ({found:.1f} h)" if found >= 0.1 else f"yes ({found * 60:.0f} min)"
    )


def _seconds(settings: Settings, speed: float) -> float | None:
    """Multiply-adds of all steps over those that this machine does in a second."""
    name, data = settings.network.network, settings.dataset
    if name is None or data.data not in SIZES:
        return 60.0 if data.data.startswith("uci") else None
    samples, shape, classes = SIZES[data.data]
    names = name.split("+")
    options = settings.network.network_option
    work = sum(_multiply_adds(each, shape, classes, options) for each in names)
    samples = min(samples, data.samples or samples, data.train_samples or samples)
    passes = passes_of(settings) if len(names) == 1 else 1.0  # each member is one of the networks
    return BACKWARD * work * samples * settings.recipe.epochs * passes / speed


@cache
def _multiply_adds(name: str, shape: tuple[int, ...], classes: int, options: tuple[str, ...]) -> float:
    """Of one forward pass of one sample, about: that of the listed size, for images of another size by their area."""
    network = zoo.find(name)
    listed = _listed(name, options)
    if listed is not None and len(shape) == len(network.shape):
        return listed * math.prod(shape[1:]) / math.prod(network.shape[1:])
    given = {**network.arguments_for(shape), **parse_options(options)}
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        made = zoo.create(name, classes=classes, **given).eval()
        made(torch.zeros(1, *shape, dtype=torch.long if network.tokens else torch.float32))
    return counter.get_total_flops() / 2


def _listed(name: str, options: tuple[str, ...]) -> int | None:
    """Multiply-adds of a network whose size is listed; dropout does not change them."""
    sizing = [option for option in options if not option.startswith("dropout=")]
    if not sizing and name in LISTED:
        return LISTED[name].multiply_adds
    return VARIANTS.get(":".join([name, *sizing]))


def _speed() -> float:
    """Multiply-adds a second of a convolution on this machine, forward and backward."""
    layer = torch.nn.Conv2d(64, 64, 3, padding=1)
    x = torch.randn(32, 64, 32, 32)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        layer(x).sum().backward()
        best = min(best, time.perf_counter() - start)
    return BACKWARD * 32 * 32 * 32 * 64 * 64 * 9 / best


def _is_here(data: str, root: str | None) -> bool:
    """Whether the data's files are on this machine."""
    source = KNOWN.get(data)
    if source is None:
        return Path(data).exists()
    folder = data_folder(root)
    return all(find(folder, path) is not None for path in (*source.train, *source.test))
