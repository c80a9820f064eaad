"""The code on the page about other trainers runs, and learns."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "lightning.md"


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("default")  # the trainers warn for themselves
@pytest.mark.parametrize(("number", "packages"), [(0, ["lightning"]), (1, ["transformers", "accelerate"])])
def test_code_on_the_page(number, packages):
    for package in packages:
        pytest.importorskip(package)
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[number]
    names: dict = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert names["accuracy"] > 0.9
