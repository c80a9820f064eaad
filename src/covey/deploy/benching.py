"""`bench`: what each form of an ensemble costs here, over the eager single network, measured in turns in one run."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covey.deploy.exporting import export
from covey.deploy.fusing import fuse
from covey.deploy.int8 import processor_has_vnni
from covey.deploy.session import DeployedEnsemble
from covey.deploy.tracing import Example
from covey.ensemble import Ensemble
from covey.errors import CoveyError, OptionError
from covey.options import check_whole
from covey.scores.cost import peak_bytes, stored_bytes, using_threads
from covey.tables import counted, text_table

BATCHES = (1, 8, 32)
NETWORK = "network"
"""The eager single network, which all are compared with."""

_CHECKED = 16  # samples that files are compared on
_REST = (
    0.01  # seconds in which ONNX Runtime's threads, which wait for work by spinning, let go of the processor
)
_TURN = 0.01  # seconds that a turn takes at least
_MOST_CALLS = 1000  # in a turn
_LONGEST = 20.0  # seconds after which forms take no further turn, if they had `_FEWEST`
_FEWEST = 3


@dataclass(frozen=True)
class Form:
    """A way to answer.

    Args:
        call: answers a batch.
        weight_bytes: of its weights in memory, or of its file.
        peak_bytes: most memory in tensors alive at once on the largest batch; None where torch does not see it.
    """

    call: Callable[[Example], Any]
    weight_bytes: int
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """One form at one batch size.

    Args:
        form: its name.
        batch: samples in a batch.
        seconds: of the fastest turn.
        ratio: over the eager single network's.
        throughput: samples in a second.
        weight_bytes: as in `Form`.
        peak_bytes: as in `Form`.
    """

    form: str
    batch: int
    seconds: float
    ratio: float
    throughput: float
    weight_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Bench:
    """What each form costs.

    Args:
        rows: one for each form and batch size.
        missing: the forms that are not possible, and why.
        threads: that answered.
        repeats: turns, of which the fastest counts.
        vnni: whether this processor sums 8-bit products in one instruction.
    """

    rows: tuple[Row, ...]
    missing: dict[str, str]
    threads: int
    repeats: int
    vnni: bool

    @property
    def best(self) -> str:
        """The ensemble's form that is fastest over all batch sizes, by the geometric mean of its ratios."""
        logs: dict[str, float] = {}
        for row in self.rows:
            if row.form != NETWORK:
                logs[row.form] = logs.get(row.form, 0.0) + math.log(row.ratio)
        return min(logs, key=lambda form: logs[form])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "best": self.best}

    def __str__(self) -> str:
        return "\n".join([self._heading(), "", self._table(), *self._reasons(), "", self._sentence()])

    def _of(self, form: str) -> list[Row]:
        return [row for row in self.rows if row.form == form]

    def _heading(self) -> str:
        own = self._of(NETWORK)
        times = listed(f"{1000 * row.seconds:.3g}" for row in own)
        batches = listed(str(row.batch) for row in own)
        threads = counted(self.threads, "thread")
        return (
            f"Times over the eager single network's, which takes {times} ms at batch {batches}.\n"
            f"Fastest of {self.repeats} turns, {threads}, {'with' if self.vnni else 'without'} VNNI."
        )

    def _table(self) -> str:
        forms = list(dict.fromkeys(row.form for row in self.rows))
        headings = ["form", *(f"batch {row.batch}" for row in self._of(NETWORK))]
        headings += ["samples/s", "weights MB", "peak MB"]
        cells = []
        for form in forms:
            rows = self._of(form)
            last = rows[-1]
            peak = "-" if last.peak_bytes is None else f"{last.peak_bytes / 1e6:.2f}"
            ratios = [f"{row.ratio:.2f}" for row in rows]
            cells.append((form, *ratios, f"{last.throughput:.0f}", f"{last.weight_bytes / 1e6:.2f}", peak))
        return text_table(headings, cells, right=headings[1:])

    def _reasons(self) -> list[str]:
        return [f"{form} is not possible: {why}" for form, why in self.missing.items()]

    def _sentence(self) -> str:
        rows = self._of(self.best)
        ratios = listed(f"{row.ratio:.2f}" for row in rows)
        batches = listed(str(row.batch) for row in rows)
        return (
            f"Best here: {self.best}, which takes {ratios} of the single network's time at batch {batches}."
        )


def bench(
    ensemble: Ensemble,
    network: nn.Module,
    inputs: Any,
    *,
    batches: Sequence[int] = BATCHES,
    threads: int | None = None,
    repeats: int = 7,
    compiled: bool = False,
    int8: Any = None,
    int8_limit: float = 0.005,
) -> Bench:
    """Time every form of an ensemble on this machine, against the eager single network.

    Args:
        ensemble: what `convert`, `fit` or `load` gave.
        network: the single network, whose weights do not matter.
        inputs: real inputs as the network takes them; repeated where the largest batch needs more.
        batches: samples that are answered at once.
        threads: of torch and of ONNX Runtime; torch's own number by default.
        repeats: turns, of which the fastest counts.
        compiled: whether the fused module is also compiled by torch.compile, which takes minutes.
        int8: calibration inputs; without them there is no int8 form.
        int8_limit: as in `covey.export`.
    """
    check_whole("repeats", repeats)
    for batch in batches:
        check_whole("batches", batch)
    if not batches:
        raise OptionError("batches names no batch size; give at least one, such as 32.")
    with ensemble.evaluating(), using_threads(threads) as used, tempfile.TemporaryDirectory() as folder:
        example = repeated(Example.of(network, inputs), max(batches))
        found, missing = forms(
            ensemble, example, Path(folder), threads=used, compiled=compiled, int8=int8, int8_limit=int8_limit
        )
        found = {NETWORK: single(network.eval(), example), **found}
        rows = measured(found, example, batches=batches, repeats=repeats, reference=NETWORK)
    return Bench(tuple(rows), missing, used, repeats, processor_has_vnni())


