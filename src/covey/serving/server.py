"""The service as a process: a socket, uvicorn, and an end that finishes what was accepted."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from covey.errors import OptionError
from covey.serving.limits import Limits

IDLE_SECONDS = 10.0
"""After which a connection is closed that has sent no whole head of a request."""
MOST_HEAD = 1 << 16
"""Bytes of a request's head."""


def bind(host: str, port: int) -> socket.socket:
    """A socket of a host and port; 0 takes a free port."""
    if not 0 <= port <= 65535:
        raise OptionError(f"--port is a number from 0 (any free one) to 65535; got {port}.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, number)
    except OSError as error:
        raise OptionError(f"--host {host!r} is no address of this machine: {error.strerror}.") from error
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        # Listening tells apart a port that somebody else has, where binding alone does not.
        found.listen(2048)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"port {port} of {host} is in use; name another with --port, or --port 0 for any free one."
            ) from error
        raise OptionError(f"cannot listen at port {port} of {host}: {error.strerror}.") from error
    return found


def serve(app: FastAPI, place: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=int(limits.seconds) + 5,
    )
    with _ending_quietly():
        uvicorn.Server(config).run(sockets=[place])


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more; by then the work is done, and it means nothing."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_Http: Any = AutoHTTPProtocol  # httptools' where it is installed, which is faster, else h11's


class _Protocol(_Http):
    """HTTP that does not wait for ever for the head of a request, nor read one without end."""

    def connection_made(self, transport: Any) -> None:
        """Look after the connection from now on."""
        super().connection_made(transport)
        self._seen: Any = None
        self._head = 0
        self._watch = self.loop.call_later(IDLE_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Close the connection if a head does not end."""
        super().data_received(data)
        self._head = self._head + len(data) if self._resting() else 0
        if self._head > MOST_HEAD:
            self.transport.close()

    def _resting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _look(self) -> None:
        """Close the connection if no request has begun since the last look and none is being answered."""
        if self._resting() and self.cycle is self._seen:
            self.transport.close()
            return
        self._seen = self.cycle
        self._watch = self.loop.call_later(IDLE_SECONDS, self._look)
