"""Benchmarks are run by hand; what they take from covey must be there when somebody does."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def taken(source: str) -> Iterator[tuple[str, str]]:
    """Every name that a program imports from covey, with its module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "covey":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_it_imports_is_there(path: Path) -> None:
    for module, name in taken(path.read_text()):
        found = importlib.import_module(module)
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


def test_helpers_of_tests_and_benchmarks_have_names_of_their_own() -> None:
    """They are imported by name alone: of two, a test would get the one that its worker imported first."""
    root = Path(__file__).parents[1]
    names = Counter(path.stem for folder in ("tests", "benchmarks") for path in (root / folder).rglob("*.py"))
    programs = {"conftest", "run"}
    assert not {name for name, times in names.items() if times > 1} - programs
