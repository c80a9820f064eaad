"""Damage stored files in thousands of ways and see what covey says: `python tests/fuzz/run.py --tries 10000 --seed 0`.

Every try damages a whole example (an ensemble's folder, a run's, a checkpoint, a recipe, a table, an array, an image,
an archive) in a way that its seed decides, and lets covey read it in another process, under limits of time and memory.
A try ends well if covey refuses with an error of its own, or reads what is still whole enough. It ends badly if another
exception comes out (raw), if it takes longer than the limit (hung), or if it asks for much memory (over).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
OUTCOMES = ("clear", "accepted", "raw", "hung", "over")
SHARES = {
    "ensembles": 34, "runs": 18, "checkpoints": 8, "weights": 5, "recipes": 10, "tables": 9, "arrays": 9, "images": 5,
    "archives": 2, "requests": 10,
}  # fmt: skip


class Worker:
    """The process that reads, started again when it had to be killed."""

    def __init__(self, folder: Path, seconds: float, gibibytes: float) -> None:
        self.folder, self.seconds, self.gibibytes = folder, seconds, gibibytes
        self.process: subprocess.Popen[str] | None = None
        self.ready: set[str] = set()

    def attempt(self, target: str, seed: int) -> dict[str, str]:
        """What came of one try."""
        if target not in self.ready:
            made = self._ask(f"{target} -", 300.0)
            if made["outcome"] != "ready":
                raise RuntimeError(f"the whole examples of {target} could not be made: {made}")
            self.ready.add(target)
        return self._ask(f"{target} {seed}", self.seconds)

    def _ask(self, line: str, seconds: float) -> dict[str, str]:
        if self.process is None:
            command = [sys.executable, "-u", str(HERE / "worker.py"), str(self.folder), str(self.gibibytes)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not self._answers(seconds):
            self.stop()
            return {"outcome": "hung", "how": "", "text": f"no answer after {seconds:g} seconds"}
        answer = self.process.stdout.readline()
        if not answer:
            code = self.process.wait()
            self.stop()
            return {"outcome": "raw", "how": "", "text": f"the process ended with code {code}"}
        return json.loads(answer)

    def _answers(self, seconds: float) -> bool:
        """Whether an answer comes before the process has computed, or waited without computing, for too long."""
        assert self.process is not None
        begun = before = self._computed()
        while True:
            there, _, _ = select.select([self.process.stdout], [], [], seconds)
            now = self._computed()
            if there:
                return True
            if now - begun > seconds or now - before < 0.01 * seconds:
                return False
            before = now  # the machine is busy with other things

    def _computed(self) -> float:
        """Seconds of computing that the process has had."""
        assert self.process is not None
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None
        self.ready = set()


def planned(tries: int, seed: int, only: list[str]) -> list[tuple[str, int]]:
    """Which target each try is for, and its seed; targets in blocks, since each takes time to prepare."""
    draw = random.Random(seed)
    names = only or list(SHARES)
    weights = [SHARES[name] for name in names]
    counts = Counter(draw.choices(names, weights, k=tries))
    return [(name, draw.randrange(2**32)) for name in names for _ in range(counts[name])]


def attack(
    plan: list[tuple[str, int]], folder: Path, seconds: float, gibibytes: float
) -> dict[str, Counter[str]]:
    """These tries, one after another; how each target fared."""
    figures: dict[str, Counter[str]] = {}
    worker = Worker(folder, seconds, gibibytes)
    try:
        for number, (target, seed) in enumerate(plan):
            if number % 500 == 0:
                print(f"{number} of {len(plan)} tried", file=sys.stderr, flush=True)
            found = worker.attempt(target, seed)
            figures.setdefault(target, Counter())[found["outcome"]] += 1
            if found["outcome"] in ("raw", "hung", "over"):
                print(f"--- {found['outcome']}: {target} {seed} {found['how']}\n{found['text']}", flush=True)
    finally:
        worker.stop()
    return figures


def attack_side_by_side(
    plan: list[tuple[str, int]], workers: int, seconds: float, gibibytes: float
) -> dict[str, Counter[str]]:
    """All tries, dealt out to so many workers."""
    figures = {target: Counter[str]() for target, _ in plan}
    with tempfile.TemporaryDirectory(prefix="covey-fuzz-") as folder, ThreadPoolExecutor(workers) as pool:
        running = []
        for number in range(workers):
            place = Path(folder) / str(number)
            running.append(pool.submit(attack, plan[number::workers], place, seconds, gibibytes))
        for each in running:
            for target, counts in each.result().items():
                figures[target].update(counts)
    return figures


def table(figures: dict[str, Counter[str]]) -> str:
    """The figures as a Markdown table."""
    total: Counter[str] = Counter()
    lines = ["| target | tried | clear error | accepted | raw | hung | over |", "| --- |" + " ---: |" * 6]
    for name, counts in figures.items():
        total.update(counts)
        lines.append(_row(name, counts))
    return "\n".join([*lines, _row("all", total)])


def _row(name: str, counts: Counter[str]) -> str:
    cells = [f"{counts.total():,}", *(f"{counts[outcome]:,}" for outcome in OUTCOMES)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    """Read the options, attack, print the figures; 1 if anything ended badly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(SHARES), default=[], help="targets to attack")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="of computing, or of waiting, after which a try counts as hung",
    )
    parser.add_argument(
        "--gibibytes", type=float, default=2.0, help="above which a try asks for too much memory"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that read side by side")
    given = parser.parse_args()
    started = time.perf_counter()
    plan = planned(given.tries, given.seed, given.only)
    figures = attack_side_by_side(plan, given.workers, given.seconds, given.gibibytes)
    minutes = (time.perf_counter() - started) / 60
    print(table(figures))
    print(f"seed {given.seed}, {minutes:.1f} minutes, {given.gibibytes:g} GiB, {given.seconds:g} s a try")
    bad = sum(counts[outcome] for counts in figures.values() for outcome in ("raw", "hung", "over"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
