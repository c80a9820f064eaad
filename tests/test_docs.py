"""Examples in the docs and docstrings run, and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import covey
from covey import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [m.name for m in pkgutil.walk_packages(covey.__path__, "covey.") if not m.name.endswith("__main__")]
LONG = ("segmentation.md", "table.md", "transformers.md")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in LONG else ()) for page in PAGES],
)
def test_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))  # a page may register a method
    assert doctest.testfile(str(page), module_relative=False, optionflags=FLAGS).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_sites_contents() -> None:
    """A page that is in none is a warning of `make docs`, which is an error."""
    docs = ROOT / "docs"
    listed = {docs / "index.md"}
    for page in docs.rglob("*.md"):
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S):
            for line in filter(None, map(str.strip, contents.splitlines())):
                name = re.sub(r".*<(.*)>", r"\1", line)  # a page may be listed under another title
                listed.add(page.parent / f"{name}.md")
    missing = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {
        str(page.relative_to(docs)) for page in listed
    }
    assert not missing, "name these pages in a toctree, such as that of docs/index.md"


def test_the_api_page_names_what_is_public_in_the_packages() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for package in ("covey.serving", "covey.hf"):
        for name in importlib.import_module(package).__all__:
            assert f":: {package}.{name}\n" in page, name


def test_every_method_and_way_of_training_has_a_script_in_the_gallery() -> None:
    scripts = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))
    names = {path.stem.removeprefix("plot_").replace("_", "-") for path in scripts}
    assert names == set(registry.OWN) - {"single"}
