"""One process at a time writes into a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.cli import executing, main
from covey.cli.planned import PlannedRun
from covey.cli.settings import Settings
from covey.data import Data, Split
from covey.errors import StoreError
from covey.locks import NAME, locked

_HOLDER = """
import sys, time
from covey.locks import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(100)
"""


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock of a folder."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def data() -> Data:
    part = Split(torch.randn(12, 4), torch.arange(12) % 3)
    return Data(part, part, part, task="classification", classes=("a", "b", "c"), shape=(4,))


@pytest.mark.timeout(120)
def test_everything_that_writes_into_a_run_waits_for_nobody_and_says_who_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    network = nn.Linear(4, 3)
    quiet = covey.Machine(accelerator="cpu", progress=False)
    with held_by_another(run) as holder:
        words = rf"run.* is being written by process {holder.pid} on .+ since \d{{4}}-.*choose another folder"
        with pytest.raises(StoreError, match=words):
            covey.fit(network, data(), covey.Recipe(epochs=1), folder=run, machine=quiet)
        with pytest.raises(StoreError, match=words):
            covey.evaluate(network, data(), folder=run)
        for command in (["train", "single", "--data", "digits", "--folder"], ["evaluate"]):
            assert main.main([*command, str(run)]) == 2
            assert f"is being written by process {holder.pid}" in capsys.readouterr().err
        told = executing.do_run(PlannedRun("a label", Settings(), run, 0))
        assert told is not None
        assert f"process {holder.pid}" in told
        with pytest.raises(StoreError, match="the comparison in .* is being written by process"):
            executing.execute([], run)
        assert sorted(path.name for path in run.iterdir()) == [NAME]  # nothing was written
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with locked(run):  # it went with its process
            pass


def test_a_thread_may_take_its_lock_again_and_another_may_not(tmp_path: Path) -> None:
    found: list[str] = []

    def other() -> None:
        try:
            with locked(tmp_path):
                found.append("held twice")
        except StoreError as error:
            found.append(str(error))

    with locked(tmp_path):
        with locked(tmp_path):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert f"process {os.getpid()} on" in found[0]
    with locked(tmp_path):
        pass


def test_a_lock_that_is_no_ordinary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot write to"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_a_folder_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("run")
    with pytest.raises(StoreError, match="cannot write to .*Choose another folder"), locked(tmp_path / "run"):
        pass


@pytest.mark.skipif(
    sys.platform == "win32", reason="another file of the same process is no other holder there"
)
@pytest.mark.parametrize("text", ["[" * 4000, '{"pid": 1e999}', "{", '{"pid": 1}', "\0"])
def test_a_lock_whose_holder_wrote_something_else_is_still_a_lock(tmp_path: Path, text: str) -> None:
    import fcntl

    with (tmp_path / NAME).open("w") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="is being written by another process"), locked(tmp_path):
            pass


def test_where_there_are_no_locks_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("covey.locks._lock", refused)
    with locked(tmp_path):
        assert "cannot be locked" in caplog.text


def test_a_run_that_cannot_begin_leaves_no_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "replicate",
        "--where",
        "nowhere",
        "--data",
        "digits",
        "--samples",
        "60",
        "--epochs",
        "1",
    ]
    assert main.main([*words, "--no-progress", "--folder", str(tmp_path)]) == 2
    assert "matches none of the network" in capsys.readouterr().err
    assert not (tmp_path / "settings.json").exists()


def test_a_folder_made_for_a_run_that_was_refused_is_gone(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for folder in (new, old):
        with pytest.raises(ValueError, match="no"), locked(folder):
            raise ValueError("no")
    assert not new.exists()
    assert old.is_dir()
    with contextlib.suppress(ValueError), locked(new):
        (new / "result").touch()
        raise ValueError("later")
    assert (new / "result").exists()
