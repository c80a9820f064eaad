"""Files are there whole or not at all, whatever happens to the process that writes them."""

import errno
import os
import stat
import subprocess
import sys
import time

import pytest

from covey.errors import StoreError
from covey.files import STALE, is_ordinary, whole, write_text


@pytest.fixture
def umask():
    """Sets the umask, and puts it back."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, umask, mask, mode):
    umask(mask)
    write_text(tmp_path / "a.txt", "a")
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


def test_what_a_killed_process_left_is_collected_by_the_next_one(tmp_path):
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom covey.files import whole\n"
        "with whole(Path(sys.argv[1]) / 'a.txt') as path:\n"
        "    path.write_text('half of')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".covey-")
    write_text(tmp_path / "b.txt", "b")
    assert left.exists(), "its process might still be writing"
    long_ago = time.time() - STALE - 60
    os.utime(left, (long_ago, long_ago))
    write_text(tmp_path / "c.txt", "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.txt", "c.txt"]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with (
        pytest.raises(StoreError, match="a.txt cannot be written: No space left on device. Make room"),
        whole(tmp_path / "a.txt"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_nothing_but_drafts_is_collected(tmp_path):
    long_ago = time.time() - STALE - 60
    (tmp_path / ".covey-folder").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    write_text(tmp_path / "a.txt", "a")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".covey-folder", "a.txt", "notes.txt"]


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def fail():
        with whole(tmp_path / "a.txt") as path:
            path.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_ordinary_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "link").symlink_to("a.txt")
    assert is_ordinary(tmp_path / "a.txt")
    assert is_ordinary(tmp_path / "link")
    assert not is_ordinary(tmp_path / "pipe")
    assert not is_ordinary(tmp_path)
    assert not is_ordinary(tmp_path / "nothing")
