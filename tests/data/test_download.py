"""Downloads from a server on this machine: what works, and every way in which one goes wrong."""

import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import requests

from covey.cli import commands
from covey.cli.flags import UsageError
from covey.data import KNOWN, catalogue, known, load
from covey.data.download import Remote, _cause, fetch
from covey.errors import DataError

download = sys.modules["covey.data.download"]  # the package's attribute of this name is the function
CONTENT = b"To be, or not to be: that is the question. " * 100


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def tar_with(**changes):
    """An archive with one harmless file, and one that is changed so."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("harmless", "harmful"):
            member = tarfile.TarInfo(name)
            if name == "harmful":
                for key, value in changes.items():
                    setattr(member, key, value)
            archive.addfile(member)
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def encrypted():
    """An archive whose file is marked as encrypted."""
    content = bytearray(zipped({"secret": b"x"}))
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(head) + offset] |= 1
    return bytes(content)


def linked():
    """A zip with a symbolic link."""
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped({"harmless": b"x", link: b"/etc/passwd"})


def damaged():
    content = bytearray(zipped({"a": CONTENT}))
    content[50:60] = bytes(10)
    return bytes(content)


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
HARMFUL = {
    "/outside.zip": (zipped({"harmless": b"x", "../outside": b"x"}), "'../outside' in it leads outside"),
    "/deep.zip": (zipped({"a/b/../../../outside": b"x"}), "leads outside"),
    "/absolute.zip": (zipped({"/tmp/outside": b"x"}), "'/tmp/outside' in it leads outside"),
    "/drive.zip": (zipped({"C:outside": b"x"}), "leads outside"),
    "/backslash.zip": (zipped({"..\\outside": b"x"}), "leads outside"),
    "/absolute.tar": (tar_with(name="/tmp/outside"), "'/tmp/outside' in it leads outside"),
    "/outside2.tar": (tar_with(name="a/../../outside"), "leads outside"),
    "/link.tar": (
        tar_with(type=tarfile.SYMTYPE, linkname="harmless"),
        "'harmful' in it is a link or a device",
    ),
    "/hard.tar": (tar_with(type=tarfile.LNKTYPE, linkname="harmless"), "is a link or a device"),
    "/device.tar": (tar_with(type=tarfile.CHRTYPE), "is a link or a device"),
    "/pipe.tar": (tar_with(type=tarfile.FIFOTYPE), "is a link or a device"),
    "/link.zip": (linked(), "'link' in it is a link or a device"),
    "/encrypted.zip": (encrypted(), "'secret' is encrypted"),
    "/damaged.zip": (damaged(), "CRC"),
    "/cut.tar": (FILES["/cifar.tar.gz"][:5000], "end"),
}
FILES |= {path: content for path, (content, _) in HARMFUL.items()}
REDIRECTS = {
    "/circle": "/circle",
    "/file": "file:///etc/passwd",
    "/nowhere": "http://[bad",
    "/empty": "http:///",
    "/long": "http://" + 300 * "a" + ".invalid/",
}
STOP = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path in REDIRECTS:
            self.send_response(302)
            self.send_header("Location", REDIRECTS[self.path])
            self.end_headers()
            return
        if self.path.startswith("/slow"):
            self.drip()
            return
        path = self.path.removeprefix("/short")
        if path not in FILES:
            self.send_error(404)
            return
        content = FILES[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if path != self.path else content)

    def drip(self):
        """A byte now and then: of the content, or of a header already."""
        self.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"X: " if self.path == "/slow/header" else b"\r\n"))
        while not STOP.wait(0.02):
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    STOP.set()
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", ["/slow/content", "/slow/header"])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, tmp_path, monkeypatch, path):
    monkeypatch.setattr(download, "WINDOW", 0.5)
    with pytest.raises(
        DataError, match=r"the server is too slow: expected at least 65536 bytes in 0.5 seconds"
    ):
        fetch(Remote((server + path,), None, "x.txt"), tmp_path)
    assert leftovers(tmp_path) == []
    fetch(Remote((server + path, server + "/input.txt"), md5(CONTENT), "x.txt"), tmp_path)
    assert (tmp_path / "x.txt").read_bytes() == CONTENT


@pytest.mark.timeout(60)
def test_a_download_that_takes_too_long_in_all(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "LEAST", 0)
    monkeypatch.setattr(download, "LONGEST", 0.2)
    with pytest.raises(DataError, match=r"got \d+ bytes in 5.56e-05 hours, and gave up"):
        fetch(Remote((server + "/slow/content",), None, "x.txt"), tmp_path)


@pytest.mark.parametrize("path", sorted(REDIRECTS))
def test_redirects_that_lead_nowhere(server, tmp_path, path):
    with pytest.raises(DataError, match=rf"could not download {path[1:]}\. .*{path}: expected the"):
        fetch(Remote((server + path,), None, "x.txt"), tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("path", sorted(HARMFUL))
def test_harmful_and_broken_archives(server, tmp_path, path):
    words = re.escape(HARMFUL[path][1])
    with pytest.raises(DataError, match=rf"{path} is not the archive that was expected: .*{words}"):
        fetch(Remote((server + path,), None, "", archive=True), tmp_path / "data")
    assert leftovers(tmp_path) == []


def test_an_archive_that_does_not_fit_on_the_disk(server, tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(DataError, match=r"the archive takes 0.0 GiB when it is unpacked, and the disk of"):
        fetch(Remote((server + "/enwik8.zip",), None, "", archive=True), tmp_path)


def test_what_a_killed_download_left_is_collected(server, tmp_path):
    for name, age in ((".download-old", 2 * download.LONGEST), (".download-new", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file0").write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    fetch(Remote((server + "/input.txt",), None, "input.txt"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".download-new", "input.txt"]


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
        UserWarning, match=r"test part only.*train.bin.*`covey data cifar100 --root \S+ --download` fetches"
    ):
        load("cifar100", tmp_path)
    assert commands.data(["cifar100", "--root", str(tmp_path), "--download"]) == 0
    assert len(load("cifar100", tmp_path, validation=0.0).train) == 300
    with pytest.raises(UsageError, match="--download is for known data sets"):
        commands.data([str(tmp_path), "--download"])


def test_a_text_is_fetched_and_unpacked(server, tmp_path, monkeypatch):
    local(monkeypatch, "enwik8", Remote((server + "/enwik8.zip",), None, "enwik8", archive=True))
    data = load("enwik8", tmp_path, length=16)
    assert bytes(data.train.inputs[0].tolist()) == CONTENT[:16]


def test_an_archive_without_the_files(server, tmp_path, monkeypatch):
    local(monkeypatch, "cifar100", Remote((server + "/enwik8.zip",), None, "", archive=True))
    with pytest.raises(DataError, match=r"the download did not bring cifar-100-binary/train.bin"):
        load("cifar100", tmp_path)


def test_a_server_that_cannot_be_reached_is_told_in_the_systems_words():
    error = requests.ConnectionError("HTTPSConnectionPool(host='x', port=443): Max retries exceeded")
    error.__context__ = OSError(-2, "Name or service not known")
    assert _cause(error) == " (name or service not known)"
    assert _cause(requests.ConnectionError("reset")) == ""
