"""Tensors in files whose name tells whether they are whole: safetensors, named after a checksum of their content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.errors import StoreError
from covey.files import draft, settle

_SUFFIX = ".safetensors"
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
    metadata = None if about is None else {"covey": json.dumps(about)}
    with draft(folder) as path:
        try:
            save_file(plain, path, metadata)
        except SafetensorError as error:  # a full disk comes as this
            raise OSError(str(error)) from error
        final = folder / f"{prefix}-{digest(path)[:16]}{_SUFFIX}"
        settle(path, final)
    return final


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors of a file that `write_tensors` wrote; a StoreError where it is not whole."""
    check_whole(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            # cloned, because memory that is aligned otherwise gives other last bits
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return json.loads(metadata.get("covey", "{}")), tensors
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a file, without reading the tensors."""
    regular(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def check_whole(path: Path) -> None:
    """Refuse a file that is not there, is no ordinary file, or does not have the checksum in its name."""
    regular(path)
    named = _NAME.fullmatch(path.name)
    if named is None or digest(path)[:16] != named.group(1):
        raise StoreError(f"{path} is damaged or cut short: its checksum is not the one in its name.")


def regular(path: Path) -> None:
    """Refuse what is no ordinary file, such as a pipe, from which one could read for ever."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is missing or cannot be read: {error}.") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is no ordinary file.")


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total.update(block)
    return total.hexdigest()
