"""Files for the forge say what the project says: its Pythons, its version, its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import covey

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml")


def test_the_matrix_is_the_pythons_that_pip_allows() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    allowed = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert allowed is not None
    first, beyond = map(int, allowed.groups())
    assert tried == [f"3.{minor}" for minor in range(first, beyond)]


def test_workflows_run_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                for target in re.findall(r"make (\w+)", step.get("run", "")):
                    assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == covey.__version__


def test_templates_are_forms() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        assert {"input", "textarea"} >= {part["type"] for part in form["body"]}
