"""Arrays from .npy and .npz files of strangers: the header is believed only as far as the file's size bears it out.

Nothing is ever unpickled, and no memory is asked for before it is known that the file holds as much.
"""

from __future__ import annotations

import contextlib
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from covey.errors import DataError
from covey.files import is_ordinary, machine_memory

_DEFLATE = 1100  # no deflated byte stands for more than 1,032
_PIECE = 1 << 22  # bytes
_KINDS = "biufSU"  # truths, whole numbers, floats and words; everything else is an object or has fields
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    RecursionError,
    tokenize.TokenError,  # numpy's, of headers that it takes for Python 2's
    RuntimeError,  # an encrypted member; NotImplementedError, a way of packing that zipfile does not know, is one too
    zipfile.BadZipFile,
    zlib.error,
)


class _TooLargeError(Exception):
    """An array is whole, but does not fit into memory."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    size: int  # bytes of all elements


def read_npy(path: Path) -> np.ndarray:
    """The array of an .npy file, of numbers or words."""
    with _clear_errors(path, "an .npy file"), path.open("rb") as file:
        available = os.fstat(file.fileno()).st_size
        return _read(file, available, "the array")


def map_npy(path: Path) -> np.ndarray:
    """The array of an .npy file, which stays on the disk until parts of it are looked at."""
    with _clear_errors(path, "an .npy file"):
        with path.open("rb") as file:
            available = os.fstat(file.fileno()).st_size
            _header(file, available, "the array")
        return np.load(path, mmap_mode="r", allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name."""
    found = {}
    with _clear_errors(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        packed = path.stat().st_size
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise ValueError(f"it holds {name!r}, which is no array")
            if member.file_size > _DEFLATE * packed:
                raise ValueError(
                    f"{name!r} is said to have {member.file_size:,} bytes, and the file has {packed:,}"
                )
            with archive.open(member) as file:
                found[name] = _read(file, member.file_size, repr(name))
                # Reading past the end is what makes zipfile compare the checksum.
                if file.read(1):
                    raise ValueError(f"{name!r} has more bytes than its header says")
    return found


@contextlib.contextmanager
def _clear_errors(path: Path, expected: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes one kind of error, with the file's name."""
    if path.exists() and not is_ordinary(path):
        raise DataError(f"{path} is no ordinary file; expected {expected}")
    try:
        yield
    except _TooLargeError as error:
        raise DataError(f"{path}: {error}; give fewer samples") from error
    except _BROKEN as error:
        raise DataError(
            f"{path} is not {expected} of plain arrays, or it is damaged: {error or type(error).__name__}; "
            "write it again with numpy.save or numpy.savez from arrays of numbers or words"
        ) from error


def _header(file: IO[bytes], available: int, name: str) -> _Header:
    """The header of an array, if the bytes that are there can hold what it promises."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{name} has version {version} of the format, which only arrays with fields need")
    shape, fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise ValueError(f"{name} holds elements of type {dtype}; expected numbers or words")
    if any(axis < 0 for axis in shape):
        raise ValueError(f"{name} has the shape {shape}")
    size = dtype.itemsize
    for axis in shape:
        size *= axis
    left = available - file.tell()
    if size > left:
        raise ValueError(
            f"{name} should have shape {shape}, which takes {size:,} bytes, and there are {left:,}"
        )
    return _Header(shape, fortran, dtype, size)


def _read(file: IO[bytes], available: int, name: str) -> np.ndarray:
    header = _header(file, available, name)
    _check_memory(header.size, name)
    content = np.empty(header.size, np.uint8)
    got = 0
    while got < header.size:
        # A piece at a time, because zipfile makes a copy of what it reads.
        count = file.readinto(content[got : got + _PIECE])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"{name} ends after {got:,} of {header.size:,} bytes")
        got += count
    array = content.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def _check_memory(needed: int, what: str) -> None:
    """Refuse what does not fit into this machine's memory, before it is asked for."""
    there = machine_memory()
    if there is not None and needed > 0.9 * there:
        raise _TooLargeError(
            f"{what} needs {needed / 2**30:.1f} GiB of memory, and this machine has {there / 2**30:.1f}"
        )
