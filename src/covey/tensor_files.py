"""Tensors in files whose name tells whether they are whole: safetensors, named after a checksum of their content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.errors import StoreError
from covey.files import check_stored, draft, machine_memory, settle
from covey.schema import Many, Named, Word, check, parse_json

# safetensors' names of the dtypes that covey stores
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U16": "uint16",
    "U32": "uint32", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # which is safetensors' own limit
_SUFFIX = ".safetensors"
# safetensors does not know it: stored as pairs of real numbers, whose names stand in the metadata under this one
_PAIRS = "complex128"
_NAME = re.compile(r".+-([0-9a-f]{16})\.safetensors")


def write_tensors(
    folder: Path, prefix: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None
) -> Path:
    """Write tensors to `folder/prefix-CHECKSUM.safetensors`, in one step; returns the path.

    Args:
        folder: where; it must exist.
        prefix: of the file's name.
        tensors: by name.
        about: a record that the file carries, as JSON holds it.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {} if about is None else {"covey": json.dumps(about)}
    pairs = [name for name, tensor in plain.items() if tensor.dtype == torch.complex128]
    if pairs:
        metadata[_PAIRS] = json.dumps(pairs)
        plain |= {name: torch.view_as_real(plain[name].resolve_conj()) for name in pairs}
    with draft(folder) as path:
        try:
            save_file(plain, path, metadata or None)
        except SafetensorError as error:  # a full disk comes as this
            raise OSError(str(error)) from error
        final = folder / f"{prefix}-{digest(path)[:16]}{_SUFFIX}"
        settle(path, final)
    return final


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors of a file that `write_tensors` wrote; a StoreError where it is not whole."""
    header = read_header(path)
    check_whole(path)
    _check_memory(path, header.bytes)
    with _opened(path) as file:
        return header.about, _all_tensors(file, header)


def read_foreign_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file that another program wrote, whose name holds no checksum."""
    header = read_header(path)
    _check_memory(path, header.bytes)
    with _opened(path) as file:
        return _all_tensors(file, header)


def _all_tensors(file: Any, header: Header) -> dict[str, Tensor]:
    """What is in an open file, by name."""
    found = {}
    for name, (_, dtype) in header.tensors.items():
        # cloned, because memory that is aligned otherwise gives other last bits
        tensor = file.get_tensor(name).clone()
        found[name] = torch.view_as_complex(tensor) if dtype == _PAIRS else tensor
    return found


@dataclass(frozen=True)
class Header:
    """What a tensor file says of itself, without its tensors.

    Args:
        tensors: name -> [shape, dtype] of every tensor.
        about: the record that the file carries.
        bytes: of all tensors.
    """

    tensors: dict[str, list]
    about: dict[str, Any]
    bytes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors' shapes by name."""
        return {name: tuple(shape) for name, (shape, _) in self.tensors.items()}


def listing(tensors: Mapping[str, Tensor]) -> dict[str, list]:
    """Name -> [shape, dtype] of tensors, as JSON holds it and as `Header.tensors` has it."""
    return {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()}


def read_header(path: Path) -> Header:
    """A file's header, which safetensors has compared with the file's size."""
    check_stored(path)
    check_size(path)
    tensors: dict[str, list] = {}
    with _opened(path) as file:
        metadata = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            code = part.get_dtype()
            if code not in DTYPES:
                raise StoreError(f"{path}: the tensor {name!r} has the unknown dtype {code!r}.")
            tensors[name] = [list(part.get_shape()), DTYPES[code]]
    for name in _pairs(metadata, path):
        shape, dtype = tensors.get(name, ([], ""))
        if dtype != "float64" or shape[-1:] != [2]:
            raise StoreError(f"{path}: the tensor {name!r} is named as one of complex numbers, and is none.")
        tensors[name] = [shape[:-1], _PAIRS]
    about = parse_json(metadata.get("covey", "{}"), path)
    check(about, Named(), path)
    return Header(tensors, about, path.stat().st_size)


def _pairs(metadata: Mapping[str, str], path: Path) -> list[str]:
    """Names of the tensors that are stored as pairs of real numbers."""
    names = parse_json(metadata.get(_PAIRS, "[]"), path)
    check(names, Many(Word()), path)
    return names


def check_size(path: Path) -> None:
    """Refuse a file that is not as long as its header says, before safetensors maps it into memory."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, _LONGEST_HEADER):
                raise ValueError(f"its header should have {length} bytes")
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        if size != expected:
            raise ValueError(f"it has {size} bytes, and its header speaks of {expected}")
    except (
        OSError,
        struct.error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise StoreError(f"{path} is damaged or cut short: {error}.") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise StoreError(f"{path} is damaged or cut short: {error}.") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def check_whole(path: Path) -> None:
    """Refuse a file that does not have the checksum in its name."""
    named = _NAME.fullmatch(path.name)
    if named is None or digest(path)[:16] != named.group(1):
        raise StoreError(f"{path} is damaged or cut short: its checksum is not the one in its name.")


def _check_memory(path: Path, needed: int) -> None:
    """Refuse tensors that do not fit into this machine's memory, before it is asked for."""
    there = machine_memory()
    if there is not None and needed > 0.9 * there:
        raise StoreError(
            f"{path} holds {needed / 2**30:.1f} GiB of tensors, and this machine has {there / 2**30:.1f} GiB of memory."
        )


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total.update(block)
    return total.hexdigest()
