"""The same application on Ray Serve: several replicas behind one address."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from covey.errors import OptionError
from covey.extras import load
from covey.options import check_whole
from covey.serving.limits import Limits
from covey.serving.server import bind

_NAME = "covey"  # of the application on the cluster
_AT_ONCE = 256  # requests that a replica takes on at once, so that its batches fill


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many processes answer on Ray Serve.

    Args:
        replicas: processes that answer, each with the whole ensemble; with --ray.
        most_replicas: as many as there may be under load, where the number adapts to it; with --ray.
    """

    replicas: int = 1
    most_replicas: int | None = None

    def __post_init__(self) -> None:
        check_whole("--replicas", self.replicas)
        if self.most_replicas is not None and self.most_replicas < self.replicas:
            raise OptionError(
                f"--most-replicas {self.most_replicas} is less than --replicas {self.replicas}; name at least as many."
            )

    @property
    def options(self) -> dict[str, Any]:
        """As Ray Serve takes it."""
        if self.most_replicas is None:
            return {"num_replicas": self.replicas}
        return {"autoscaling_config": {"min_replicas": self.replicas, "max_replicas": self.most_replicas}}


@contextlib.contextmanager
def on_ray(
    build: Callable[[], FastAPI], host: str, port: int, *, replicas: Replicas, limits: Limits
) -> Iterator[tuple[str, int]]:
    """The application on Ray Serve, at $RAY_ADDRESS or on this machine alone, until the context ends.

    Args:
        build: makes the application, in every replica.
        host: address to listen at.
        port: 0 takes a free one.
        replicas: how many there are.
        limits: of the application.
    """
    # Ray tells its makers about its use unless somebody says otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with bind(host, port) as place:  # says at once if the port is in use
        port = place.getsockname()[1]
    ray, serve = load("ray"), load("ray.serve")
    local = {"num_cpus": max(os.cpu_count() or 1, replicas.most_replicas or replicas.replicas)}
    ray.init(
        log_to_driver=False,
        include_dashboard=False,
        logging_level="ERROR",
        **({} if os.environ.get("RAY_ADDRESS") else local),
    )

    def made() -> FastAPI:  # Ray tells a function, which it calls in the replica, from an application
        return build()

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        serve.start(http_options={"host": host, "port": port}, logging_config=_QUIET)
        deployment = serve.deployment(
            serve.ingress(made)(),
            name=_NAME,
            max_ongoing_requests=_AT_ONCE,
            graceful_shutdown_timeout_s=limits.seconds + 5,
            logging_config=_QUIET,
            **replicas.options,
        )
        serve.run(deployment.bind(), name=_NAME, logging_config=_QUIET)
        yield host, port
    finally:
        serve.shutdown()
        ray.shutdown()


_QUIET = {"log_level": "ERROR", "enable_access_log": False}


def wait_for_the_end() -> None:
    """Until SIGTERM or SIGINT."""
    over = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: over.set()) for number in numbers}
    try:
        over.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
