"""A small part of `make fuzz` and `make kill`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import StoreError
from covey.schema import (
    Either,
    Kinds,
    Many,
    Maybe,
    Named,
    Number,
    Record,
    Truth,
    Whole,
    Word,
    check,
    parse_json,
)

HERE = Path(__file__).parent
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
SPEC = Record(
    {"a": Either((Word(("x", "y")), Whole(0, 9), Many(Maybe(Number(0, 1)), least=1)))},
    optional={"b": Named(Truth()), "c": Kinds("kind", {"k": Record({"value": Number()})})},
)


def _told(read: Callable[[], object]) -> str:
    """What a StoreError says; empty if there is none."""
    try:
        read()
    except StoreError as error:
        return str(error)
    return ""


@settings(max_examples=300, deadline=None)
@given(JSON | st.fixed_dictionaries({"a": JSON, "b": JSON, "c": st.fixed_dictionaries({"kind": JSON})}))
def test_whatever_json_holds_fits_or_is_a_clear_error(value: object) -> None:
    told = _told(lambda: check(value, SPEC, "it"))
    assert told.startswith("it: ") or not told
    assert len(told) < 400


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text('[]{}":,0123456789.eE+-tfn \\\\ud8', max_size=60))
def test_whatever_a_text_holds_is_json_or_a_clear_error(text: str) -> None:
    told = _told(lambda: parse_json(text, "it"))
    assert told.startswith("it is broken or cut short") or not told


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "words",
    [
        [
            "run.py",
            "--tries",
            "160",
            "--seed",
            "5",
            "--only",
            "ensembles",
            "recipes",
            "tables",
            "arrays",
            "weights",
        ],
        pytest.param(
            ["run.py", "--tries", "60", "--seed", "6", "--only", "runs", "checkpoints", "archives"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["kill.py", "--kills", "6", "--seed", "7", "--only", "swag", "late-phase copies"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_part_of_the_tools_finds_nothing(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, HERE / words[0], *words[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
