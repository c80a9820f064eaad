"""Every method on every network of the catalogue; writes the page that says which networks work.

    python tests/networks/sweep.py                                  # all, printed
    python tests/networks/sweep.py --only swin --methods packed     # some
    python tests/networks/sweep.py --write docs/networks.md         # all, and the page with its table
    python tests/networks/sweep.py --missing --write docs/networks.md        # what the table lacks

Each network runs in a process of its own with limits on time and memory. The table is kept as JSON beside the page;
cases that were run replace those in it.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from catalogue import Network, every
from page import written
from verdicts import VERDICTS, Verdict, judge, methods

SECONDS = 60.0  # of processor time, for one method on one network
PATIENCE = 10.0  # times as long on the clock, where the machine is busy
MEMORY = 8 * 2**30
DIED = "the process died"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 if anything is wrong, raises or is slow."""
    options = _parser().parse_args(arguments)
    chosen = [network for name, network in every().items() if re.search(options.only, name)]
    found: list[Verdict] = []
    table = Path(options.json) if options.json else None
    if options.write:
        table = table or Path(options.write).with_suffix(".json")
    known = {(case.network, case.method) for case in stored(table)} if options.missing and table else set()
    wanted = options.methods or methods()

    def judged(network: Network) -> list[Verdict]:
        left = [method for method in wanted if (network.name, method) not in known]
        return list(_judged(network, left, _print))

    with ThreadPoolExecutor(options.jobs) as pool:
        for verdicts in pool.map(judged, chosen):
            found += verdicts
            if table is not None:
                store(table, found)
    if options.write and table is not None:
        Path(options.write).write_text(written(stored(table), every()))
    counts = Counter(verdict.verdict for verdict in found)
    print(", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]) or "nothing to run")
    return int(any(counts[name] for name in ("wrong", "raises", "slow")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="networks whose name this matches")
    parser.add_argument("--methods", nargs="+", choices=methods(), help="these methods; all by default")
    parser.add_argument("--missing", action="store_true", help="only cases that the table lacks")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--write", metavar="PAGE", help="write the page, and its table beside it")
    parser.add_argument("--json", metavar="FILE", help="keep the table here")
    return parser


def _print(verdict: Verdict) -> None:
    reason = f"  {verdict.reason}" if verdict.reason else ""
    seconds = f"{verdict.convert_seconds:5.1f} s"
    print(f"{verdict.network:44} {verdict.method:15} {verdict.verdict:8} {seconds}{reason}", flush=True)


# --- a network in a process of its own --------------------------------------------------------------------


def _judged(network: Network, wanted: Sequence[str], tell: Callable[[Verdict], None]) -> Iterator[Verdict]:
    """The verdicts of some methods on a network; a worker that is stuck or dies is replaced."""
    left = list(wanted)
    while left:
        for unmarked in _until_stuck(network, left):
            verdict = replace(unmarked, commit=_commit(), day=str(datetime.date.today()))
            left.remove(verdict.method)
            tell(verdict)
            yield verdict


@functools.cache
def _commit() -> str:
    """The commit of the code that is run; nothing where git does not know."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _until_stuck(network: Network, wanted: Sequence[str]) -> Iterator[Verdict]:
    context = multiprocessing.get_context("fork")  # what was imported need not be imported again
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(network, wanted, theirs))
    worker.start()
    theirs.close()
    try:
        for method in wanted:
            verdict = _awaited(ours, worker, network, method)
            yield verdict
            if verdict.verdict == "slow" or verdict.reason.startswith(DIED):
                return
    finally:
        worker.kill()
        worker.join()


def _awaited(pipe: Connection, worker: Any, network: Network, method: str) -> Verdict:
    """The worker's next verdict, or that there is none in time."""
    start, busy = time.monotonic(), _processor_seconds(worker.pid)
    while True:
        try:
            if pipe.poll(1.0):
                return pipe.recv()
        except EOFError:
            worker.join(5)
            return Verdict(network.name, method, "raises", f"{DIED} with code {worker.exitcode}")
        spent = _processor_seconds(worker.pid) - busy
        if spent > SECONDS or time.monotonic() - start > PATIENCE * SECONDS:
            return Verdict(network.name, method, "slow", f"more than {SECONDS:.0f} s", seconds=SECONDS)


def _work(network: Network, wanted: Sequence[str], pipe: Connection) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # torch itself reports much of what it then raises
    for method in wanted:
        pipe.send(judge(network, method))
    pipe.close()


def _processor_seconds(pid: int | None) -> float:
    """How long a process has been running on a processor."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the table --------------------------------------------------------------------------------------------


def stored(table: Path) -> list[Verdict]:
    """The verdicts in a table."""
    if not table.exists():
        return []
    return [Verdict(**row) for row in json.loads(table.read_text())]


def store(table: Path, found: Sequence[Verdict]) -> None:
    """Put verdicts into a table, in place of older ones of the same cases, in the catalogue's order."""
    by_case = {(verdict.network, verdict.method): verdict for verdict in [*stored(table), *found]}
    rows = []
    for network in every():
        for method in methods():
            verdict = by_case.get((network, method))
            if verdict is not None:
                rows.append(json.dumps(asdict(verdict)))
    table.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    sys.exit(main())
