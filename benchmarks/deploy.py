"""What deployed ensembles cost: each form's time over the eager single network's, in one run and in turns.

    python benchmarks/deploy.py                                   # ResNet-18 with the CIFAR stem, four members
    python benchmarks/deploy.py --methods packed --batches 32     # part of it
    python benchmarks/deploy.py --write results/deploy.json       # kept method by method

Each method is a part of its own, measured in turns with the single network, so that its ratios need no other part.
A file keeps the parts it has: a run that was stopped goes on with the methods that are missing; --again measures all.

Forms: the eager ensemble, fused in torch, ONNX Runtime in float and in int8 (calibrated on noise: for speed alone), and
with --compiled the fused module compiled by inductor, which takes minutes per method. A collapsed late-phase network is
a network like any other: its row is "single". Memory is that of the weights, or the file's size, and the most in
tensors alive at once at the largest batch, which is not known of ONNX Runtime. Making the forms takes a minute per
method, the measurement itself some seconds per batch size. Run it on an idle machine; `covey bench RUN` does the same
for a run of your own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import covey
from covey import zoo
from covey.deploy.benching import BATCHES, NETWORK, Row, forms, measured, single
from covey.deploy.int8 import processor_has_vnni
from covey.deploy.tracing import Example
from covey.files import write_text
from covey.tables import text_table

METHODS: dict[str, Any] = {
    "single": covey.Replicate(members=1),
    "packed": covey.Packed(members=4, alpha=2.0),
    "batch-ensemble": covey.BatchEnsemble(members=4),
    "hypernetwork": covey.Hypernetwork(members=4),
    "mixture": covey.Mixture(members=4),
    "masksembles": covey.Masksembles(members=4, scale=2.0),
    "deep-ensemble": covey.DeepEnsemble(members=4),
}
Stored = dict[str, Any]


def part(method: str, options: argparse.Namespace) -> list[Row]:
    """The single network and every form of one method, at every batch size."""
    network = zoo.create(options.network, classes=10, channels=3).eval()
    x = torch.randn(max(options.batches), 3, 32, 32)
    example = Example.of(network, x)
    ensemble = covey.convert(network, METHODS[method], example=x[:2], check=False).eval()
    with tempfile.TemporaryDirectory() as folder:
        ways, missing = forms(
            ensemble,
            example,
            Path(folder),
            threads=options.threads,
            compiled=options.compiled,
            int8=x,
            int8_limit=1.0,
        )
        ways = {NETWORK: single(network, example), **ways}
        rows = measured(ways, example, batches=options.batches, repeats=options.repeats, reference=NETWORK)
    for form, why in missing.items():
        print(f"{method}: {form} is not possible: {why}")
    return rows


def table(method: str, rows: list[Row]) -> str:
    """All rows of a method, aligned."""
    headings = ("batch", "method", "form", "ratio", "ms", "samples/s", "weights MB", "peak MB")
    cells = []
    for row in rows:
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}"
        numbers = (f"{row.ratio:.2f}", f"{1000 * row.seconds:.1f}", f"{row.throughput:.0f}")
        cells.append((str(row.batch), method, row.form, *numbers, f"{row.weight_bytes / 1e6:.1f}", peak))
    return text_table(headings, cells, right=("batch", *headings[3:]))


def circumstances(options: argparse.Namespace) -> Stored:
    """What the parts of one file have in common."""
    return {
        "command": "python benchmarks/deploy.py --write results/deploy.json",
        "versions": {"covey": covey.__version__, "torch": torch.__version__},
        "network": options.network,
        "batches": options.batches,
        "threads": options.threads,
        "repeats": options.repeats,
        "vnni": processor_has_vnni(),
    }


def known_parts(path: Path | None, here: Stored) -> Stored:
    """The parts that a file has; refused if they were measured otherwise than these would be."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in here.items():
        if found.get(name) != value:
            raise SystemExit(
                f"{path} was measured with {name} = {found.get(name)!r}, this run has {value!r}. Write another file."
            )
    return found["parts"]


def write(path: Path, here: Stored, parts: Stored) -> None:
    """Keep the parts, a row a line."""
    told = []
    for method in (name for name in METHODS if name in parts):
        lines = ",\n".join(json.dumps(row) for row in parts[method]["rows"])
        written = json.dumps(parts[method]["written"])
        told.append(f'{json.dumps(method)}: {{"written": {written}, "rows": [\n{lines}\n]}}')
    every = ",\n".join(told)
    write_text(path, json.dumps(here, indent=1)[:-2] + f',\n "parts": {{\n{every}\n}}}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--network", default="cifar-resnet-18")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--compiled", action="store_true", help="compile the fused module too")
    parser.add_argument("--write", type=Path, help="a file that keeps each method's rows, as JSON")
    parser.add_argument("--again", action="store_true", help="measure methods anew that the file has")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    here = circumstances(options)
    parts = known_parts(options.write, here)
    print(f"fastest of {options.repeats} turns, {options.threads} threads, VNNI: {here['vnni']}")
    for method in options.methods:
        if method in parts and not options.again:
            print(f"\n{method}: measured already, see {options.write}")
            continue
        torch.manual_seed(0)
        rows = part(method, options)
        print(f"\n{table(method, rows)}", flush=True)
        parts[method] = {"written": time.strftime("%Y-%m-%d"), "rows": [asdict(row) for row in rows]}
        if options.write:
            write(options.write, here, {**known_parts(options.write, here), method: parts[method]})


if __name__ == "__main__":
    main()
