"""The site builds without a warning, gallery and API included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import covey

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        tmp_path / "doctrees",
    ]
    # the gallery writes beside its scripts, so build a copy
    source = tmp_path / "docs"
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("auto_gallery"))
    for beside in ("CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / beside, tmp_path / beside)
    shutil.copytree(ROOT / "src", tmp_path / "src")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "vision.py", tmp_path / "tests" / "vision.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, source, tmp_path / "site"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page in ("index", "quickstart", "api", "tutorials/ood", "auto_gallery/plot_packed", "cli"):
        assert (tmp_path / "site" / f"{page}.html").stat().st_size > 1000
    assert "Gallery" in (tmp_path / "site" / "auto_gallery" / "index.html").read_text()
    api = (tmp_path / "site" / "api.html").read_text()
    for name in set(covey.__all__) - {"METHODS", "TRAININGS", "__version__"}:
        assert f'id="covey.{name}"' in api, name
