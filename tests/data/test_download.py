"""Downloads from a server on this machine: what works, and every way in which one goes wrong."""

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from covey.data import KNOWN, catalogue, known, load
from covey.data.download import Remote, fetch
from covey.errors import DataError

CONTENT = b"To be, or not to be: that is the question. " * 100


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


RECORDS = np.random.default_rng(0).integers(0, 100, (300, 3074), dtype=np.uint8)
RECORDS[:, 1] = np.arange(300) % 100
FILES = {
    "/input.txt": CONTENT,
    "/cifar.tar.gz": tar(
        {"cifar-100-binary/train.bin": RECORDS.tobytes(), "cifar-100-binary/test.bin": RECORDS.tobytes()}
    ),
    "/enwik8.zip": zipped({"enwik8": CONTENT}),
    "/letters.zip": zipped({"gzip/a.gz": b"a", "gzip/b.gz": b"b", "gzip/unwanted": b"c"}),
    "/outside.tar": tar({"../outside": b"x"}),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/short")
        if path not in FILES:
            self.send_error(404)
            return
        content = FILES[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if path != self.path else content)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def md5(content):
    return "md5:" + hashlib.md5(content).hexdigest()


def leftovers(root):
    return [p for p in root.rglob("*") if p.is_file()]


def test_a_file(server, tmp_path):
    fetch(Remote((server + "/input.txt",), md5(CONTENT), "text/input.txt"), tmp_path)
    assert (tmp_path / "text/input.txt").read_bytes() == CONTENT
    assert leftovers(tmp_path) == [tmp_path / "text/input.txt"]


def test_progress_is_shown_when_asked_for(server, tmp_path, capfd):
    fetch(Remote((server + "/input.txt",), None, "input.txt"), tmp_path, progress=True)
    assert "4.30k" in capfd.readouterr().err


def test_a_wrong_checksum(server, tmp_path):
    wrong = "md5:" + "0" * 32
    with pytest.raises(DataError) as caught:
        fetch(Remote((server + "/input.txt",), wrong, "text/input.txt"), tmp_path)
    words = str(caught.value)
    for part in ("input.txt", server, wrong, md5(CONTENT), "try again", str(tmp_path / "text/input.txt")):
        assert part in words
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("checksum", [md5(CONTENT), None])
def test_a_truncated_file(server, tmp_path, checksum):
    with pytest.raises(
        DataError, match=r"could not download input.txt.*expected the whole file, got \d+ bytes"
    ):
        fetch(Remote((server + "/short/input.txt",), checksum, "text/input.txt"), tmp_path)
    assert leftovers(tmp_path) == []


def test_not_found(server, tmp_path):
    with pytest.raises(
        DataError, match=r"could not download nothing.txt.*/nothing.txt: expected the file.*404"
    ):
        fetch(Remote((server + "/nothing.txt",), None, "nothing.txt"), tmp_path)


def test_no_server_there(tmp_path):
    with pytest.raises(DataError, match="Check the connection and try again"):
        fetch(Remote(("http://127.0.0.1:9/x.txt",), None, "x.txt"), tmp_path)


def test_a_second_place_is_tried(server, tmp_path):
    fetch(Remote((server + "/nothing", server + "/input.txt"), md5(CONTENT), "input.txt"), tmp_path)
    assert (tmp_path / "input.txt").read_bytes() == CONTENT


def test_some_files_of_an_archive_without_its_folders(server, tmp_path):
    members = ("gzip/a.gz", "gzip/b.gz")
    remote = Remote((server + "/letters.zip",), None, "raw", archive=True, members=members, flatten=True)
    fetch(remote, tmp_path)
    assert sorted(p.name for p in (tmp_path / "raw").iterdir()) == ["a.gz", "b.gz"]


@pytest.mark.parametrize("path", ["/input.txt", "/outside.tar"])
def test_an_archive_that_is_none_or_leads_outside(server, tmp_path, path):
    with pytest.raises(DataError, match="is not the archive that was expected"):
        fetch(Remote((server + path,), None, "", archive=True), tmp_path / "data")
    assert leftovers(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot write into the data folder"):
        fetch(Remote(("http://127.0.0.1:9/x",), None, "x"), tmp_path / "file")


def local(monkeypatch, name, *remotes):
    """Let a known set come from the server of this test."""
    changed = {**KNOWN, name: replace(KNOWN[name], remotes=remotes)}
    monkeypatch.setattr(known, "KNOWN", changed)
    monkeypatch.setattr(catalogue, "KNOWN", changed)


def test_a_known_set_is_fetched_when_it_is_not_there(server, tmp_path, monkeypatch):
    content = FILES["/cifar.tar.gz"]
    local(monkeypatch, "cifar100", Remote((server + "/cifar.tar.gz",), md5(content), "", archive=True))
    data = load("cifar100", tmp_path / "new", validation=0.0)
    assert (len(data.train), len(data.test)) == (300, 300)
    monkeypatch.setitem(known.KNOWN, "cifar100", replace(KNOWN["cifar100"], remotes=()))
    assert (
        len(load("cifar100", tmp_path / "new", validation=0.0).train) == 300
    )  # the second time from the disk


def test_what_is_missing_is_fetched_by_name(server, tmp_path, monkeypatch):
    (tmp_path / "cifar-100-binary").mkdir()
    RECORDS[:200].tofile(tmp_path / "cifar-100-binary/test.bin")
    local(monkeypatch, "cifar100", Remote((server + "/cifar.tar.gz",), None, "", archive=True))
    with pytest.warns(
        UserWarning, match=r"test part only.*train.bin.*covey.data.download\('cifar100', root\)"
    ):
        load("cifar100", tmp_path)
    known.download("cifar100", tmp_path)
    assert len(load("cifar100", tmp_path, validation=0.0).train) == 300


def test_a_text_is_fetched_and_unpacked(server, tmp_path, monkeypatch):
    local(monkeypatch, "enwik8", Remote((server + "/enwik8.zip",), None, "enwik8", archive=True))
    data = load("enwik8", tmp_path, length=16)
    assert bytes(data.train.inputs[0].tolist()) == CONTENT[:16]


def test_an_archive_without_the_files(server, tmp_path, monkeypatch):
    local(monkeypatch, "cifar100", Remote((server + "/enwik8.zip",), None, "", archive=True))
    with pytest.raises(DataError, match=r"the download did not bring cifar-100-binary/train.bin"):
        load("cifar100", tmp_path)
