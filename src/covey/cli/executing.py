"""Does planned runs one after another, in processes, or on a Ray cluster, and keeps their results."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from covey.cli import results as stored
from covey.cli import run
from covey.cli.around import Around
from covey.cli.planned import PlannedRun, file_name, is_done, longest_first, missing_scores
from covey.cli.spoken import with_flags
from covey.data import Data
from covey.ensemble import Ensemble
from covey.errors import CoveyError, OptionError, reason
from covey.extras import load
from covey.locks import locked
from covey.report import Run


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
            if found is not None and stored.is_of(found, one.settings) and stored.has(found, one):
                self.entries[one.folder] = found

    def write(self) -> None:
        """Write the results of all runs that are done; what is known of a run is not read again."""
        for one in self.planned:
            if one.folder not in self.entries and is_done(one):
                self.entries[one.folder] = stored.entry(one.label, one.repeat, one.folder)
        runs = [self.entries[one.folder] for one in self.planned if one.folder in self.entries]
        stored.write(Path(self.path), self.name, self.about, self.command, runs, len(self.planned))


def execute(
    planned: Sequence[PlannedRun],
    folder: Path,
    *,
    jobs: int = 1,
    ray: bool = False,
    baseline: str | None = None,
    around: Around | None = None,
    pdf: bool = False,
    results: Results | None = None,
) -> int:
    """Do all runs, those that are done already excepted, and write results and the report. 1 if a run failed."""
    way = way_of_running(jobs=jobs, ray=ray)
    with locked(folder, what="comparison"):
        failed = _do_all(way, planned, results)
        finished = [one for one in planned if one not in failed]
        for data, runs in _by_data(finished).items():
            place = folder if len(_by_data(finished)) == 1 else folder / file_name(data)
            _tell(runs, place, baseline=baseline, around=around or Around(), pdf=pdf)
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
            if is_done(one):
                return None
            history, data = run.train(one.settings, one.folder, resume=True)
            _score(one, history.ensemble, data)
    except (CoveyError, OSError) as error:
        return " ".join((reason(error) if isinstance(error, OSError) else str(error)).split())
    return None


def _score(one: PlannedRun, ensemble: Ensemble, data: Data) -> None:
    """Compute what is asked for and not there yet; the cost is measured last."""
    missing = missing_scores(one)
    if run.SCORES in missing:
        run.score(one.folder, ensemble, data, corruptions=one.corruptions)
    if run.SUBSETS in missing:
        run.score_subsets(one.folder, ensemble, data)
    if run.COLLAPSED in missing:
        run.score_collapsed(one.folder, ensemble, data)
    if run.COST in missing:
        run.measure_cost(one.folder, ensemble, data)


def _tell(
    planned: Sequence[PlannedRun], folder: Path, *, baseline: str | None, around: Around, pdf: bool
) -> None:
    """Print the main scores of all runs, write one page about them, and say where it is."""
    from covey.report import write
    from covey.report.brief import brief

    runs = [run.result(one.folder, one.label, one.repeat) for one in planned]
    if around.asked:
        runs = [_with_landscape(each, one, around) for each, one in zip(runs, planned, strict=True)]
    print(f"\n{brief(runs, baseline=baseline)}\n")
    print(f"report: {write(runs, folder, baseline=baseline, pdf=pdf)}")


def _with_landscape(found: Run, one: PlannedRun, around: Around) -> Run:
    """The run with what was computed around its members; a network that cannot be asked so is said, and left out."""
    try:
        return replace(found, landscape=around.found(one))
    except (CoveyError, RuntimeError, ValueError) as error:
        print(
            f"{one.label}, repetition {one.repeat}: no loss around its members: {' '.join(str(error).split())}"
        )
        return found


def _one_by_one(planned: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, str | None]]:
    for one in planned:
        yield one, do_run(one)


def _in_processes(planned: Iterable[PlannedRun], jobs: int) -> Iterator[tuple[PlannedRun, str | None]]:
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_end_with_parent) as pool:
        waiting = {pool.submit(do_run, _quiet(one)): one for one in longest_first(planned)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _end_with_parent() -> None:
    """Leave nothing behind: a process whose parent is killed ends too. Its run goes on from the last checkpoint."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


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
