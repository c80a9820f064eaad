"""A method of somebody else's: known everywhere after one registration, and nobody asks which method it is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey import registry
from covey.data import Data, Split
from covey.errors import OptionError, StoreError
from stranger import Nudged

ROOT = Path(__file__).parents[1]
QUIET = covey.Machine(accelerator="cpu", progress=False)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % 3
    inputs = torch.randn(60, 6, generator=generator) + targets[:, None]
    whole = Split(inputs, targets)
    return Data(
        whole,
        Split(inputs[:20], targets[:20]),
        whole,
        task="classification",
        classes=("a", "b", "c"),
        shape=(6,),
    )


def test_the_public_names_are_those_of_the_registry() -> None:
    for name, kind in {**covey.METHODS, **covey.TRAININGS}.items():
        if name in registry.OWN:
            assert kind.__name__ in covey.__all__
            assert getattr(covey, kind.__name__) is kind
    assert "nudged" in covey.METHODS
    assert "nudged" not in covey.TRAININGS
    assert len(covey.METHODS) == len(list(covey.METHODS))


def test_names_and_kinds_are_checked() -> None:
    with pytest.raises(OptionError, match=r"'packed' is taken by Packed"):
        covey.register("packed", Nudged)
    with pytest.raises(OptionError, match="lower case"):
        covey.register("Low Rank", Nudged)
    with pytest.raises(OptionError, match=r"derives from covey.Method or covey.Training"):
        covey.register("linear", nn.Linear)  # type: ignore[arg-type]

    @dataclass
    class Melting:
        members: int = 1

    with pytest.raises(OptionError, match=r"derives from covey.Method"):
        covey.register("melting", Melting)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no method 'nudge'.*'nudged'"):
        registry.lookup("nudge")
    assert registry.parsed("nudged:rank=3,where=[head,norms]") == Nudged(rank=3, where=("head", "norms"))
    assert registry.parsed("late-phase:where=()").where == ()
    with pytest.raises(OptionError, match="no option 'ranks'.*'rank'"):
        registry.parsed("nudged:ranks=3")


def test_what_could_not_be_stored_is_found_out_before_the_first_step(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Unknown(Nudged):
        """Not registered."""

    @dataclass(frozen=True, kw_only=True)
    class Odd(Nudged):
        """With an option that JSON does not hold."""

        chosen: Any = field(default_factory=set)

    steps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", lambda *_, **__: steps.append(1))
        with pytest.raises(StoreError, match=r"Unknown is not registered.*covey.register"):
            covey.fit(network(), data(), method=Unknown(), folder=tmp_path / "a", machine=QUIET)
        covey.register("odd", Odd)
        try:
            with pytest.raises(StoreError, match="option 'chosen' of 'odd' is a set"):
                covey.fit(network(), data(), method=Odd(), folder=tmp_path / "b", machine=QUIET)
        finally:
            registry.unregister("odd")
    assert not steps


def test_it_trains_starts_late_is_stored_and_evaluated(tmp_path: Path) -> None:
    recipe = covey.Recipe(epochs=3, batch=16, lr=0.05)
    plain = covey.fit(network(), data(), recipe, method=Nudged(members=3), folder=tmp_path, machine=QUIET)
    again = covey.load(tmp_path / "ensemble", network=network())
    x = data().test.inputs
    assert again.method == Nudged(members=3)
    assert torch.equal(again.predict(x).probs, plain.ensemble.predict(x).probs)
    started = covey.fit(
        network(), data(), recipe, method=covey.late(Nudged(members=3), 2, 0.1), machine=QUIET
    )
    assert started.ensemble.members == 3
    assert not started.ensemble.alike
    collapsed = covey.late(Nudged(members=2), 1, collapse=True)
    assert covey.fit(network(), data(), recipe, method=collapsed, machine=QUIET).ensemble.members == 1
    scores = covey.evaluate(started.ensemble, data()).scores["ensemble"]
    assert 0 <= scores["accuracy"] <= 1


_COMMANDS = """
import contextlib, io, json, sys
from covey.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    if code:
        sys.exit(code)
    print(json.dumps(out.getvalue()))
