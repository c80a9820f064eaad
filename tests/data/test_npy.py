"""Array files of strangers: whole ones give what numpy gives, all others a clear error and no memory."""

import io
import os
import resource
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey.data import load, read_inputs
from covey.data.npy import map_npy, read_npy, read_npz
from covey.errors import DataError

RECORD = {"shape": [1, 4, 4], "columns": [], "task": "classification", "normalisation": None}
IN_TEMPORARY = [HealthCheck.function_scoped_fixture]
DTYPES = (
    hnp.boolean_dtypes() | hnp.integer_dtypes(endianness="?") | hnp.floating_dtypes(endianness="?")
    | hnp.unicode_string_dtypes(max_len=4) | hnp.byte_string_dtypes(max_len=4)
)  # fmt: skip


def npy(shape, dtype="<f8", content=b"", version=1):
    """An .npy file whose header says so, whatever follows."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}}}".encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + content


def npz(path, method=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def as_npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@settings(max_examples=80, deadline=None, suppress_health_check=IN_TEMPORARY)
@given(
    array=hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)),
    fortran=st.booleans(),
    packed=st.booleans(),
)
def test_whole_files_give_what_numpy_gives(tmp_path, array, fortran, packed):
    array = np.asfortranarray(array) if fortran else array
    np.save(tmp_path / "a.npy", array)
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", first=array, second=array)
    for found in (read_npy(tmp_path / "a.npy"), *read_npz(tmp_path / "a.npz").values()):
        np.testing.assert_array_equal(found, array)
        assert found.shape == array.shape
        assert found.dtype.isnative


@settings(max_examples=150, deadline=None, suppress_health_check=IN_TEMPORARY)
@given(
    packed=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 200),
)
@example(packed=True, changes=[], cut=1)
def test_damage_is_an_error_of_ours_or_without_effect(tmp_path, packed, changes, cut):
    array = np.arange(60.0).reshape(3, 20)
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", x=array)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "a.npz").write_bytes(content[: len(content) - cut])
    try:
        found = read_npz(tmp_path / "a.npz")
    except DataError:
        return
    for other in found.values():
        np.testing.assert_array_equal(other, array)


@settings(max_examples=100, deadline=None, suppress_health_check=IN_TEMPORARY)
@given(content=st.binary(max_size=200), head=st.sampled_from([b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04"]))
def test_rubbish(tmp_path, content, head):
    for name, read in (("a.npy", read_npy), ("b.npy", map_npy), ("a.npz", read_npz)):
        (tmp_path / name).write_bytes(head + content)
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


@pytest.fixture
def little_memory():
    """Whoever asks for more than a GiB on top of what this process has fails."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        present = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6), (2**62, 4), (-1, 5), (2**70,)])
def test_shapes_are_held_against_the_files_size_before_memory_is_asked_for(tmp_path, little_memory, shape):
    (tmp_path / "a.npy").write_bytes(npy(shape, content=bytes(80)))
    npz(tmp_path / "a.npz", x=npy(shape, content=bytes(80)))
    npz(tmp_path / "b.npz", zipfile.ZIP_DEFLATED, x=npy(shape, content=bytes(80)))
    for name, read in (("a.npy", read_npy), ("a.npy", map_npy), ("a.npz", read_npz), ("b.npz", read_npz)):
        with pytest.raises(DataError, match=rf"{name} is not an .np[yz] file .* shape"):
            read(tmp_path / name)


def test_a_zip_that_lies_about_the_size_of_its_member(tmp_path, little_memory):
    """Header and central directory both promise 8e11 bytes; the file has some hundred."""
    path = npz(tmp_path / "a.npz", x=npy((10**8,), content=bytes(80)))
    content = path.read_bytes()
    true = struct.pack("<II", *[len(npy((10**8,), content=bytes(80)))] * 2)
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, struct.pack("<II", len(content), 8 * 10**8 + 200)))
    with pytest.raises(DataError, match=r"'x' is said to have 800,000,200 bytes, and the file has"):
        read_npz(path)


def test_a_bomb_that_is_whole(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10**6))
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)  # a machine with a million bytes
    with pytest.raises(DataError, match=r"a.npz: 'x' needs 0.0 GiB of memory, and this machine has"):
        read_npz(tmp_path / "a.npz")


def encrypted(path):
    """The archive with its members marked as encrypted."""
    content = bytearray(path.read_bytes())
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(head) + offset] |= 1
    path.write_bytes(content)


def unknown_packing(path):
    content = bytearray(path.read_bytes())
    for head, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        content[content.index(head) + offset] = 99
    path.write_bytes(content)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:50])


def other_bytes(path):
    content = bytearray(path.read_bytes())
    content[-200:-150] = bytes(50)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [encrypted, unknown_packing, cut_short, other_bytes])
def test_broken_archives(tmp_path, damage):
    x, y = np.random.default_rng(0).random((9, 4, 4)), np.arange(9) % 3
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y)
    damage(tmp_path / "a.npz")
    for read in (load, lambda path: read_inputs(path, RECORD)):
        with pytest.raises(DataError, match=r"a.npz is not an .npz file of plain arrays, or it is damaged"):
            read(tmp_path / "a.npz")


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.array([Harmful()], dtype=object)
    np.save("a.npy", objects, allow_pickle=True)
    np.savez("a.npz", x=objects, y=np.arange(1))
    for name, read in (("a.npy", read_npy), ("a.npy", map_npy), ("a.npz", read_npz)):
        with pytest.raises(DataError, match="elements of type object; expected numbers or words"):
            read(tmp_path / name)
    (tmp_path / "b.npy").write_bytes(b"\x80\x04\x95")
    with pytest.raises(DataError, match="not an .npy file"):
        read_npy(tmp_path / "b.npy")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.array(1.0), "y": np.array(1)}, r"x has shape \(\); expected \(N, D\)"),
        ({"x": np.zeros(5), "y": np.arange(5)}, r"x has shape \(5,\)"),
        ({"x": np.full((4, 2), "word"), "y": np.arange(4)}, r"x holds words \(<U4\); expected numbers"),
        ({"x": np.zeros((4, 0)), "y": np.arange(4)}, "its samples are empty"),
        ({"x": np.zeros((4, 2), complex), "y": np.arange(4)}, "elements of type complex128"),
        ({"x": np.zeros((4, 2), "f4,i4"), "y": np.arange(4)}, "expected numbers or words"),
        ({"x": np.zeros((4, 2)), "y": np.array(1)}, r"y is \(\)"),
        ({}, "has no arrays; expected x and y"),
        (
            {
                "x_train": np.zeros((4, 2)),
                "y_train": np.arange(4),
                "x_test": np.zeros((1, 2)),
                "y_test": ["a"],
            },
            "words in one part and numbers in another: train int64, test <U1",
        ),
    ],
)
def test_arrays_that_are_no_samples(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.npz")


def test_things_in_an_archive_that_are_no_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match=r"it holds 'readme.txt', which is no array"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.csv", "a.txt"])
def test_pipes(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for read in (load, lambda path: read_inputs(path, RECORD)):
        with pytest.raises(DataError, match="no ordinary file"):
            read(tmp_path / name)
