"""What `pip install covey` brings is enough for ten lines; what it does not bring is asked for in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from covey import extras
from covey.errors import MissingExtraError

ROOT = Path(__file__).parents[1]


def ten_lines() -> str:
    """The README's first example, without its prompts."""
    page = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(>>> import covey.*?)```", page, re.S)
    assert example is not None
    lines = [line.removeprefix(">>> ") for line in example.group(1).splitlines() if line.startswith(">>> ")]
    return "\n".join(lines)


@pytest.mark.slow  # it builds a wheel and installs torch
@pytest.mark.timeout(600)
def test_a_bare_install_runs_the_ten_lines(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    place = tmp_path / "environment"
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("covey-*.whl")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    install = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-W", "error", "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = run(ten_lines())
    assert done.returncode == 0, done.stderr
    for asked, extra in (
        ("covey.fit(1, 2)", "train"),
        ("covey.sklearn", "sklearn"),
    ):
        missing = run(f"import covey; {asked}")
        assert missing.returncode == 1
        assert f"pip install 'covey[{extra}]'" in missing.stderr.splitlines()[-1]
    command = subprocess.run(
        [place / "bin" / "covey", "methods"], env=environment, capture_output=True, text=True, check=False
    )
    assert command.returncode == 2
    assert command.stderr.splitlines() == [
        "covey: error: this needs the package tqdm: pip install 'covey[train]'"
    ]


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not there
    with pytest.raises(
        MissingExtraError, match=r"^this needs the package pandas: pip install 'covey\[data\]'$"
    ):
        extras.load("pandas")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        extras.load("no_such_package")


def test_a_package_that_fails_when_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingExtraError,
        match=r"broken_package is installed and fails .* \(RuntimeError: operator nms does not exist\)",
    ):
        extras.load("broken_package")


def test_no_command_imports_the_compiler() -> None:
    """torch's compiler takes as long to import as torch itself."""
    code = "from covey.cli.main import commands; commands(); import covey.methods, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch._dynamo" not in done.stdout.split()
