"""Seeded, stratified splits, and the record of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from covey.data import keyed
from covey.errors import DataError

_SPLIT = 2  # keeps the split's numbers apart from those of the epochs' order


def stratified(
    targets: Tensor, shares: Mapping[str, float], *, seed: int, classes: Sequence[str] | None
) -> dict[str, Tensor]:
    """Row numbers of each part, in rising order; whatever no part takes goes to "train".

    Args:
        targets: (N,) class numbers, or the numbers of a regression.
        shares: share of the rows for each further part, such as {"validation": 0.1, "test": 0.2}.
        seed: fixes which rows go where.
        classes: names of the classes; every class then has its share in every part. None: not stratified.
    """
    check_shares(shares)
    shares = {name: share for name, share in shares.items() if share > 0}
    order = keyed.permutation(len(targets), (seed, _SPLIT))
    if classes is None:
        groups = {"": order}
    else:
        shuffled = targets[order]
        groups = {name: order[shuffled == k] for k, name in enumerate(classes)}
    parts: dict[str, list[Tensor]] = {name: [] for name in ("train", *shares)}
    for label, rows in groups.items():
        sizes = {name: max(1, round(share * len(rows))) for name, share in shares.items()}
        if len(rows) < 1 + sum(sizes.values()):
            what = f"class {label!r} has" if classes is not None else "there are"
            raise DataError(
                f"{what} only {len(rows)} samples, too few to have at least one in each of "
                f"{', '.join(parts)}; add samples, leave it out with held_out, or ask for fewer parts "
                "(validation=0)"
            )
        sizes = {"train": len(rows) - sum(sizes.values()), **sizes}
        for name, piece in zip(sizes, rows.split(list(sizes.values())), strict=True):
            parts[name].append(piece)
    return {name: torch.cat(pieces).sort().values for name, pieces in parts.items()}


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse shares that leave nothing to train on."""
    if min(shares.values(), default=0) < 0 or sum(shares.values()) >= 1:
        raise DataError(
            f"the shares held back from training must be at least 0 and below 1 in all; got {dict(shares)}"
        )


def digest(indices: Tensor) -> str:
    """SHA-256 of row numbers, to tell whether two runs had the same rows."""
    return hashlib.sha256(indices.to(torch.int64).numpy().astype("<i8").tobytes()).hexdigest()
