"""Several processes of one run: when one of them ends before its time, the others say which, and end too.

Without this, a process that waits for another one waits for half an hour, and then ends with an error of the network
library.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from covey.errors import CoveyError, TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_LAUNCHER = "COVEY_LAUNCHER"  # the first process's number, for those that it starts
PAUSE = 0.5  # seconds between two looks
GRACE = 3.0  # seconds in which the main thread may find out by itself, and raise
_ADVICE = "What was trained until the last checkpoint is kept: start it again with --resume (resume=True)."


class Watch:
    """A thread that looks whether the other processes of the run are there, as far as they are on this machine.

    It begins before the processes know each other: then a process that was started knows the one that started it, and
    that one its children.
    """

    def __init__(self, rank: int, fabric: Fabric) -> None:
        self.rank, self.fabric = rank, fabric
        self.peers: dict[int, int] = {}  # rank -> process
        launcher = os.environ.get(_LAUNCHER, "")
        if rank > 0 and launcher.isdecimal():
            self.peers[0] = int(launcher)
        self.over = threading.Event()
        threading.Thread(target=self._look, name="covey-watch", daemon=True).start()

    def meet(self) -> None:
        """Let all processes know each other, now that they can talk."""
        own = (self.rank, socket.gethostname(), os.getpid())
        everyone: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(everyone, own)
        self.peers = {
            rank: process for rank, host, process in everyone if host == own[1] and rank != self.rank
        }

    def lost(self) -> str | None:
        """Which process has ended, in words; None if all that are known are there."""
        known = self.peers or self._children()
        for rank, process in known.items():
            if not is_alive(process):
                return f"rank {rank} of this run (process {process}) has ended"
        return None

    def _children(self) -> dict[int, int]:
        """The processes that this one started, which are its first ranks."""
        launcher = getattr(self.fabric.strategy, "launcher", None)
        started = list(getattr(launcher, "procs", ()))
        return {self.rank + i: process.pid for i, process in enumerate(started, 1)}

    def _look(self) -> None:
        while not self.over.wait(PAUSE):
            found = self.lost()
            if found is not None and not self.over.wait(GRACE):
                print(
                    f"covey: error: {found}, so rank {self.rank} ends too. {_ADVICE}",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(2)


@contextmanager
def launched(fabric: Fabric) -> Iterator[Watch]:
    """Start the processes of a run, and watch them until the block ends."""
    first = "LOCAL_RANK" not in os.environ
    if first:
        os.environ[_LAUNCHER] = str(os.getpid())
    watch = Watch(_rank(), fabric)
    try:
        with explained(watch):
            fabric.launch()
            watch.rank = fabric.global_rank
            watch.meet()
            yield watch
    finally:
        watch.over.set()
        if first:
            os.environ.pop(_LAUNCHER, None)


@contextmanager
def explained(watch: Watch) -> Iterator[None]:
    """Turn what the network library says when a process is gone into a sentence."""
    try:
        yield
    except CoveyError:
        raise
    except Exception as error:
        found = _waited(watch)
        if found is None and not _is_network(error):
            raise
        found = found or "another process of this run has ended, or cannot be reached"
        watch.over.set()
        raise TrainingError(f"{found}, so rank {watch.rank} ends too. {_ADVICE}") from error


def _waited(watch: Watch) -> str | None:
    """Who is gone; a process that was killed may take a moment to go."""
    until = time.monotonic() + GRACE / 2
    while True:
        found = watch.lost()
        if found is not None or time.monotonic() > until:
            return found
        time.sleep(0.05)


def _is_network(error: Exception) -> bool:
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()


def _rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def is_alive(process: int) -> bool:
    """Whether a process of this machine is there and has not ended; one that nobody has collected yet has."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
    if sys.platform == "win32":
        return True  # os.kill ends processes there; the network library finds out later
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
