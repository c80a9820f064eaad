"""The help texts in docs/cli.md are what the commands print. COVEY_WRITE_DOCS=1 writes them anew."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
COMMANDS = (
    "", "train", "train batch-ensemble", "compare", "evaluate", "predict", "serve", "export", "bench", "distill",
    "methods", "networks", "data", "reproduce", "show",
)  # fmt: skip
SCRIPT = """
import contextlib, io, json
from covey.cli.main import main
found = {}
for command in %r:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    found[command] = text.getvalue()
print(json.dumps(found))
"""


@pytest.mark.timeout(240)
def test_help_texts_on_the_page_are_those_of_the_commands():

    environment = os.environ | {
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT % (COMMANDS,)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    page = PAGE.read_text()
    for command, text in json.loads(done.stdout).items():
        words = " ".join(["covey", *command.split(), "--help"])
        clean = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).strip().splitlines())
        block = f"`{words}`\n\n```text\n{clean}\n```\n"
        if os.environ.get("COVEY_WRITE_DOCS"):
            pattern = rf"`{re.escape(words)}`\n\n```text\n.*?```\n"
            page = re.sub(pattern, lambda _, b=block: b, page, flags=re.S)
        assert block in page, words
    if os.environ.get("COVEY_WRITE_DOCS"):
        PAGE.write_text(page)
