"""The runs that a comparison or a recipe asks for: methods x settings x seeds, each with its folder."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from covey import registry
from covey.cli import reading, recipes, run
from covey.cli.flags import UsageError
from covey.cli.settings import Settings, parse_options, updated
from covey.errors import OptionError, suggest
from covey.method import Method


@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """What `covey compare` takes besides the runs' own settings.

    Args:
        methods: names, with options or other settings of their runs if need be: packed:alpha=2,members=4 or
            single:network=wrn-28-10.
        seeds: one run of each method for each.
        vary: further settings to go through, such as lr=0.1,0.01 (options-lr for one of the method's own). Values of
            split and data-seed count as repetitions of the same thing, as seeds do.
        folder: where to write the runs and the report.
        jobs: runs at the same time, each in a process of its own.
        ray: run on Ray: the cluster at $RAY_ADDRESS if that is set, else a local one (needs covey[ray]).
        recipe: a recipe file, whose settings are the defaults of all other flags.
        scale: the size of the recipe: "full", or "small" for a run on a CPU.
        baseline: the method that the others are compared with; the first with one member if not given.
        flatness: measure how the loss of each run's first member rises with noise on its weights, on so many test
            samples of a classification.
        corruptions: corrupt the first so many test images in 75 ways and score those too.
        interpolation: score networks on the line between each run's first two members, on so many test samples of a
            classification, where members have the same shapes; norms use the statistics of these samples.
        subsets: score every subset of each run's members on the test data (at most 10,000 samples, evenly spread) and
            time it, to show what an answer within a budget of time is worth, and draw which of their layers share
            templates, where the method clusters them.
        collapsed: score every way of averaging members' weights into one network too, where members are kept.
        search: before the comparison, try so many settings of each method, the baseline too, and keep those that do
            best on validation data; 0 for none. The first is what is given, the others are drawn from the first seed.
            Of several --seeds, the second tries the better half of them, and so on until one is left.
        space: what to search: name=low..high, drawn evenly on a logarithmic scale, or name=value,value; by default
            the learning rate from a tenth to ten times the given one.
        results: a .json file for settings, versions, wall time and raw scores of all runs; results.json in the folder
            if not given.
        pdf: write the report's figures as PDF too, for papers; SVG is always written.
    """

    methods: tuple[str, ...] = ("single", "deep-ensemble", "batch-ensemble")
    seeds: tuple[int, ...] = (0,)
    vary: tuple[str, ...] = ()
    folder: str = "runs/compare"
    jobs: int = 1
    ray: bool = False
    recipe: str | None = None
    scale: Literal["full", "small"] = "full"
    baseline: str | None = None
    flatness: int = 0
    interpolation: int = 0
    subsets: bool = False
    corruptions: int = 0
    collapsed: bool = False
    search: int = 0
    space: tuple[str, ...] = ()
    results: str | None = None
    pdf: bool = False


# whose setting a name means: packed:alpha=2 is the method's, --vary lr=0.1,0.2 the recipe's even if the method has one
OWN_FIRST = ("options", "recipe", "dataset", "network")
OWN_LAST = ("recipe", "dataset", "network", "options")
REPEATS = ("split", "data_seed")  # settings that make another run of the same thing, as another seed does


@dataclass(frozen=True)
class PlannedRun:
    """One run of many: its name in the report, its settings, its folder, which repetition it is, what is scored.

    `fixed` are the settings that the user gave for this method alone; a `trial` belongs to --search.
    """

    label: str
    settings: Settings
    folder: Path
    repeat: int
    corruptions: int = 0
    collapsed: bool = False
    subsets: bool = False
    fixed: frozenset[str] = frozenset()
    trial: bool = False


def from_recipe(file: recipes.RecipeFile, scale: str) -> tuple[CompareFlags, Settings]:
    """What a recipe compares, and with which settings; one of a single method is a comparison of one."""
    flags = updated(CompareFlags(methods=(file.settings.method,)), file.compared(scale), "compare")
    return flags, file.at(scale)


def planned_runs(base: Settings, own: CompareFlags) -> list[PlannedRun]:
    """Every combination of method, setting and seed."""
    if not own.methods or not own.seeds:
        raise UsageError("covey compare needs at least one method and one seed.")
    planned: list[PlannedRun] = []
    labels: Counter[str] = Counter()
    for spec, varied, seed in itertools.product(own.methods, _variations(own.vary), own.seeds):
        name, _, text = spec.partition(":")
        if "," in name or " " in name:
            raise UsageError(f"--methods takes names with spaces between them; got {name!r}.")
        kind = registry.lookup(name)
        with said_of(f"--methods {spec}"):
            given = parse_options(registry.split_options(text))
        if "seed" in {**given, **varied}:
            raise UsageError(
                "the seeds of all methods are given by --seeds; leave seed out of --methods and --vary."
            )
        start = base.options if name == base.method else kind()
        with said_of(f"--methods {spec}"):
            settings = apply_settings(replace(base, method=name, options=start), given, OWN_FIRST)
        with said_of("--vary " + " ".join(f"'{k}={v}'" for k, v in varied.items())):
            settings = apply_settings(settings, varied, OWN_LAST)
        settings = replace(settings, recipe=replace(settings.recipe, seed=seed)).complete()
        words = [spec.replace(":", " ").replace(",", " ")]
        file = file_name(" ".join([*words, *(f"{k}={v}" for k, v in varied.items())]))
        label = " ".join([*words, *(f"{k}={v}" for k, v in varied.items() if k not in REPEATS)])
        repeat = labels[label] if any(name in REPEATS for name in varied) else seed
        labels[label] += 1
        place = Path(own.folder) / f"{file}-{seed}"
        fixed = frozenset((*given, *varied))
        planned.append(
            PlannedRun(
                label,
                settings,
                place,
                repeat,
                corruptions=own.corruptions,
                collapsed=own.collapsed,
                subsets=own.subsets,
                fixed=fixed,
            )
        )
    names = [str(one.folder) for one in planned]
    if len(set(names)) < len(names):
        raise UsageError("two of the runs are the same: a method, a setting or a seed stands there twice.")
    return planned


@contextlib.contextmanager
def said_of(typed: str) -> Iterator[None]:
    """Errors about settings begin with what was typed."""
    try:
        yield
    except OptionError as error:
        raise UsageError(f"{typed}: {error}") from error


def has_ended(one: PlannedRun) -> bool:
    """Whether a run with whatever settings lies in the folder, scored and measured."""
    return (one.folder / run.COST).exists()


def missing_scores(one: PlannedRun) -> list[str]:
    """The files of scores that a run should have and has not."""
    missing = [] if run.is_scored(one.folder, corruptions=one.corruptions) else [run.SCORES]
    for name, asked in {run.SUBSETS: one.subsets, run.COLLAPSED: one.collapsed, run.COST: True}.items():
        if asked and not (one.folder / name).exists():
            missing.append(name)
    if run.SUBSETS in missing and run.SCORES not in missing and not (one.folder / run.OUTPUTS).exists():
        missing.insert(0, run.SCORES)  # subsets are scored by the outputs
    return missing


def is_done(one: PlannedRun) -> bool:
    """Whether the run was done with these settings, and has every score that is asked for."""
    if not has_ended(one) or missing_scores(one):
        return False
    found = reading.settings_of(reading.read_settings(one.folder))
    return replace(found, machine=one.settings.machine) == one.settings


def check_shared(planned: Sequence[PlannedRun]) -> None:
    """Load the data and build the network that all runs share, so that what is to be said of them is said once."""
    left = [one.settings for one in planned if not is_done(one)]
    if not left or any(each.dataset != left[0].dataset for each in left):
        return
    data = left[0].dataset.load()
    if all(each.network == left[0].network for each in left):
        left[0].network.build(data, left[0].recipe)
    for line in run.data_notes(data):
        print(line)


def _variations(given: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of what --vary lists: ("lr=0.1,0.01",) is [{lr: 0.1}, {lr: 0.01}]."""
    names, values = [], []
    for text in given:
        name, equals, listed = text.partition("=")
        if not equals:
            raise UsageError(f"--vary is written name=value,value; got {text!r}.")
        names.append(name.replace("-", "_"))
        if names.count(names[-1]) > 1:
            raise UsageError(f"--vary names {name} twice; write all its values after one name.")
        values.append([registry.read_value(value) for value in registry.split_options(listed)])
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def apply_settings(settings: Settings, given: Mapping[str, Any], order: Sequence[str]) -> Settings:
    """Settings with some values changed, each in the first part that has it; options_NAME is the method's for sure."""
    for name, value in given.items():
        own = name.removeprefix("options_")
        for part in ("options",) if own != name else order:
            present = getattr(settings, part)
            head, _, leaf = own.partition(".")
            if hasattr(present, head):
                settings = replace(
                    settings, **{part: updated(present, {head: {leaf: value} if leaf else value}, "")}
                )
                break
        else:
            known = [f.name.replace("_", "-") for part in order for f in fields(getattr(settings, part))]
            raise UsageError(
                f"neither the method {settings.method!r} nor the recipe, the data or the network has a setting "
                f"{name!r}{suggest(name, known)}."
            )
    return settings


def file_name(label: str) -> str:
    """A run's label as the name of its folder."""
    return "".join(c if c.isalnum() or c in ".-=" else "_" for c in label)


def passes_of(settings: Settings) -> float:
    """How many passes of the whole network a sample costs in training."""
    options = settings.options
    apart = settings.recipe.plan in ("split", "independent")  # members share the minibatches among themselves
    if apart and isinstance(options, Method) and not options.own_batches:
        return options.training_passes / options.members
    return options.training_passes


def longest_first(planned: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The order for several processes: none is left with a long run when the others have nothing to do."""
    return sorted(planned, key=lambda one: _work(one.settings), reverse=True)


def _work(settings: Settings) -> tuple[float, int]:
    """What orders runs by how long they take: passes in training, and of equal ones the pieces that they come in."""
    options = settings.options
    return passes_of(settings), options.members if isinstance(options, Method) else 1
