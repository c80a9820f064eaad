"""Many runs: methods x seeds x settings, one after another, in processes, or on a Ray cluster; then one report."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from covey import registry
from covey.cli import recipes, run
from covey.cli import results as stored
from covey.cli.flags import UsageError, parse
from covey.cli.idle import check_idle
from covey.cli.settings import Settings, is_table, parse_options, updated
from covey.cli.spoken import with_flags
from covey.cli.train import check_typed, flag_value, usual_settings
from covey.errors import CoveyError, OptionError, reason, suggest
from covey.extras import load
from covey.locks import locked
from covey.options import check_whole


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
        collapsed: score every way of averaging members' weights into one network too, where members are kept.
        search: before the comparison, try so many settings of each method, the baseline too, and keep those that do
            best on validation data; 0 for none. The first is what is given, the others are drawn from the first seed.
        space: what to search: name=low..high, drawn evenly on a logarithmic scale, or name=value,value; by default
            the learning rate from a tenth to ten times the given one.
        results: a .json file for settings, versions, wall time and raw scores of all runs; results.json in the folder
            if not given.
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
    corruptions: int = 0
    collapsed: bool = False
    search: int = 0
    space: tuple[str, ...] = ()
    results: str | None = None


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
    fixed: frozenset[str] = frozenset()
    trial: bool = False


@dataclass(frozen=True)
class Results:
    """Where results are kept, what they are of, and of which runs, done or not."""

    path: str
    name: str
    about: Mapping[str, Any]
    command: str
    planned: Sequence[PlannedRun]
    entries: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def read(self) -> None:
        """Take over what the file holds of planned runs, such as those of another machine."""
        if not Path(self.path).exists():
            return
        held = {(each["label"], each["repeat"]): each for each in stored.read(Path(self.path))["runs"]}
        for one in self.planned:
            found = held.get((one.label, one.repeat))
            if found is not None and stored.is_of(found, one.settings):
                self.entries[one.folder] = found

    def write(self) -> None:
        """Write the results of all runs that are done; what is known of a run is not read again."""
        for one in self.planned:
            if one.folder not in self.entries and _is_done(one):
                self.entries[one.folder] = stored.entry(one.label, one.repeat, one.folder)
        runs = [self.entries[one.folder] for one in self.planned if one.folder in self.entries]
        stored.write(Path(self.path), self.name, self.about, self.command, runs, len(self.planned))


def compare(args: Sequence[str]) -> int:
    """Train several methods and seeds and write one report: covey compare --methods A B --seeds 0 1 2"""
    if args and not args[0].startswith("-"):
        raise UsageError(f"methods stand behind a flag: covey compare --methods {shlex.join(args)}")
    file = flag_value(args, "--recipe")
    scale = flag_value(args, "--scale") or "full"
    own, start = CompareFlags(), usual_settings(args)
    if file:
        own, start = from_recipe(recipes.read(file), scale)
    parts = {"own": own, "recipe": start.recipe, "network": start.network, "dataset": start.dataset}
    about = "Train several methods and seeds on the same data and write one report."
    given = parse("covey compare", {**parts, "machine": start.machine}, args, about=about)
    own = given.pop("own")
    base = replace(start, **given)
    planned = planned_runs(base, own)
    for one in planned:
        check_typed(one.settings, args)
    _check_own(own, base, planned)
    if not own.vary:
        check_idle(base, [word for word in args if not (own.search and word.startswith("--choose"))])
    if own.jobs > 1 and own.ray:
        raise UsageError("--jobs and --ray are two ways of running; choose one.")
    if not own.ray:  # whose machines may have data that this one has not
        check_shared(planned)
    if own.search:
        # it builds on this file, and is needed only here
        from covey.cli.search import searched

        way = way_of_running(jobs=own.jobs, ray=own.ray)
        with locked(Path(own.folder), what="comparison"):
            planned = searched(planned, Path(own.folder), count=own.search, space=own.space, way=way)
    elif own.space:
        raise UsageError("--space says what --search draws from; give --search how many settings to try.")
    command = f"covey compare {shlex.join(args)}"
    keep = Results(own.results or f"{own.folder}/results.json", "compare", {}, command, planned)
    return execute(
        planned,
        Path(own.folder),
        jobs=own.jobs,
        ray=own.ray,
        baseline=own.baseline,
        flatness=own.flatness,
        results=keep,
    )


def _check_own(own: CompareFlags, base: Settings, planned: Sequence[PlannedRun]) -> None:
    """Refuse before the first run what would fail after the last one."""
    check_whole("--jobs", own.jobs)
    if own.results and Path(own.results).suffix != ".json":
        raise UsageError(f"--results is a .json file; got {own.results!r}.")
    labels = list(dict.fromkeys(one.label for one in planned))
    if own.baseline is not None and own.baseline not in labels:
        raise UsageError(f"--baseline {own.baseline!r} is not compared{suggest(own.baseline, labels)}.")
    for flag, count in (("--corruptions", own.corruptions), ("--flatness", own.flatness)):
        if count < 0:
            raise UsageError(f"{flag} is a number of test samples, 0 or more; got {count}.")
    if own.corruptions and is_table(base.dataset.data):
        raise UsageError(f"--corruptions is for images, and {base.dataset.data} is a table; leave it out.")
    if own.flatness and (task := base.dataset.load().task) != "classification":
        raise UsageError(
            f"--flatness is for classification, and {base.dataset.data} is for {task}; leave it out."
        )
    if (Path(own.folder) / run.SETTINGS).exists():
        raise UsageError(f"{own.folder} is the folder of a run; a comparison needs one of its own.")


def check_shared(planned: Sequence[PlannedRun]) -> None:
    """Load the data and build the network that all runs share, so that what is wrong with them is said once."""
    left = [one.settings for one in planned if not _is_done(one)]
    if not left or any(each.dataset != left[0].dataset for each in left):
        return
    data = left[0].dataset.load()
    if all(each.network == left[0].network for each in left):
        left[0].network.build(data, left[0].recipe)


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
        file = _file_name(" ".join([*words, *(f"{k}={v}" for k, v in varied.items())]))
        label = " ".join([*words, *(f"{k}={v}" for k, v in varied.items() if k not in REPEATS)])
        repeat = labels[label] if any(name in REPEATS for name in varied) else seed
        labels[label] += 1
        place = Path(own.folder) / f"{file}-{seed}"
        fixed = frozenset((*given, *varied))
        planned.append(PlannedRun(label, settings, place, repeat, own.corruptions, own.collapsed, fixed))
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


def execute(
    planned: Sequence[PlannedRun],
    folder: Path,
    *,
    jobs: int = 1,
    ray: bool = False,
    baseline: str | None = None,
    flatness: int = 0,
    results: Results | None = None,
) -> int:
    """Do all runs, those that are done already excepted, and write results and the report. 1 if a run failed."""
    way = way_of_running(jobs=jobs, ray=ray)
    with locked(folder, what="comparison"):
        failed = _do_all(way, planned, results)
        finished = [one for one in planned if one not in failed]
        for data, runs in _by_data(finished).items():
            place = folder if len(_by_data(finished)) == 1 else folder / _file_name(data)
            _tell(runs, place, baseline, flatness)
    return 1 if failed else 0


def way_of_running(
    *, jobs: int, ray: bool
) -> Callable[[Iterable[PlannedRun]], Iterator[tuple[PlannedRun, str | None]]]:
    """What does runs and tells how each went: one after another, in processes, or on Ray."""
    if ray:
        return _on_ray
    if jobs > 1:
        return lambda planned: _in_processes(planned, jobs)
    return _one_by_one


def _by_data(planned: Iterable[PlannedRun]) -> dict[str, list[PlannedRun]]:
    """The runs on each set of data: a report compares runs on one."""
    found: dict[str, list[PlannedRun]] = {}
    for one in planned:
        found.setdefault(one.settings.dataset.data, []).append(one)
    return found


def _do_all(
    way: Callable[[Iterable[PlannedRun]], Iterator[tuple[PlannedRun, str | None]]],
    planned: Sequence[PlannedRun],
    results: Results | None,
) -> list[PlannedRun]:
    """Do the runs and say how each went; returns those that failed."""
    failed, said = [], ""
    for done, (one, error) in enumerate(way(planned), 1):
        seed = one.settings.recipe.seed
        which = f"seed {seed}" if one.repeat == seed else f"repetition {one.repeat}"
        outcome = "done" if not error else "the same error" if error == said else with_flags(error)
        print(f"[{done}/{len(planned)}] {one.label} {which}: {outcome}", flush=True)
        if error:
            failed.append(one)
            said = error
        elif results is not None:
            results.write()
    return failed


def do_run(one: PlannedRun) -> str | None:
    """One run in whatever process; returns what went wrong, or None. A run that is done is not done again."""
    from covey.cli.search import is_tried, try_out

    try:
        with locked(one.folder):
            if one.trial:
                if not is_tried(one):
                    try_out(one)
                return None
            if _is_done(one):
                return None
            history, data = run.train(one.settings, one.folder, resume=True)
            run.score(one.folder, history.ensemble, data, corruptions=one.corruptions)
            if one.collapsed and history.ensemble.members > 1:
                run.score_collapsed(one.folder, history.ensemble, data)
            run.measure_cost(one.folder, history.ensemble, data)
    except (CoveyError, OSError) as error:
        return " ".join((reason(error) if isinstance(error, OSError) else str(error)).split())
    return None


def _is_done(one: PlannedRun) -> bool:
    """Whether the run was done with these settings; its cost is written last."""
    if not has_ended(one):
        return False
    found = run.settings_of(run.read_settings(one.folder))
    return replace(found, machine=one.settings.machine) == one.settings


def has_ended(one: PlannedRun) -> bool:
    """Whether a run with whatever settings lies in the folder, scored and measured."""
    return (one.folder / run.COST).exists()


def _tell(planned: Sequence[PlannedRun], folder: Path, baseline: str | None, flatness: int) -> None:
    """Print the main scores of all runs, write one page about them, and say where it is."""
    from covey.report import write
    from covey.report.brief import brief

    runs = [run.result(one.folder, one.label, one.repeat) for one in planned]
    if flatness:
        runs = [
            replace(each, landscape={"flatness": _flatness(one, flatness)})
            for each, one in zip(runs, planned, strict=True)
        ]
    print(f"\n{brief(runs, baseline=baseline)}\n")
    print(f"report: {write(runs, folder, baseline=baseline)}")


def _flatness(one: PlannedRun, samples: int) -> dict[str, list[float]]:
    """The rise of the loss under noise on the weights of a run's first member."""
    from covey.scores.landscape import flatness

    data = one.settings.dataset.load()
    inputs, labels = data.prepare(data.test.inputs[:samples]), data.test.targets[:samples]
    code = one.settings.network.network if one.settings.network.code else None
    return flatness(run.read_ensemble(one.folder, code).member(0), inputs, labels)


def _one_by_one(planned: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, str | None]]:
    for one in planned:
        yield one, do_run(one)


def _in_processes(planned: Iterable[PlannedRun], jobs: int) -> Iterator[tuple[PlannedRun, str | None]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(do_run, _quiet(one)): one for one in planned}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _on_ray(planned: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, str | None]]:
    try:
        ray = load("ray")
    except ImportError as error:
        raise OptionError("--ray needs the package ray; pip install covey[ray].") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    remote = ray.remote(max_retries=2)(do_run)
    waiting = {remote.remote(_quiet(one)): one for one in planned}
    left = list(waiting)
    try:
        while left:
            (ready,), left = ray.wait(left)
            yield waiting[ready], ray.get(ready)
    finally:
        ray.shutdown()


def _quiet(one: PlannedRun) -> PlannedRun:
    """The run without a progress bar, for another process, which may stand in another folder."""
    machine = replace(one.settings.machine, progress=False)
    return replace(one, settings=replace(one.settings, machine=machine), folder=one.folder.resolve())


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


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in ".-=" else "_" for c in label)
