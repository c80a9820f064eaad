"""Batch plans: which samples each member sees in a step, and the pieces that a step is computed in.

All of it is a pure function of (seed, minibatches consumed), so a resumed run, another number of processes or
another number of shards see the same samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.data import epoch_order
from covey.ensemble import Ensemble
from covey.errors import OptionError


class Stream:
    """The training set as an endless row of minibatches, epoch after epoch, each epoch in an order of its own.

    Args:
        samples: N.
        batch: samples in a minibatch; the last one of an epoch may have fewer, and is used.
        seed: of the orders.
    """

    def __init__(self, samples: int, batch: int, seed: int) -> None:
        self.samples, self.batch, self.seed = samples, batch, seed
        self.per_epoch = -(-samples // batch)
        self._orders: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> tuple[int, Tensor]:
        """Minibatch `number` since the start: its epoch, and its samples (B,)."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch not in self._orders:
            kept = {e: order for e, order in self._orders.items() if abs(e - epoch) <= 1}
            self._orders = {**kept, epoch: epoch_order(self.samples, seed=self.seed, epoch=epoch)}
        return epoch, self._orders[epoch][place * self.batch : (place + 1) * self.batch]


@dataclass(frozen=True)
class Share:
    """What some members see in a step.

    Args:
        members: which.
        indices: samples, the same for them all (B,), or each member's own (len(members), B).
        epoch: of these samples, a key of their augmentation.
    """

    members: tuple[int, ...]
    indices: Tensor
    epoch: int


@dataclass(frozen=True)
class Piece:
    """A part of a share that runs in one forward and backward pass.

    Args:
        members: which run.
        indices: (b,) or (len(members), b).
        epoch: as in `Share`.
        weight: b over the samples that these members see in the step.
        seed: for whatever the network draws, a function of (seed, step, shard) only.
    """

    members: tuple[int, ...]
    indices: Tensor
    epoch: int
    weight: float
    seed: int


Plan = Callable[[Stream, int, Ensemble], tuple[list[Share], int]]
"""From the stream, the minibatches consumed so far and the ensemble to shares and how many minibatches they use."""


def same(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """All members see the next minibatch. Members that differ only by random numbers train as one."""
    epoch, indices = stream[consumed]
    if hasattr(ensemble.method, "indices"):  # members share a pass and see the samples in orders of their own
        rows = ensemble.method.indices(len(indices), generator(stream.seed, "joint", consumed))
        return [Share(everyone(ensemble), indices[rows], epoch)], 1
    if hasattr(ensemble.method, "draw"):  # only some members train in a step
        drawn = ensemble.method.draw(ensemble, generator(stream.seed, "drawn", consumed))
        return [Share(tuple(drawn), indices, epoch)], 1
    return [Share(everyone(ensemble), indices, epoch)], 1


def split(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Members see parts of the next minibatch, which differ by one sample where it does not divide."""
    epoch, indices = stream[consumed]
    parts = indices.tensor_split(ensemble.members)
    return _grouped([(epoch, part) for part in parts]), 1


def independent(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Each member sees a minibatch of its own, one after the other out of the stream."""
    parts = [stream[consumed + k] for k in range(ensemble.members)]
    return _grouped(parts), ensemble.members


PLANS: dict[str, Plan] = {"same": same, "split": split, "independent": independent}


def pieces(
    shares: Sequence[Share], *, shards: Sequence[int], of: int, chunk: int | None, key: Sequence[int]
) -> Iterator[Piece]:
    """Cut shares into the pieces that this process computes.

    Args:
        shares: of the whole step.
        shards: the numbers of this process's shards.
        of: how many shards there are in all.
        chunk: members that run at once; None for all.
        key: what the random seed of a shard depends on, besides its number.
    """
    for shard in shards:
        for share in shares:
            whole = share.indices.shape[-1]
            indices = share.indices.tensor_split(of, -1)[shard]
            if not indices.shape[-1]:
                continue
            size = chunk or len(share.members)
            for start in range(0, len(share.members), size):
                rows = slice(start, start + size)
                yield Piece(
                    share.members[rows],
                    indices[rows] if indices.ndim == 2 else indices,
                    share.epoch,
                    indices.shape[-1] / whole,
                    number(*key, shard, start),
                )


def check_plan(name: str, stream: Stream, ensemble: Ensemble, chunk: int | None) -> None:
    """Refuse plans that cannot work, before the first step."""
    if name not in PLANS:
        raise OptionError(f"plan is one of {', '.join(PLANS)}; got {name!r}.")
    joint = hasattr(ensemble.method, "indices")
    if joint and (name != "same" or chunk):
        what = "member_chunk" if name == "same" else f"plan {name!r}"
        raise OptionError(
            f"{type(ensemble.method).__name__} runs its members in one pass and makes their batches itself; "
            f"{what} does not go with it. Leave it out."
        )
    if name == "split":
        least = stream.samples % stream.batch or stream.batch
        if min(least, stream.batch) < ensemble.members:
            raise OptionError(
                f"plan 'split' gives each of the {ensemble.members} members a part of every minibatch, and one of "
                f"them has {least} samples ({stream.samples} in batches of {stream.batch}). Choose another batch."
            )


def everyone(ensemble: Ensemble) -> tuple[int, ...]:
    """The members that train: all, or the first where members differ only by the random numbers they draw."""
    varies = any(part.varies for part in ensemble.parts.values())
    return tuple(range(ensemble.members)) if varies else (0,)


def number(*keys: int | str) -> int:
    """A seed that is a function of the keys."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def generator(*keys: int | str) -> torch.Generator:
    """A generator of random numbers that depends on the keys only."""
    return torch.Generator().manual_seed(number(*keys))


def _grouped(parts: Sequence[tuple[int, Tensor]]) -> list[Share]:
    """Members with as many samples of the same epoch run together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k, (epoch, indices) in enumerate(parts):
        groups.setdefault((epoch, len(indices)), []).append(k)
    return [
        Share(tuple(members), torch.stack([parts[k][1] for k in members]), epoch)
        for (epoch, _), members in groups.items()
    ]
