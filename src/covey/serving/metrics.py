"""What a service counts, as Prometheus reads it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Seconds, counted below fixed bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._sum += seconds
        for place, bound in enumerate(_BOUNDS):
            if seconds <= bound:
                self._counts[place] += 1
                return
        self._counts[-1] += 1

    def lines(self, name: str) -> Iterator[str]:
        """As text; each bound counts all that lies below it."""
        total = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts of requests, samples and batches; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._samples = self._batches = self._deferred = 0
        self._latency, self._batch_seconds = Histogram(), Histogram()

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is one of few, since each has a line of its own."""
        with self._lock:
            self._requests[path, status] += 1
            self._latency.add(seconds)

    def batch(self, samples: int, seconds: float) -> None:
        """Count a batch that ran."""
        with self._lock:
            self._batches += 1
            self._samples += samples
            self._batch_seconds.add(seconds)

    def deferred(self, count: int) -> None:
        """Count answers above the threshold."""
        with self._lock:
            self._deferred += count

    def text(self, waiting: int) -> str:
        """All counts in Prometheus's text format, version 0.0.4."""
        with self._lock:
            lines = [
                "# HELP covey_requests_total Requests by path and status.",
                "# TYPE covey_requests_total counter",
                *(
                    f'covey_requests_total{{path="{path}",status="{status}"}} {count}'
                    for (path, status), count in sorted(self._requests.items())
                ),
                *_single("covey_samples_total", "counter", "Samples that ran.", self._samples),
                *_single("covey_batches_total", "counter", "Batches that ran.", self._batches),
                *_single("covey_deferred_total", "counter", "Answers above the threshold.", self._deferred),
                *_single("covey_queue_samples", "gauge", "Samples that wait.", waiting),
                "# HELP covey_request_seconds Time from a request to its answer.",
                "# TYPE covey_request_seconds histogram",
                *self._latency.lines("covey_request_seconds"),
                "# HELP covey_batch_seconds Time that the ensemble ran for a batch.",
                "# TYPE covey_batch_seconds histogram",
                *self._batch_seconds.lines("covey_batch_seconds"),
            ]
        return "\n".join(lines) + "\n"


def _single(name: str, kind: str, told: str, value: int) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}", f"{name} {value}"]
