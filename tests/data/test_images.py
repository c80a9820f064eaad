"""Image files that do harm: other formats under an image's name, pipes, folders, bombs, damage."""

import io
import os
import struct
import warnings
import zlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from covey.data import load, read_inputs
from covey.data.pictures import read_images
from covey.errors import DataError

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
showpage
%%EOF
"""
RECORD = {"shape": [1, 8, 8], "columns": [], "task": "classification", "normalisation": None}


def png(width, height):
    """A PNG that says it has this size, with next to nothing in it."""

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def picture(format):
    file = io.BytesIO()
    Image.linear_gradient("L").resize((8, 8)).save(file, format)
    return file.getvalue()


def test_an_eps_file_called_png_starts_no_other_program(tmp_path, monkeypatch):
    """Pillow hands EPS to Ghostscript; here a script stands in for it, and tells whether it was started."""
    started = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(DataError, match=r"cannot read the image .*a.png: .*cannot identify"):
        read_images([tmp_path / "a.png"])
    assert not started.exists()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_formats_that_are_read_whatever_the_name(tmp_path, format):
    (tmp_path / "a.png").write_bytes(picture(format))
    assert read_images([tmp_path / "a.png"], channels=1).shape == (1, 1, 8, 8)


def test_pipes_are_refused_and_folders_passed_over(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe.png: it is no ordinary file"):
        read_images([tmp_path / "pipe.png"])
    with pytest.raises(DataError, match="it is no ordinary file"):
        read_images([tmp_path])
    for name in ("cat", "dog"):
        (tmp_path / "set" / name / "folder.png").mkdir(parents=True)
        for i in range(9):
            (tmp_path / "set" / name / "folder.png" / f"{i}.png").write_bytes(picture("PNG"))
    data = load(tmp_path / "set")
    assert len(data.train) + len(data.validation) + len(data.test) == 18
    names, _ = read_inputs(tmp_path / "set", RECORD)
    assert len(names) == 18
    os.mkfifo(tmp_path / "set" / "cat" / "pipe.png")
    with pytest.raises(DataError, match=r"cat/pipe.png: it is no ordinary file"):
        load(tmp_path / "set")


@pytest.mark.parametrize("side", [10_000, 60_000, 2**31 - 1])
@pytest.mark.parametrize("quiet", [True, False])
def test_bombs(tmp_path, side, quiet):
    (tmp_path / "bomb.png").write_bytes(png(side, side))
    with warnings.catch_warnings():
        if quiet:  # as for a user, to whom warnings are no errors
            warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=r"cannot read the image .*bomb.png: .*pixels"):
            read_images([tmp_path / "bomb.png"], size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format=st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"]),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 60),
)
def test_damage_is_an_error_of_ours_or_an_image(tmp_path, format, changes, cut):
    content = bytearray(picture(format))
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "a.png").write_bytes(content[: max(1, len(content) - cut)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read_images([tmp_path / "a.png"], size=(1, 8, 8))
        except DataError:
            return
    assert found.dtype == torch.uint8
    assert found.shape == (1, 1, 8, 8)
