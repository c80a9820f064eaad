"""compare(): several methods and seeds on one's own network and data, as a table and as a report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey import registry
from covey.data import Data, adapt
from covey.ensemble import Ensemble
from covey.errors import DataError, OptionError
from covey.method import Method, Training
from covey.scores import Cost, Evaluation, evaluate, measure_cost
from covey.seeds import random_state_kept
from covey.train import History, Machine, Recipe, fit

from .brief import brief
from .results import Run, gather

_BATCH = 32  # samples that costs are measured on
_log = logging.getLogger("covey")


@dataclass(frozen=True)
class ComparisonTable:
    """What `compare` found: prints as a table, and writes a report when it is asked to.

    Args:
        runs: every run, evaluated.
        baseline: the method that the others are compared with; None for the first with one member.
    """

    runs: tuple[Run, ...]
    baseline: str | None = None

    def __str__(self) -> str:
        return brief(self.runs, baseline=self.baseline)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(run.method for run in self.runs))
        return f"ComparisonTable({methods}; {len(self.runs)} runs)"

    def __getitem__(self, method: str) -> dict[str, float]:
        """A method's scores and costs by name, each the mean over its seeds."""
        for found in gather(self.runs, self.baseline).methods:
            if found.name == method:
                names = dict.fromkeys(name for run in found.runs for name in run.numbers)
                means = {name: found.summary(name) for name in names}
                return {name: summary.mean for name, summary in means.items() if summary is not None}
        known = ", ".join(dict.fromkeys(run.method for run in self.runs))
        raise KeyError(f"{method!r} was not compared; there are {known}")

    def report(self, folder: str | Path, *, title: str = "Comparison of ensembles") -> Path:
        """Write report.html, report.md and their figures to a folder, and return the page's path."""
        from covey.report import write

        return write(self.runs, folder, title=title, baseline=self.baseline)


def compare(
    network: nn.Module | Callable[[], nn.Module],
    methods: Sequence[Any] | Mapping[str, Any],
    data: Any,
    recipe: Recipe | Mapping[str, Recipe] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    machine: Machine | None = None,
    folder: str | Path | None = None,
    baseline: str | None = None,
) -> ComparisonTable:
    """Train a network by several methods and seeds on the same data, and compare them on the test data.

    Args:
        network: your network, with which every run begins; or a function that makes one, which is called for every run
            with torch's random numbers seeded, so that seeds differ in their first weights too.
        methods: names, with options if need be ("packed:alpha=2"), or methods with options; or a dict of these by the
            names that the table shows.
        data: as in `covey.fit`, with a test part: {"train": ..., "test": ...}, a known set.
        recipe: how to train; or one for each name of the table, since the best learning rates differ.
        seeds: one run of each method for each.
        machine: where to train.
        folder: where to keep every run; the same call goes on with what is there.
        baseline: the name that the others are compared with; the first with one member if None.
    """
    chosen = _named(methods)
    if isinstance(seeds, int):
        raise OptionError(f"seeds is a list of them, such as range({seeds}); got {seeds}.")
    if not chosen or not seeds:
        raise OptionError("compare needs at least one method and one seed.")
    if baseline is not None and baseline not in chosen:
        raise OptionError(f"baseline is one of {', '.join(map(repr, chosen))}; got {baseline!r}.")
    recipes = {label: _recipe(recipe, label) for label in chosen}
    found = adapt(data)
    if found.test.by_number and not len(found.test):
        raise DataError(
            "methods are compared on test data, and the data have none: give {'train': ..., 'test': ...}."
        )
    runs = []
    for label, method in chosen.items():
        for seed in seeds:
            place = None if folder is None else Path(folder) / f"{_file_name(label)}-{seed}"
            own = replace(recipes[label], seed=seed)
            runs.append(_run(label, method, _made(network, seed), found, own, machine, place))
            _log.info("compare: %s, seed %d is done", label, seed)
    return ComparisonTable(tuple(runs), baseline)


def _run(
    label: str,
    method: Method | Training | None,
    network: nn.Module,
    data: Data,
    recipe: Recipe,
    machine: Machine | None,
    folder: Path | None,
) -> Run:
    started = time.perf_counter()
    history = fit(
        network, data, recipe, method=method, machine=machine, folder=folder, resume=folder is not None
    )
    seconds = time.perf_counter() - started
    evaluation: Evaluation = evaluate(history.ensemble, data, folder=folder)
    return Run(
        method=label,
        seed=recipe.seed,
        evaluation=evaluation,
        cost=_cost(history, data, seconds),
        history=history.rows,
        settings={"method": repr(method), "recipe": asdict(recipe)},
    )


def _cost(history: History, data: Data, seconds: float) -> Cost | None:
    """What an answer costs; None where inputs are several tensors, for which it is not measured."""
    test = data.test
    raw = test.read(torch.arange(min(_BATCH, len(test))))[0] if test.by_number else test.example()
    example = data.prepare(raw)
    if not isinstance(example, Tensor):
        return None
    device = next(history.ensemble.parameters()).device
    return measure_cost(
        history.ensemble, example.to(device), repeats=5, warmup=1, training_seconds=round(seconds, 1)
    )


def _named(methods: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Methods by the names that the table shows."""
    if isinstance(methods, str) or not isinstance(methods, Sequence | Mapping):
        raise OptionError(f"methods is a list of names or methods, or a dict of them; got {methods!r}.")
    named = methods.items() if isinstance(methods, Mapping) else [(_label(each), each) for each in methods]
    found: dict[str, Any] = {}
    for label, method in named:
        if label in found:
            raise OptionError(f"two methods are called {label!r}; give them names: {{'name': method, ...}}.")
        found[label] = registry.parsed(method) if isinstance(method, str) else method
    return found


def _label(method: Any) -> str:
    if isinstance(method, str):
        return method.replace(":", " ").replace(",", " ")
    return "single" if method is None else type(method).__name__


def _recipe(given: Recipe | Mapping[str, Recipe] | None, label: str) -> Recipe:
    if not isinstance(given, Mapping):
        return given or Recipe()
    if label not in given:
        raise OptionError(f"recipe has none for {label!r}; it has {', '.join(map(repr, given))}.")
    return given[label]


def _made(network: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    if isinstance(network, Ensemble):
        raise OptionError(
            "network is an ensemble already; compare makes one of a plain network by every method."
        )
    if isinstance(network, nn.Module):
        return network
    if not callable(network):
        raise OptionError(f"network is a torch.nn.Module, or a function that makes one; got {network!r}.")
    with random_state_kept(seed=seed):
        made = network()
    if not isinstance(made, nn.Module):
        raise OptionError(f"network() is to return a torch.nn.Module; got {type(made).__name__}.")
    return made


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in ".-=" else "_" for c in label)
