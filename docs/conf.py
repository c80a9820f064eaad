"""How Sphinx builds the site: `make docs` writes it to build/site. Warnings are errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE / "gallery"))  # what the gallery's scripts share
sys.path.insert(0, str(HERE.parent / "tests"))  # how to import torchvision where it cannot load its operators

from covey.version import __version__  # noqa: E402 - the paths must come first
from vision import declare_operators  # noqa: E402

declare_operators()  # transformers imports torchvision, and the API's page names what needs transformers

project = "covey"
author = "the covey authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*"]  # read by the gallery, which writes auto_gallery/

# Pages are Markdown that other readers show too, so links between them are ordinary ones.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write `name`, and sections as in "Args:".
default_role = "code"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"plane\.py",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 60,
    "show_memory": False,
    "show_signature": False,
}
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions, which Sphinx cannot cache

html_theme = "furo"
html_title = "covey"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False


def name_the_rest(app: Any, page: str, source: list[str]) -> None:
    """Put every public name that the API's page does not name at its end, so that none is forgotten."""
    if page != "api":
        return
    import covey

    named = set(re.findall(r"^\.\. auto\w+:: (\S+)", source[0], re.M))
    lines = []
    for name in covey.__all__:
        thing = getattr(covey, name)
        if name not in named and callable(thing):
            lines.append(f".. {'autoclass' if isinstance(thing, type) else 'autofunction'}:: {name}")
    if lines:
        listed = "\n".join(lines)
        source[0] += f"\n## More\n\n```{{eval-rst}}\n.. currentmodule:: covey\n\n{listed}\n```\n"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", name_the_rest)
