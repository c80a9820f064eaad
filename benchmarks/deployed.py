"""The tables of docs/deploy.md, made of what `benchmarks/deploy.py --write results/deploy.json` measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from result_rows import RESULTS, markdown

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
NETWORK = "network"
"""The plain network in eager mode, whose time is the unit."""


def deployed() -> str:
    """Ratios by form and batch size, and the memory that each takes."""
    path = RESULTS / "deploy.json"
    if not path.exists():
        return "*Not run yet: `python benchmarks/deploy.py --write results/deploy.json`.*"
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = found["rows"]
    batches = sorted({row["batch"] for row in rows})
    parts = [_ratios(rows, batch) for batch in batches]
    return "\n\n".join([*parts, _memory(rows, batches[-1]), _origin(found, batches)])


def _ratios(rows: Sequence[Mapping[str, Any]], batch: int) -> str:
    here = {(row["method"], row["form"]): row for row in rows if row["batch"] == batch}
    forms = [form for form in FORMS if any(each == form for _, each in here)]
    lines = []
    for method, words in METHODS.items():
        cells = [f"{here[method, form]['ratio']:.2f}" if (method, form) in here else "-" for form in forms]
        if set(cells) != {"-"}:
            lines.append([words, *cells])
    return markdown([f"batch {batch}", *(FORMS[form] for form in forms)], lines)


def _memory(rows: Sequence[Mapping[str, Any]], batch: int) -> str:
    """Weights in memory, or the size of the file, and after a stroke the peak of tensors alive where torch sees it."""
    here = {(row["method"], row["form"]): row for row in rows if row["batch"] == batch}
    forms = [form for form in FORMS if any(each == form for _, each in here)]
    lines = []
    for method, words in METHODS.items():
        cells = [_megabytes(here.get((method, form))) for form in forms]
        if set(cells) != {"-"}:
            lines.append([words, *cells])
    return markdown([f"MB: weights / peak at batch {batch}", *(FORMS[form] for form in forms)], lines)


def _megabytes(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    weights = f"{row['weight_bytes'] / 1e6:.0f}"
    return weights if row["peak_bytes"] is None else f"{weights} / {row['peak_bytes'] / 1e6:.0f}"


def _origin(found: Mapping[str, Any], batches: Sequence[int]) -> str:
    unit = {row["batch"]: 1000 * row["seconds"] for row in found["rows"] if row["method"] == NETWORK}
    times = ", ".join(f"{unit[batch]:.1f} ms at batch {batch}" for batch in batches if batch in unit)
    versions = found["versions"]
    vnni = "with" if found["vnni"] else "without"
    return (
        f"`{found['command']}`, written {found['written']} with covey {versions['covey']} and torch "
        f"{versions['torch'].partition('+')[0]}: fastest of {found['repeats']} turns, {found['threads']} threads, a "
        f"processor {vnni} VNNI. The unit is the plain network in eager mode: {times}."
    )
