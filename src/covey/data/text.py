"""Text as bytes: windows that are views of one tensor, with the window one byte later as their target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from covey.data.container import Split
from covey.data.raw import Raw
from covey.data.splits import check_shares
from covey.errors import DataError

BYTES = tuple(f"{b:02x}" for b in range(256))


def read_text(path: Path, length: int, validation: float | None, test: float | None) -> Raw:
    """A file of bytes, cut by position into train, validation and test, each into windows of `length`.

    No byte is copied: inputs and targets are strided views (N, T) of the file's bytes. Fewer than T bytes at
    the end of each part make no whole window and are not used.
    """
    if length < 1:
        raise DataError(f"windows must have a length of at least 1; got length={length}")
    tokens = torch.from_numpy(np.fromfile(path, np.uint8))
    # 90, 5 and 5 % by position is the usual cut of enwik8.
    shares = {
        "validation": 0.05 if validation is None else validation,
        "test": 0.05 if test is None else test,
    }
    check_shares(shares)
    held = {part: round(share * len(tokens)) for part, share in shares.items()}
    sizes = {"train": len(tokens) - sum(held.values()), **held}
    parts = {}
    for (part, size), piece in zip(sizes.items(), tokens.split(list(sizes.values())), strict=True):
        if size == 0 and part != "train":
            continue
        if size <= length:
            raise DataError(
                f"{path} is too short: {part} has {size} of its {len(tokens)} bytes, and a window of "
                f"{length} needs "
                f"{length + 1}; give a smaller length or more text"
            )
        parts[part] = Split(piece[:-1].unfold(0, length, length), piece[1:].unfold(0, length, length))
    unused = sum(sizes[part] - split.inputs.numel() for part, split in parts.items())
    notes = (f"bytes in order, windows of {length}; {unused} bytes at the ends of the parts are not inputs",)
    return Raw(parts, "language", BYTES, notes=notes)
