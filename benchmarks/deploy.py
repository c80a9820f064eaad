"""What deployed ensembles cost: each form's time over the eager single network's, in one run and in turns.

    python benchmarks/deploy.py                                   # ResNet-18 with the CIFAR stem, four members
    python benchmarks/deploy.py --methods packed --batches 32     # part of it
    python benchmarks/deploy.py --write deploy.json               # the rows as JSON too

Forms: the eager ensemble, fused in torch, ONNX Runtime in float and in int8 (calibrated on noise: for speed alone), and
with --compiled the fused module compiled by inductor, which takes a minute or more per method. A collapsed late-phase
network is a network like any other: its row is "single". Memory is that of the weights, or the file's size, and the
most in tensors alive at once at the largest batch, which is not known of ONNX Runtime. Run it on an idle machine;
`covey bench RUN` does the same for a run of your own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import covey
from covey import zoo
from covey.deploy.benching import BATCHES, Form, Row, forms, measured, single
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
NETWORK = "network eager"
"""The name of the single network among the ways to answer, which are a method and a form."""


def every_form(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Form], Example]:
    """The network and all forms of the methods that were asked for, and the largest batch."""
    network = zoo.create(options.network, classes=10, channels=3).eval()
    x = torch.randn(max(options.batches), 3, 32, 32)
    example = Example.of(network, x)
    found: dict[str, Form] = {NETWORK: single(network, example)}
    for name in options.methods:
        place = folder / name
        place.mkdir()
        ensemble = covey.convert(network, METHODS[name], example=x[:2], check=False).eval()
        own, missing = forms(
            ensemble,
            example,
            place,
            threads=options.threads,
            compiled=options.compiled,
            int8=x,
            int8_limit=1.0,
        )
        for form, why in missing.items():
            print(f"{name}: {form} is not possible: {why}")
        found |= {f"{name} {form}": way for form, way in own.items()}
    return found, example


def table(rows: list[tuple[str, Row]]) -> str:
    """All rows, aligned."""
    headings = ("batch", "method", "form", "ratio", "ms", "samples/s", "weights MB", "peak MB")
    cells = []
    for method, row in rows:
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}"
        numbers = (f"{row.ratio:.2f}", f"{1000 * row.seconds:.1f}", f"{row.throughput:.0f}")
        cells.append((str(row.batch), method, row.form, *numbers, f"{row.weight_bytes / 1e6:.1f}", peak))
    return text_table(headings, cells, right=("batch", *headings[3:]))


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
    parser.add_argument("--write", type=Path, help="a file for the rows as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        ways, example = every_form(options, Path(place))
        found = measured(ways, example, batches=options.batches, repeats=options.repeats, reference=NETWORK)
    rows: list[tuple[str, Row]] = []
    for row in found:
        method, _, form = row.form.partition(" ")
        rows.append((method, replace(row, form=form)))
    vnni = processor_has_vnni()
    print(f"fastest of {options.repeats} turns, {options.threads} threads, VNNI: {vnni}\n")
    print(table(rows))
    if options.write:
        written = {
            "command": "python benchmarks/deploy.py --write results/deploy.json"
            + " --compiled" * options.compiled,
            "written": time.strftime("%Y-%m-%d"),
            "versions": {"covey": covey.__version__, "torch": torch.__version__},
            "network": options.network,
            "threads": options.threads,
            "repeats": options.repeats,
            "vnni": vnni,
        }
        lines = ",\n".join(json.dumps({"method": method, **asdict(row)}) for method, row in rows)
        write_text(options.write, json.dumps(written, indent=1)[:-2] + f',\n "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
