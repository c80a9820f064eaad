"""Concurrent requests share batches: one thread runs the ensemble, on what has gathered meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey.serving.limits import Limits
from covey.serving.refusals import RefusedError

Columns = dict[str, list[Any]]
"""An answer by name, each with one entry per sample."""
Run = Callable[[Tensor, Sequence[int] | None, bool], Columns]
"""Inputs, members that answer (None: all), and whether each member's own answer is wanted."""


@dataclass(frozen=True)
class _Job:
    """A request in the queue.

    Args:
        inputs: prepared, (N, ...).
        members: that answer; None for all.
        each: whether each member's own answer is wanted.
        arrived: by the monotonic clock.
        future: where the answer goes.
    """

    inputs: Tensor
    members: tuple[int, ...] | None
    each: bool
    arrived: float = field(default_factory=time.monotonic)
    future: Future[Columns] = field(default_factory=Future)


class Batcher:
    """Runs requests in batches, in one thread.

    Args:
        run: answers a batch.
        limits: of a batch and of the queue.
        ran: is told the samples and the seconds of each batch.
    """

    def __init__(self, run: Run, limits: Limits, ran: Callable[[int, float], None]) -> None:
        self._run, self._limits, self._ran = run, limits, ran
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="covey-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Samples in the queue."""
        return self._waiting

    def submit(self, inputs: Tensor, members: tuple[int, ...] | None = None, *, each: bool = False) -> Future:
        """Put prepared inputs, (N, ...), into the queue; the answer comes to the future."""
        job = _Job(inputs, members, each)
        with self._changed:
            if self._closed:
                raise RefusedError(503, "the service is shutting down", retry_after=1)
            if self._waiting + len(inputs) > self._limits.queue:
                raise RefusedError(
                    503,
                    f"{self._waiting} samples wait, and the queue holds at most {self._limits.queue}; come again",
                    retry_after=1,
                )
            self._jobs.append(job)
            self._waiting += len(inputs)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Take nothing more, finish what was accepted, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._gathered():
            # What its client has given up is not run.
            wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _gathered(self) -> list[_Job]:
        """The next batch; none when the work is done."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if not self._jobs:
                return []
            first = self._jobs.popleft()
            batch = [first]
            size = len(first.inputs)
            until = first.arrived + self._limits.wait_ms / 1000
            while True:
                size = self._joined(batch, size)
                left = until - time.monotonic()
                if size >= self._limits.batch or left <= 0 or self._closed:
                    break
                self._changed.wait(left)
            self._waiting -= size
            return batch

    def _joined(self, batch: list[_Job], size: int) -> int:
        """Move jobs that run with the same members out of the queue into the batch; its new size."""
        later: list[_Job] = []
        while self._jobs:
            job = self._jobs.popleft()
            if job.members != batch[0].members:
                later.append(job)
                continue
            if size + len(job.inputs) > self._limits.batch:
                later.append(job)
                break
            batch.append(job)
            size += len(job.inputs)
        self._jobs.extendleft(reversed(later))
        return size

    def _answer(self, jobs: list[_Job]) -> None:
        inputs = torch.cat([job.inputs for job in jobs])
        each = any(job.each for job in jobs)
        started = time.monotonic()
        try:
            answers: list[Columns] = []
            # A single request may be larger than a batch.
            for part in inputs.split(self._limits.batch):
                answers.append(self._run(part, jobs[0].members, each))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # so that only the one to blame fails
                self._answer([job])
            return
        self._ran(len(inputs), time.monotonic() - started)
        start = 0
        for job in jobs:
            end = start + len(job.inputs)
            job.future.set_result(_rows(answers, start, end))
            start = end


def _rows(answers: Sequence[Columns], start: int, end: int) -> Columns:
    """The samples of one request out of the answers to a batch."""
    found: Columns = {}
    for name in answers[0]:
        column = answers[0][name] if len(answers) == 1 else [v for part in answers for v in part[name]]
        found[name] = column[start:end]
    return found