"""


def run(place: Path, *commands: list[str]) -> list[str]:
    """What commands print, one after another, in a process that finds the method through an entry point alone."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(place / "site")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", _COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_entry_point_brings_it_to_the_command_line(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "their_package-1.0.dist-info").mkdir(parents=True)
    (site / "their_package-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n"
    )
    (site / "their_package-1.0.dist-info" / "entry_points.txt").write_text(
        "[covey.methods]\nnudged = their_package:Nudged\n"
    )
    source = (ROOT / "tests" / "stranger.py").read_text().replace('covey.register("nudged", Nudged)\n', "")
    (site / "their_package.py").write_text(source)
    small = ["--data", "digits", "--samples", "60", "--epochs", "1", "--network-option", "hidden=[8]"]
    methods, options, trained, shown, *_ = run(
        tmp_path,
        ["methods"],
        ["methods", "nudged"],
        ["train", "nudged", "--members", "2", "--rank", "1", "--folder", "one", *small],
        ["show", "one"],
        ["evaluate", "one"],
        [
            "compare",
            "--methods",
            "single",
            "nudged:members=2",
            "--seeds",
            "0",
            "1",
            "--folder",
            "many",
            *small,
        ],
    )
    assert "nudged" in methods
    assert "--rank" in options
    assert "2 members" in trained
    assert "nudged" in shown
    assert (tmp_path / "one" / "report.html").exists()
    assert "nudged" in (tmp_path / "many" / "report.md").read_text()
    assert json.loads((tmp_path / "one" / "ensemble" / "config.json").read_text())["method"] == "nudged"


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, "[a," * 2000 + "a" + "]" * 2000])
def test_values_with_brackets_in_brackets_without_end_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="has more than 200 brackets"):
        registry.read_value(text)
    with pytest.raises(OptionError):
        registry.parsed(f"batch-ensemble:where={text}")


def test_no_value_is_written_as_flags_show_it() -> None:
    assert registry.parsed("hypernetwork:budget=None").budget is None
    assert registry.parsed("superweights:share=none").share == "none"


# --- nobody asks which method it is ---------------------------------------------------------------------------

OWN_FILES = ("methods", "trainings", "registry.py")  # the registry finds an object's name
METHODLIKE = ("method", "options", "way", "training")
CLASSES = {kind.__name__ for kind in {**covey.METHODS, **covey.TRAININGS}.values()}


def _names_a_method(node: ast.expr) -> bool:
    """Whether an expression is called like a method or its options."""
    last = ast.unparse(node).rpartition(".")[2]
    return last in METHODLIKE


def _allowed(node: ast.expr) -> bool:
    return ast.unparse(node) in ("Method", "Training", "type", "str", "Method | Training")


def _is_type_of_method(node: ast.expr) -> bool:
    """Whether an expression is type(method)."""
    is_type = isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 1
    return is_type and _names_a_method(node.args[0])  # type: ignore[attr-defined]


def questions(tree: ast.AST) -> list[str]:
    """Expressions that ask what kind of method something is."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            asks = node.func.id
            if asks in ("hasattr", "getattr") and _names_a_method(node.args[0]):
                found.append(ast.unparse(node))
            if asks == "isinstance":
                named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                if named & CLASSES or (_names_a_method(node.args[0]) and not _allowed(node.args[1])):
                    found.append(ast.unparse(node))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            constants = [s.value for s in sides if isinstance(s, ast.Constant)]
            asked = any(_names_a_method(s) for s in sides) and any(c in registry.OWN for c in constants)
            if asked or any(_is_type_of_method(s) for s in sides):
                found.append(ast.unparse(node))
    return found


def test_nothing_outside_a_method_s_own_file_asks_what_kind_it_is() -> None:
    found = {}
    for path in sorted((ROOT / "src" / "covey").rglob("*.py")):
        inside = path.relative_to(ROOT / "src" / "covey")
        if inside.parts[0] not in OWN_FILES and (asked := questions(ast.parse(path.read_text()))):
            found[str(inside)] = asked
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "hasattr(ensemble.method, 'indices')",
        "getattr(settings.options, 'members', 1)",
        "isinstance(ensemble.method, MIMO)",
        "isinstance(method, covey.Packed)",
        "settings.method == 'packed'",
        "type(ensemble.method) is other",
    ],
)
def test_the_question_would_be_found(code: str) -> None:
    assert questions(ast.parse(code.replace("covey.", "")))


def test_the_readme_says_of_each_method_what_its_docstring_says() -> None:
    page = (ROOT / "README.md").read_text()
    for name in registry.OWN:
        kind = registry.lookup(name)
        first = (kind.__doc__ or "").strip().splitlines()[0]
        assert f"| [`{kind.__name__}`](docs/methods/{name}.md) | {first} |" in page, name
