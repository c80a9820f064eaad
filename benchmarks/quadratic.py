"""Steady-state risk on the noisy quadratic problem against the number of members (figure 1 of late-phase weights).

    python benchmarks/quadratic.py --out results/quadratic

Writes quadratic.json and quadratic.svg: late-phase weights, a full ensemble, and the exact value for the latter.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from covey.papers.quadratic import Quadratic, full_ensemble_risk, simulate

MEMBERS = (1, 2, 5, 10, 15, 20, 25)
SEEDS = (0, 1, 2, 3, 4)


def measure(members: int, kind: str, steps: int) -> list[float]:
    return simulate(Quadratic(), members, kind, steps=steps, seeds=SEEDS).tolist()


def run(steps: int, workers: int) -> dict:
    start = time.perf_counter()
    problem = Quadratic()
    with ProcessPoolExecutor(workers) as pool:
        jobs = {
            (kind, k): pool.submit(measure, k, kind, steps)
            for k in reversed(MEMBERS)
            for kind in ("late-phase", "full")
        }
        rows = [
            {
                "members": k,
                "late-phase": jobs["late-phase", k].result(),
                "full": jobs["full", k].result(),
                "exact": full_ensemble_risk(problem, k),
            }
            for k in MEMBERS
        ]
    settings = {"lr": problem.lr, "batch": problem.batch, "size": problem.size, "steps": steps}
    return {"settings": settings, "rows": rows, "seconds": time.perf_counter() - start}


def draw(found: dict, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    members = [row["members"] for row in found["rows"]]
    axes.plot(members, [row["exact"] for row in found["rows"]], color="0.6", label="full ensemble, exact")
    for kind, mark in (("late-phase", "o"), ("full", "x")):
        means = [sum(row[kind]) / len(row[kind]) for row in found["rows"]]
        axes.plot(members, means, mark, label="late-phase" if kind == "late-phase" else "full ensemble")
    axes.set(xscale="log", yscale="log", xlabel="members K", ylabel="risk once it no longer falls")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/quadratic"))
    given = parser.parse_args()
    found = run(given.steps, given.workers)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "quadratic.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, given.out / "quadratic.svg")
    for row in found["rows"]:
        late, full = (sum(row[kind]) / len(row[kind]) for kind in ("late-phase", "full"))
        print(
            f"K {row['members']:2d}   late-phase {late:.3e}   full {full:.3e}   exact {row['exact']:.3e}   "
            f"late-phase / exact {late / row['exact']:.3f}   full / exact {full / row['exact']:.3f}"
        )
    print(f"{found['seconds']:.0f} s")


if __name__ == "__main__":
    main()
