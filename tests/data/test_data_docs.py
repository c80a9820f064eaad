"""The page on data: its code runs, and it names every known set and option."""

import dataclasses
import re
from pathlib import Path

from covey.data import KNOWN, Augment

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_code_on_the_page_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/data.md", "exec"), names)
    printed = capsys.readouterr().out
    shown = re.search(r"```\n(source .*?)\.\.\.\n```", PAGE, re.DOTALL).group(1)
    assert printed.startswith(shown)
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert names["targets"].shape[-1] == 8


def test_the_page_names_every_set_and_option():
    for name in KNOWN:
        family = "uci/" if name.startswith("uci/") else name
        assert f"`{family}" in PAGE, name
    for field in dataclasses.fields(Augment):
        assert f"`{field.name}`" in PAGE, field.name
