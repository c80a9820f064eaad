"""Many runs, then one report: `covey compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from covey.cli import recipes, run
from covey.cli.around import Around
from covey.cli.executing import Results, execute, way_of_running
from covey.cli.flags import UsageError, parse
from covey.cli.idle import check_idle
from covey.cli.planned import CompareFlags, PlannedRun, check_shared, from_recipe, planned_runs
from covey.cli.settings import Settings, is_table
from covey.cli.train import check_typed, flag_value, usual_settings
from covey.errors import suggest
from covey.locks import locked
from covey.options import check_whole


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
        around=Around(own.flatness, own.interpolation),
        pdf=own.pdf,
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
    counts = {
        "--corruptions": own.corruptions,
        "--flatness": own.flatness,
        "--interpolation": own.interpolation,
    }
    for flag, count in counts.items():
        if count < 0:
            raise UsageError(f"{flag} is a number of test samples, 0 or more; got {count}.")
    if own.corruptions and is_table(base.dataset.data):
        raise UsageError(f"--corruptions is for images, and {base.dataset.data} is a table; leave it out.")
    if own.interpolation == 1:
        raise UsageError(
            "--interpolation needs two test samples or more: norms use the batch's own statistics."
        )
    _check_tasks(own, planned)
    if (Path(own.folder) / run.SETTINGS).exists():
        raise UsageError(f"{own.folder} is the folder of a run; a comparison needs one of its own.")


def _check_tasks(own: CompareFlags, planned: Sequence[PlannedRun]) -> None:
    """Refuse what has no meaning for the task of one of the data sets."""
    asked = {
        "--flatness": (own.flatness, ("classification",)),
        "--interpolation": (own.interpolation, ("classification",)),
        "--subsets": (own.subsets, ("classification", "regression", "segmentation")),
    }
    asked = {flag: (value, tasks) for flag, (value, tasks) in asked.items() if value}
    if not asked:
        return
    sets = {one.settings.dataset.data: one.settings.dataset for one in planned}
    for name, dataset in sets.items():
        task = dataset.load().task
        for flag, (_, tasks) in asked.items():
            if task not in tasks:
                raise UsageError(
                    f"{flag} is for {' and '.join(tasks)}, and {name} is for {task}; leave it out."
                )
