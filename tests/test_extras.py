"""What covey imports is what its installation brings."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from covey.extras import EXTRA_OF

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT = {  # by packages that the extra names
    "anyio": "fastapi",
    "starlette": "fastapi",
    "requests": "pooch",
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of all modules that a file imports, in whatever way."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("load", "importlib.import_module"):
            yield from (
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def used() -> set[str]:
    """Packages that are neither covey's nor Python's own."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    found = {name.partition(".")[0] for tree in trees for name in imported(tree)}
    return found - set(sys.stdlib_module_names) - {"covey"}


@cache
def named(extra: str | None) -> frozenset[str]:
    """Distributions that covey, or an extra of it, asks for by name, those of other extras too."""
    wanted = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    found: set[str] = set()
    for line in wanted:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", line).groups()
        if name == "covey":
            found = found.union(*(named(each) for each in extras.split(",")))
        else:
            found.add(name.lower().replace("_", "-"))
    return frozenset(found)


@pytest.mark.parametrize("package", sorted(used() - {"tomli"}))
def test_every_package_is_asked_for(package: str) -> None:
    """By covey itself, or by the extra that the error of a missing package names."""
    wanted = BROUGHT.get(package, package)
    distributions = {
        name.lower().replace("_", "-") for name in packages_distributions().get(wanted, [wanted])
    }
    by = named(None) if package not in EXTRA_OF else named(None) | named(EXTRA_OF[package])
    assert distributions & by, f"{package} is imported, and no line of pyproject.toml brings it"
