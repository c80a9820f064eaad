"""The code in the pages on evaluation and the report runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["evaluation.md", "report.md"])
def test_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), flags=re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    made = {"evaluation.md": "runs/first/outputs.npz", "report.md": "runs/report/report.html"}[name]
    assert (tmp_path / made).is_file()
