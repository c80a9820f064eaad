"""Seeded, stratified splits, and the record of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from covey.data import keyed
from covey.data.container import Data, Split
from covey.errors import DataError
from covey.tables import counted

_SPLIT = 2  # keeps the split's numbers apart from those of the epochs' order
_FEWER = 3  # and those of a subset apart from both


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
                f"{what} only {counted(len(rows), 'sample')}, too few to have at least one in each of "
                f"{', '.join(parts)}; add samples, leave it out with held_out, or ask for fewer parts "
                "(validation=0)"
            )
        sizes = {"train": len(rows) - sum(sizes.values()), **sizes}
        for name, piece in zip(sizes, rows.split(list(sizes.values())), strict=True):
            parts[name].append(piece)
    return {name: torch.cat(pieces).sort().values for name, pieces in parts.items()}


PARTS = ("train", "validation", "test", "ood")


def fewer(data: Data, count: int, seed: int, parts: Sequence[str] = PARTS) -> Data:
    """At most `count` samples of some parts, with the classes in proportion; the record tells which.

    With the same seed, a larger count takes the same samples and more.
    """
    if count < 1:
        raise DataError(f"at least one sample of each part must stay; got {count}")
    taken: dict[str, Any] = {}
    counts = dict(data.record.get("counts", {}))
    digests = dict(data.record.get("indices_sha256", {}))
    for name in parts:
        if name == "ood":
            continue
        split: Split = getattr(data, name)
        labels = split.targets if data.task == "classification" else None
        rows = proportional(len(split), count, seed=seed, labels=labels)
        taken[name] = split.take(rows)
        counts[name] = len(rows)
        if len(rows) < len(split):
            digests[name] = _digest_of_some(digests.get(name, ""), rows)
    ood = dict(data.ood)
    if "ood" in parts:
        ood = {name: inputs[proportional(len(inputs), count, seed=seed)] for name, inputs in ood.items()}
    told = {
        "counts": counts,
        "indices_sha256": digests,
        "ood": {name: len(inputs) for name, inputs in ood.items()},
        "samples": count,
    }
    return replace(data, **taken, ood=ood, record={**data.record, **told})


def proportional(samples: int, count: int, *, seed: int, labels: Tensor | None = None) -> Tensor:
    """Numbers of `count` of the samples, or of all if there are no more, in rising order.

    Args:
        samples: how many there are.
        count: how many are wanted.
        seed: fixes which.
        labels: (samples,) classes, each of which has its share, and at least one where `count` allows it.
    """
    order = keyed.permutation(samples, (seed, _FEWER))
    if labels is not None:
        shuffled = labels[order]
        # How far each sample is through its class, from 0 to below 1; the first of each class come first.
        progress = torch.zeros(samples, dtype=torch.float64)
        for label in shuffled.unique():
            places = (shuffled == label).nonzero().flatten()
            progress[places] = torch.arange(len(places), dtype=torch.float64) / len(places)
        order = order[progress.argsort(stable=True)]
    return order[:count].sort().values


def _digest_of_some(whole: str, rows: Tensor) -> str:
    """The digest of a part's row numbers after some of its rows were chosen, from the digest before."""
    return hashlib.sha256(f"{whole} {digest(rows)}".encode()).hexdigest()


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse shares that leave nothing to train on."""
    if min(shares.values(), default=0) < 0 or sum(shares.values()) >= 1:
        given = " and ".join(f"{share:g} for {part}" for part, share in shares.items())
        raise DataError(
            f"the shares held back from training must be at least 0 and below 1 in all; got {given}"
        )


def digest(indices: Tensor) -> str:
    """SHA-256 of row numbers, to tell whether two runs had the same rows."""
    return hashlib.sha256(indices.to(torch.int64).numpy().astype("<i8").tobytes()).hexdigest()
