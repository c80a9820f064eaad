"""Batch plans: which samples each member sees in a step, and the pieces that a step is computed in.

All of it is a pure function of (seed, minibatches consumed), so a resumed run, another number of processes or
another number of shards see the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.data import Split, epoch_order
from covey.data.streams import Passing
from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.seeds import generator_of, seed_of
from covey.tables import counted


class Stream:
    """The training set as an endless row of minibatches, epoch after epoch, each epoch in an order of its own.

    Args:
        samples: N.
        batch: samples in a minibatch; the last one of an epoch may have fewer, and is used.
        seed: of the orders.
        shuffle: False for the order in which the samples lie, in every epoch.
    """

    def __init__(self, samples: int, batch: int, seed: int, shuffle: bool = True) -> None:
        self.samples, self.batch, self.seed, self.shuffle = samples, batch, seed, shuffle
        self.per_epoch = -(-samples // batch)
        self._orders: dict[tuple[int, int], Tensor] = {}  # by epoch and seed

    def __getitem__(self, number: int) -> tuple[int, Tensor]:
        """Minibatch `number` since the start: its epoch, and its samples (B,)."""
        return self._minibatch(number, self.seed)

    def of_member(self, number: int, k: int) -> tuple[int, Tensor]:
        """The same, with the epoch's samples in an order that is member k's own."""
        return self._minibatch(number, seed_of(self.seed, "order of member", k))

    def _minibatch(self, number: int, seed: int) -> tuple[int, Tensor]:
        epoch, place = divmod(number, self.per_epoch)
        if (epoch, seed) not in self._orders:
            kept = {key: order for key, order in self._orders.items() if abs(key[0] - epoch) <= 1}
            order = torch.arange(self.samples)
            if self.shuffle:
                order = epoch_order(self.samples, seed=seed, epoch=epoch)
            self._orders = {**kept, (epoch, seed): order}
        return epoch, self._orders[epoch, seed][place * self.batch : (place + 1) * self.batch]

    def smallest(self) -> tuple[int, int]:
        """The number of an epoch's smallest minibatch, and its samples."""
        return self.per_epoch - 1, self.samples % self.batch or self.batch

    def release(self, number: int) -> None:
        """Minibatches before this one are not asked for again."""


class Passes(Stream):
    """The batches of a loader as an endless row of minibatches, as they come.

    Args:
        part: what is read.
        batch: samples in a minibatch, where the data set makes no batches itself.
        seed: of what is random in reading.
    """

    def __init__(self, part: Passing, batch: int, seed: int) -> None:
        self.part, self.batch, self.seed, self.samples = part, batch, seed, 0
        self.per_epoch = part.per_epoch(batch)
        part.reading.restart()

    def of_member(self, number: int, k: int) -> tuple[int, Tensor]:
        """Not to be had: the order is the loader's."""
        raise OptionError(
            "plan 'shuffled' lets each member see the samples in an order of its own, and the data come as a "
            "stream in one order. Choose another plan, or give a Dataset."
        )

    def _minibatch(self, number: int, seed: int) -> tuple[int, Tensor]:
        return number // self.per_epoch, self.part.fetch(number, size=self.batch, seed=seed)

    def smallest(self) -> tuple[int, int]:
        """The first minibatch, since others are not known before they come."""
        return 0, len(self[0][1])

    def release(self, number: int) -> None:
        """Forget the minibatches before this one."""
        self.part.release(number)


def stream_of(part: Split, batch: int, seed: int, *, shuffle: bool) -> Stream:
    """The minibatches of a training set, whatever it is."""
    if isinstance(part, Passing):
        return Passes(part, batch, seed)
    return Stream(len(part), batch, seed, shuffle)


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
class Microbatch:
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


BatchPlan = Callable[[Stream, int, Ensemble], tuple[list[Share], int]]
"""From the stream, the minibatches consumed so far and the ensemble to shares and how many minibatches they use."""


def same(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Members see the next minibatch, dealt out as their method says: usually all of it to everyone."""
    epoch, indices = stream[consumed]
    chance = generator_of(stream.seed, "shared out", consumed)
    dealt = ensemble.method.share_out(ensemble.layout, len(indices), chance)
    rows = indices if dealt.rows is None else indices[dealt.rows]
    return [Share(dealt.members, rows, epoch)], 1


def split(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Members see parts of the next minibatch, which differ by one sample where it does not divide."""
    epoch, indices = stream[consumed]
    parts = indices.tensor_split(ensemble.members)
    return _grouped([(epoch, part) for part in parts]), 1


def independent(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Each member sees a minibatch of its own, one after the other out of the stream."""
    parts = [stream[consumed + k] for k in range(ensemble.members)]
    return _grouped(parts), ensemble.members


def shuffled(stream: Stream, consumed: int, ensemble: Ensemble) -> tuple[list[Share], int]:
    """Each member sees every sample once an epoch, in an order of its own; a step is one minibatch of each member."""
    parts = [stream.of_member(consumed, k) for k in range(ensemble.members)]
    return _grouped(parts), 1


PLANS: dict[str, BatchPlan] = {
    "same": same,
    "split": split,
    "independent": independent,
    "shuffled": shuffled,
}


def microbatches(
    shares: Sequence[Share], *, shards: Sequence[int], of: int, chunk: int | None, key: Sequence[int]
) -> Iterator[Microbatch]:
    """Cut shares into the parts that this process computes.

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
                yield Microbatch(
                    share.members[rows],
                    indices[rows] if indices.ndim == 2 else indices,
                    share.epoch,
                    indices.shape[-1] / whole,
                    seed_of(*key, shard, start),
                )


def check_plan(name: str, stream: Stream, ensemble: Ensemble, chunk: int | None) -> None:
    """Refuse plans that cannot work, before the first step."""
    if name not in PLANS:
        raise OptionError(f"plan is one of {', '.join(PLANS)}; got {name!r}.")
    if ensemble.method.own_batches and (name != "same" or chunk):
        what = "member_chunk" if name == "same" else f"plan {name!r}"
        raise OptionError(
            f"{type(ensemble.method).__name__} makes its members' batches itself; "
            f"{what} does not go with it. Leave it out."
        )
    if name == "shuffled":
        stream.of_member(0, 0)  # a stream of batches has no such order, and says so
    if name == "split":
        _, least = stream.smallest()
        if least < ensemble.members:
            raise OptionError(
                f"plan 'split' gives each of the {ensemble.members} members a part of every minibatch, and one of "
                f"them has {counted(least, 'sample')} ({stream.samples} in batches of {stream.batch}). "
                "Choose another minibatch size (batch=)."
            )


def _grouped(parts: Sequence[tuple[int, Tensor]]) -> list[Share]:
    """Members with as many samples of the same epoch run together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k, (epoch, indices) in enumerate(parts):
        groups.setdefault((epoch, len(indices)), []).append(k)
    return [
        Share(tuple(members), torch.stack([parts[k][1] for k in members]), epoch)
        for (epoch, _), members in groups.items()
    ]
