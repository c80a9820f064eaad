"""Time and memory of all scores from stored logits: 10 members, 60,000 images, 10 classes, two OOD sets.

Run: python benchmarks/evaluate.py
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import torch

from covey.scores import Record, score

MEMBERS, SAMPLES, CLASSES = 10, 60_000, 10


def made_up_logits(samples: int, labels: torch.Tensor | None, generator: torch.Generator) -> torch.Tensor:
    common = 2 * torch.randn(samples, CLASSES, generator=generator)
    if labels is not None:
        common[torch.arange(samples), labels] += 4
    return common + torch.randn(MEMBERS, samples, CLASSES, generator=generator)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    held_back = torch.randint(CLASSES, (10_000,), generator=generator)
    record = Record(
        outputs=made_up_logits(SAMPLES, labels, generator),
        targets=labels,
        validation=(made_up_logits(10_000, held_back, generator), held_back),
        ood={name: made_up_logits(SAMPLES, None, generator) for name in ("first", "second")},
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.npz"
        record.save(file)
        print(f"file: {file.stat().st_size / 1e6:.0f} MB")
        start, cpu = time.perf_counter(), time.process_time()
        import torchmetrics  # noqa: F401

        loaded, cpu_loaded = time.perf_counter(), time.process_time()
        scores = score(Record.load(file)).scores["ensemble"]
        done, cpu_done = time.perf_counter(), time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"import torchmetrics: {loaded - start:.2f} s ({cpu_loaded - cpu:.2f} s of one core)")
    print(
        f"load and all scores: {done - loaded:.2f} s ({cpu_done - cpu_loaded:.2f} s of one core, limit 10 s)"
    )
    print(f"peak memory of the process: {peak:.2f} GB (limit 2 GB)")
    print({name: value if value is None else round(value, 4) for name, value in scores.items()})
    # Of one core, because other work on the machine must not fail the check.
    assert cpu_done - cpu_loaded < 10, "slower than promised"
    assert peak < 2, "more memory than promised"


if __name__ == "__main__":
    main()