def single(network: nn.Module, example: Example) -> Form:
    """A plain network as torch runs it."""
    return _of_torch(network, lambda batch: network(*batch.args, **batch.kwargs), example)


def forms(
    ensemble: Ensemble,
    example: Example,
    folder: Path,
    *,
    threads: int,
    compiled: bool = False,
    int8: Any = None,
    int8_limit: float = 0.005,
    among: Sequence[str] | None = None,
) -> tuple[dict[str, Form], dict[str, str]]:
    """The forms of an ensemble, and why those that are missing are not possible. Files go to the folder.

    Args:
        ensemble: in eval mode.
        example: of the largest batch.
        folder: for files.
        threads: of ONNX Runtime.
        compiled: whether the fused module is compiled too.
        int8: calibration inputs.
        int8_limit: as in `export`.
        among: names of the forms to make; all if not given.
    """
    given = example.first(_CHECKED)
    as_given = given.args if given.args else given.kwargs

    def fused() -> Form:
        module = fuse(ensemble, example.args or example.kwargs)
        return _of_torch(module, lambda batch: module(*batch.tensors), example)

    def of_file(name: str, **options: Any) -> Form:
        written = export(ensemble, folder / name, as_given, **options)
        deployed = DeployedEnsemble(written.path, threads=threads)
        return Form(lambda batch: deployed(*(tensor.numpy() for tensor in batch.tensors)), written.bytes)

    def quantised() -> Form:
        if int8 is None:
            raise OptionError("it takes calibration inputs, and none were given.")
        return of_file("int8.onnx", int8=int8, int8_limit=int8_limit)

    ways: dict[str, Callable[[], Form]] = {
        "eager": lambda: _of_torch(
            ensemble, lambda batch: ensemble.predict(*batch.args, **batch.kwargs), example
        ),
        "fused": fused,
        "onnx": lambda: of_file("float.onnx"),
        "int8": quantised,
    }
    if compiled:
        ways["compiled"] = lambda: _compiled(ensemble, example)
    found, missing = {}, {}
    for name, make in ways.items():
        if among is not None and name not in among:
            continue
        try:
            found[name] = make()
        except CoveyError as error:
            missing[name] = str(error)
    return found, missing


def _of_torch(module: nn.Module, call: Callable[[Example], Any], example: Example) -> Form:
    with torch.inference_mode():
        call(example)  # here an ensemble chooses how it runs
        peak = peak_bytes(module, example.tensors[0], call=lambda: call(example))
    return Form(call, stored_bytes(module), peak)


def _compiled(ensemble: Ensemble, example: Example) -> Form:
    module = fuse(ensemble, example.args or example.kwargs)
    faster = torch.compile(module)
    try:
        with torch.inference_mode():
            faster(*example.tensors)
    except Exception as error:  # a compiler that is missing, and whatever inductor cannot do
        said = " ".join(str(error).split())[:200]
        raise OptionError(f"torch.compile failed: {type(error).__name__}: {said}") from error
    return Form(lambda batch: faster(*batch.tensors), stored_bytes(module))


def repeated(example: Example, count: int) -> Example:
    """The first so many samples, beginning anew where they end."""
    rows = torch.arange(count) % example.batch
    return example.changed(lambda tensor: tensor[rows])


def measured(
    ways: Mapping[str, Form], example: Example, *, batches: Sequence[int], repeats: int, reference: str
) -> list[Row]:
    """A row for every form at every batch size, with ratios to the form of reference."""
    rows = []
    for batch in batches:
        part = example.first(batch)
        calls = {name: partial(form.call, part) for name, form in ways.items()}
        with torch.inference_mode():
            seconds = in_turns(calls, repeats=repeats)
        for name, form in ways.items():
            own = seconds[name]
            ratio = own / seconds[reference]
            rows.append(Row(name, batch, own, ratio, batch / own, form.weight_bytes, form.peak_bytes))
    return rows


def in_turns(calls: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, float]:
    """Seconds of each call in its fastest turn; they take turns, so that other work on the machine meets all alike.

    Slow calls have three turns at least, and no more of them once 20 seconds are over.
    """
    counts = {key: _calls_in_a_turn(call) for key, call in calls.items()}
    best = dict.fromkeys(calls, math.inf)
    begin = time.perf_counter()
    for turn in range(repeats):
        if turn >= _FEWEST and time.perf_counter() - begin > _LONGEST:
            break
        for key, call in calls.items():
            time.sleep(_REST)
            if counts[key] > 1:
                call()  # the first after a rest is slower
            start = time.perf_counter()
            for _ in range(counts[key]):
                call()
            best[key] = min(best[key], (time.perf_counter() - start) / counts[key])
    return best


def _calls_in_a_turn(call: Callable[[], Any]) -> int:
    call()
    start = time.perf_counter()
    call()
    seconds = max(time.perf_counter() - start, 1e-9)
    return max(1, min(_MOST_CALLS, int(_TURN / seconds)))


def listed(words: Iterable[str]) -> str:
    """Words with commas, and an "and" before the last.

    >>> listed(["1", "8", "32"])
    '1, 8 and 32'
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
