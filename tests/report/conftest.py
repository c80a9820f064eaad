from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import hostile
import pytest
import torch

from covey.errors import EvaluationError
from covey.report import Run, write
from covey.scores import Cost, Evaluation, Record, score

METHODS = {"Single": (1, 0.0, 1.0), "Deep <ensemble>": (4, 1.2, 4.0), "BatchEnsemble": (4, 1.1, 1.1)}
"""Members, how much better its logits are, and its parameters relative to the single network."""


def evaluation(members: int, gain: float, seed: int, samples: int = 120) -> Evaluation:
    """Scores of made-up logits of 6 classes: `gain` makes them better, the seed makes them differ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (samples,), generator=generator)

    def logits(count: int, answers: torch.Tensor | None) -> torch.Tensor:
        common = 1.5 * torch.randn(count, 6, generator=generator)
        if answers is not None:
            common[torch.arange(count), answers] += 1.5 + gain
        return common + 0.5 * torch.randn(members, count, 6, generator=generator)

    record = Record(
        outputs=logits(samples, labels),
        targets=labels,
        validation=(logits(samples, labels), labels),
        ood={"far away": logits(50, None)},
        corrupted={f"{name}/{s}": logits(60, labels[:60]) for name in ("fog", "snow") for s in range(1, 6)},
        classes=tuple("abcdef"),
    )
    return score(record, inputs=torch.rand((samples, 1, 8, 8), generator=generator))


def cost(members: int, size: float) -> Cost:
    return Cost(
        members=members,
        trainable=int(1000 * size),
        stored=int(1000 * size),
        multiply_adds=5000 * members,
        weight_bytes=int(4000 * size),
        peak_bytes=int(9000 * size),
        latency=0.002 * members,
        spread=0.0001,
        batch=32,
        threads=1,
        training_seconds=10.0 * members,
    )


@pytest.fixture(scope="session")
def make_runs() -> Callable[[Sequence[int]], list[Run]]:
    @cache
    def make(seeds: Sequence[int]) -> list[Run]:
        return [
            Run(
                name,
                seed,
                evaluation(members, gain, seed),
                cost(members, size),
                [{"epoch": e, "train_loss": 1 / e, "seconds": e, "note": "x"} for e in range(1, 5)]
                + [{"epoch": 5, "train_loss": None}, {"epoch": 6, "train_loss": float("nan")}],
                {"lr": 0.1, "seed": seed, "script": "</script><b>"},
                {"flatness": {"sigma": [0.1, 0.2], "rise": [0.1 * seed, 0.3], "std": [0, 0]}},
            )
            for name, (members, gain, size) in METHODS.items()
            for seed in seeds
        ]

    return make


@pytest.fixture(scope="session")
def page(make_runs: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three methods and three seeds."""
    return write(make_runs((0, 1, 2)), tmp_path_factory.mktemp("report"), title="A <report> & more")


@pytest.fixture(scope="session")
def hostile_pages(make_runs: Callable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of stored runs with a hostile text, by where that text is; "everywhere" has all of them.

    It takes half a minute in each process of the tests, so its tests are slow.
    """
    folder = tmp_path_factory.mktemp("hostile")
    run = make_runs((0, 1, 2))[3]
    pages = {}
    for place, (where, files) in enumerate(hostile.one_at_a_time(run).items()):
        try:
            read = hostile.restored(files)
        except EvaluationError:
            # what kind of calibration it is, and nothing else, decides how the file is read
            assert where.startswith("evaluation/calibration/"), "only these are refused"
            continue
        pages[where] = write([read], folder / str(place), title="A report")
    files = hostile.all_at_once(run)
    other = files | {"method": "another"}
    both = [hostile.restored(files, 0), hostile.restored(other, 0)]
    pages["everywhere"] = write(both, folder / "all", title=hostile.HOSTILE)
    return pages
