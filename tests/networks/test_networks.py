"""A spread of the sweep: what works today on other people's networks goes on working.

`COVEY_SWEEP=all` runs every method on every network.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from catalogue import every, importable
from page import written
from sweep import stored
from verdicts import judge, methods

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
TABLE = {(verdict.network, verdict.method): verdict for verdict in stored(PAGE.with_suffix(".json"))}
# each network with the methods that have been hard on its kind
SPREAD: dict[str, tuple[str, ...]] = {
    "siamese": ("deep-ensemble", "packed"),
    "inputs by keyword": ("batch-ensemble", "mimo"),
    "buffers updated by hand": ("multi-head", "masksembles"),
    "tied weights": ("batch-ensemble",),
    "spectral norm": ("replicate",),
    "activation checkpointing": ("batch-ensemble", "mc-dropout"),
    "stored activation": ("multi-head",),
    "cache in eval mode": ("replicate",),
    "changes its input in place": ("deep-ensemble",),
    "unet": ("norm-ensemble", "packed"),
    "instance norm": ("masksembles",),
    "lstm with dropout": ("batch-ensemble", "mc-dropout"),
    "encoder with padding": ("norm-ensemble", "packed"),
    "graph by edges": ("replicate",),
    "complex numbers": ("deep-ensemble",),
    "torchvision resnet18": ("hypernetwork", "superweights"),
    "torchvision swin": ("batch-ensemble",),
    "timm resnet18": ("mimo", "shapeshifter", "packed"),
    "timm efficientnet_b0": ("mc-dropout",),
    "timm vit_tiny_patch16_224": ("mimo", "packed"),
    "timm convnext_atto": ("masksembles",),
    "transformers BertForSequenceClassification": ("norm-ensemble",),
    "transformers GPT2LMHeadModel": ("batch-ensemble",),
}
CASES = [(network, method) for network, chosen in SPREAD.items() for method in chosen]
if os.environ.get("COVEY_SWEEP") == "all":
    CASES = [(network, method) for network in every() for method in methods()]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_what_works_goes_on_working(name: str, method: str) -> None:
    package = name.split()[0]
    if package in ("timm", "torchvision", "transformers") and not importable(package):
        pytest.skip(f"{package} cannot be imported here")
    found = judge(every()[name], method)
    before = TABLE.get((name, method))
    if before is not None and before.verdict == "ok":
        assert found.verdict == "ok", found.reason
    assert found.verdict in ("ok", "no pack", "refused"), found.reason


def test_the_table_is_about_the_catalogue() -> None:
    """Every case of the spread is in the table, and works there."""
    for case in [(network, method) for network, chosen in SPREAD.items() for method in chosen]:
        assert TABLE[case].verdict == "ok", case


def test_the_page_is_written_from_the_table() -> None:
    """Every row of the table that is in the catalogue here is on the page, with its mark."""
    text = PAGE.read_text()
    fresh = written([verdict for verdict in TABLE.values() if verdict.network == "unet"], every())
    row = next(line for line in fresh.splitlines() if line.startswith("| unet "))
    assert row in text
