"""outputs.npz is written whole or not at all, and a damaged one is said to be."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.errors import CoveyError, EvaluationError
from covey.scores import Record


def record(samples: int = 30) -> Record:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, samples, 3, generator=generator)
    return Record(outputs, torch.arange(samples) % 3, validation=(outputs, torch.arange(samples) % 3))


def test_a_full_disk_leaves_the_outputs_of_before(tmp_path: Path) -> None:
    path = tmp_path / "outputs.npz"
    record().save(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as if there were 4 KiB left
    try:
        with pytest.raises(OSError, match=r"too large|[Ss]pace"):
            record(5000).save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_file_that_was_cut_short(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "outputs.npz"
    record().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(
        EvaluationError, match=r"outputs.npz: not a whole file of members' outputs.*evaluate again"
    ):
        Record.load(path)


def test_a_file_that_is_not_there_or_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"No such file"):
        Record.load(tmp_path / "outputs.npz")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(EvaluationError, match=r"a.npz: not a whole file of members' outputs"):
        Record.load(tmp_path / "a.npz")
    about = np.array('{"format": 1, "task": "classification", "classes": []}')
    np.savez(tmp_path / "b.npz", about=about, targets=np.zeros(3))
    with pytest.raises(EvaluationError, match=r"it lacks outputs"):
        Record.load(tmp_path / "b.npz")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_without_effect(tmp_path: Path, place: int, value: int) -> None:
    path = tmp_path / "outputs.npz"
    record().save(path)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= value
    path.write_bytes(content)
    try:
        found = Record.load(path)
    except CoveyError:
        return
    assert torch.equal(found.outputs, record().outputs)
