"""What pages say of results is what results/ hold."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pages():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "benchmarks" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module  # where dataclasses look for the types of their fields
    spec.loader.exec_module(module)
    return module


def test_no_number_on_a_page_differs_from_the_results() -> None:
    made = pages()
    marked = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        marked += len(made.PLACE.findall(page))
        assert made.written(page) == page, f"{path.name}: run python benchmarks/pages.py"
    assert marked >= 5


def test_a_page_with_another_number_is_found() -> None:
    made = pages()
    page = (ROOT / "docs" / "does-it-work.md").read_text(encoding="utf-8")
    place = made.PLACE.search(page)
    assert place is not None
    end = place.end(1)
    assert made.written(page[:end] + "| 99.9 |\n" + page[end:]) == page


def test_means_and_deviations_over_repetitions() -> None:
    made = pages()
    row = made.Row("packed", [{"scores": {"nll": 0.5}}, {"scores": {"nll": 0.7}}, {"scores": {}}])
    assert row.cell("scores", "nll", digits=2) == "0.60 ± 0.14"
    assert row.mean("scores", "nll") == pytest.approx(0.6)
    assert row.cell("scores", "ece") == "-"
