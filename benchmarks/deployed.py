"""The tables of docs/deploy.md, made of what `benchmarks/deploy.py --write results/deploy.json` measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from result_rows import RESULTS, markdown

from covey.deploy.benching import NETWORK, listed

FORMS = {"eager": "eager", "fused": "fused", "compiled": "compiled", "onnx": "ONNX", "int8": "int8"}
METHODS = {
    "single": "single network",
    "packed": "Packed (alpha 2)",
    "batch-ensemble": "BatchEnsemble",
    "hypernetwork": "Hypernetwork",
    "mixture": "Mixture",
    "masksembles": "Masksembles (scale 2)",
    "deep-ensemble": "deep ensemble",
}
AIMS = (
    ("Packed, ONNX", "packed", "onnx", 32, 0.65),
    ("Packed, ONNX, batch 1", "packed", "onnx", 1, 0.80),
    ("Packed, int8 with VNNI", "packed", "int8", 32, 0.25),
    ("Packed, fused in torch", "packed", "fused", 32, 0.75),
    ("Packed, fused and compiled", "packed", "compiled", 32, 0.75),
    ("Masksembles, ONNX", "masksembles", "onnx", 32, 1.60),
    ("late-phase, collapsed, ONNX", "single", "onnx", 32, 0.62),
    ("BatchEnsemble, ONNX", "batch-ensemble", "onnx", 32, 2.60),
    ("Hypernetwork, ONNX", "hypernetwork", "onnx", 32, 2.60),
    ("Mixture, ONNX", "mixture", "onnx", 32, 2.60),
)
"""What a form was to cost at most, over the eager single network."""

Rows = Sequence[Mapping[str, Any]]


def deployed() -> str:
    """Ratios by form and batch size, and the memory that each takes."""
    if not (RESULTS / "deploy.json").exists():
        return "*Not run yet: `python benchmarks/deploy.py --write results/deploy.json`.*"
    found, rows = _read("deploy.json")
    tables = [_ratios(rows, batch) for batch in found["batches"]]
    largest = max(found["batches"])
    return "\n\n".join([*tables, _throughput(rows, largest), _memory(rows, largest), _origin(found, rows)])


def deploy_aims() -> str:
    """What was aimed at, and how far it is."""
    _, rows = _read("deploy.json")
    known = {(row["method"], row["form"], row["batch"]): row["ratio"] for row in rows}
    lines = []
    for words, method, form, batch, aim in AIMS:
        ratio = known[method, form, batch]
        lines.append(
            [
                words,
                f"{aim:.2f}",
                f"{ratio:.2f}",
                "reached" if ratio <= aim else f"{ratio / aim - 1:.0%} above",
            ]
        )
    return markdown(["batch 32 unless said", "aim", "measured", ""], lines)


def deployed_without_vnni() -> str:
    """The same ratios on an older processor."""
    found, rows = _read("deploy-avx2.json")
    return "\n\n".join([*(_ratios(rows, batch) for batch in found["batches"]), _origin(found, rows)])


def _read(name: str) -> tuple[dict[str, Any], Rows]:
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    rows = [{"method": method, **row} for method, part in found["parts"].items() for row in part["rows"]]
    return found, rows


def _ratios(rows: Rows, batch: int) -> str:
    return _table(f"batch {batch}", rows, batch, lambda row: f"{row['ratio']:.2f}")


def _throughput(rows: Rows, batch: int) -> str:
    return _table(f"samples/s at batch {batch}", rows, batch, lambda row: f"{row['throughput']:.0f}")


def _memory(rows: Rows, batch: int) -> str:
    """Weights in memory, or the size of the file, and after a stroke the peak of tensors alive where torch sees it."""
    return _table(f"MB: weights / peak at batch {batch}", rows, batch, _megabytes)


def _table(heading: str, rows: Rows, batch: int, told: Callable[[Mapping[str, Any]], str]) -> str:
    """A line for each method, a cell for each form."""
    here = {(row["method"], row["form"]): told(row) for row in rows if row["batch"] == batch}
    forms = [form for form in FORMS if any(each == form for _, each in here)]
    lines = []
    for method, words in METHODS.items():
        cells = [here.get((method, form), "-") for form in forms]
        if set(cells) != {"-"}:
            lines.append([words, *cells])
    return markdown([heading, *(FORMS[form] for form in forms)], lines)


def _megabytes(row: Mapping[str, Any]) -> str:
    weights = f"{row['weight_bytes'] / 1e6:.0f}"
    return weights if row["peak_bytes"] is None else f"{weights} / {row['peak_bytes'] / 1e6:.0f}"


def _origin(found: Mapping[str, Any], rows: Rows) -> str:
    units = listed(_unit(rows, batch) for batch in found["batches"])
    versions = found["versions"]
    vnni = "with" if found["vnni"] else "without"
    written = max(part["written"] for part in found["parts"].values())
    compiled = " --compiled" * any(row["form"] == "compiled" for row in rows)
    return (
        f"`{found['command']}{compiled}`, written {written} with covey {versions['covey']} and torch "
        f"{versions['torch'].partition('+')[0]}: fastest of {found['repeats']} turns (of 3 or more where turns are "
        f"slow), {found['threads']} threads, a processor {vnni} VNNI. The unit is the plain network in eager mode, "
        f"measured in turns with each method: {units}."
    )


def _unit(rows: Rows, batch: int) -> str:
    """How long the plain network took, over all parts."""
    own = [1000 * row["seconds"] for row in rows if row["form"] == NETWORK and row["batch"] == batch]
    return f"{min(own):.1f} to {max(own):.1f} ms at batch {batch}"
