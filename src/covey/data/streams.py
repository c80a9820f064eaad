"""Samples that come batch after batch out of a loader, pass after pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from covey.data.container import Split
from covey.data.fields import Columns, check_lengths, collated
from covey.errors import DataError
from covey.seeds import random_state_kept, seed_of
from covey.tensors import rows_of

# the numbers of a stream's samples: its batch's number times this, plus the place in the batch
_STRIDE = 1 << 32


@dataclass
class _Reading:
    """Where the reading of a stream is: the pass that is open, the batches that are still needed."""

    passing: Iterator[Any] | None = None
    place: int = 0  # batches that were taken out of the open pass
    next: int = 0  # the number of the batch that comes next
    seeds: list[int] | None = None  # that the loader's own generators came with
    kept: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)

    def restart(self, number: int = 0) -> None:
        """Begin a new pass, whose first batch has this number."""
        self.passing, self.place, self.next = None, 0, number
        self.kept.clear()


@dataclass(frozen=True, eq=False)
class Passing(Split):
    """Batches of a DataLoader or an iterable data set, read pass after pass and in its own order.

    Args:
        inputs: the DataLoader, or the iterable data set.
        targets: not known before they are read, so an empty tensor.
        columns: what is the label and what goes to the network.
        collate: makes a batch of a list of samples, for an iterable data set.
        steps: batches that count as an epoch; the loader's length if None.
        first: the inputs of the first two samples.
    """

    columns: Columns = field(default_factory=Columns)
    collate: Callable[[Sequence[Any]], Any] = collated
    steps: int | None = None
    first: Any = None
    reading: _Reading = field(default_factory=_Reading)

    by_number: ClassVar[bool] = False
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        raise TypeError("a stream of batches does not know how many samples it has")

    def example(self) -> Any:
        """The inputs of the first two samples."""
        return self.first

    def per_epoch(self, size: int) -> int:
        """Batches of an epoch; where the data set makes none itself, of `size` samples."""
        if self.steps is not None:
            return self.steps
        try:
            return len(self._loader(size))
        except TypeError as error:
            raise DataError(
                "the data have no length, so nobody knows when an epoch, on which the learning rate depends, is over. "
                "Say how many batches are one: covey.data.adapt(data, steps_per_epoch=...)."
            ) from error

    def in_order(self, size: int, *, first: int = 0, every: int = 1) -> Iterator[tuple[Any, Tensor]]:
        """One pass over all batches; or of the batches the one numbered `first` and each `every`-th after."""
        for number, batch in enumerate(self._loader(size)):
            if self.steps is not None and number >= self.steps:
                return
            if number % every == first:
                yield self._parts(batch, number)

    def fetch(self, number: int, *, size: int, seed: int) -> Tensor:
        """Read on until batch `number` since the start, and keep it; returns the numbers of its samples."""
        reading = self.reading
        if number < reading.next and number not in reading.kept:
            reading.restart()
        if (
            self.steps is None
        ):  # every epoch is a pass of its own, so that earlier ones need not be read again
            first = number - number % self.per_epoch(size)
            if reading.next < first:
                reading.restart(first)
        while number not in reading.kept:
            with random_state_kept(seed=seed_of(seed, "read", reading.next)):
                batch = self._next(size)
            if reading.next == number:
                reading.kept[number] = self._parts(batch, number)
            reading.next += 1
        return number * _STRIDE + torch.arange(len(reading.kept[number][1]))

    def release(self, number: int) -> None:
        """Forget the batches before this one."""
        for old in [k for k in self.reading.kept if k < number]:
            del self.reading.kept[old]

    def read(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of samples of the batches that are kept."""
        numbers = rows // _STRIDE
        parts = []
        for number in numbers.unique_consecutive().tolist():
            inputs, targets = self.reading.kept[number]
            places = rows[numbers == number] % _STRIDE
            parts.append((rows_of(inputs, places), targets[places]))
        return _joined(parts)

    def shown(self, rows: Tensor) -> Tensor:
        """The places of these samples in their batch."""
        return rows % _STRIDE

    def _next(self, size: int) -> Any:
        """The next batch: of the open pass, or of a new one."""
        reading = self.reading
        ended = self.steps is None and reading.place == self.per_epoch(size)
        fresh = reading.passing is None or ended
        if fresh:
            self._begin(size)
        assert reading.passing is not None
        batch = next(reading.passing, None)
        if batch is None and not fresh and self.steps is not None:
            self._begin(size)
            batch = next(reading.passing, None)
        if batch is None:
            raise DataError(self._ended(size))
        reading.place += 1
        return batch

    def _begin(self, size: int) -> None:
        """Open a pass; generators of the loader's own depend on where it begins, not on the passes before."""
        reading = self.reading
        generators = _generators(self.inputs)
        if reading.seeds is None:
            reading.seeds = [generator.initial_seed() for generator in generators]
        for generator, seed in zip(generators, reading.seeds, strict=True):
            generator.manual_seed(seed_of(seed, "pass", reading.next))
        reading.passing, reading.place = iter(self._loader(size)), 0

    def _ended(self, size: int) -> str:
        if self.reading.place == 0:
            return (
                "the data gave no batch when they were read again. What can be iterated over only once "
                "cannot be trained on: give a data set whose __iter__ begins anew each time."
            )
        return (
            f"the data gave {self.reading.place} batches in a pass, and their length says "
            f"{self.per_epoch(size)}. Correct it, or say how many batches count as an epoch: "
            "covey.data.adapt(data, steps_per_epoch=...)."
        )

    def _loader(self, size: int) -> DataLoader:
        if isinstance(self.inputs, DataLoader):
            return self.inputs
        return DataLoader(self.inputs, batch_size=size, collate_fn=self.collate)

    def _parts(self, batch: Any, number: int) -> tuple[Any, Tensor]:
        inputs, targets = self.columns.parts(batch, f"batch {number}")
        check_lengths(inputs, targets, f"batch {number}")
        return inputs, targets


def _joined(parts: Sequence[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    """Rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]

    def join(*leaves: Any) -> Any:
        return torch.cat(leaves) if isinstance(leaves[0], Tensor) and leaves[0].ndim else leaves[0]

    try:
        return tree_map(join, *parts)
    except RuntimeError as error:
        raise DataError(
            f"members are given batches of their own in one step, and these differ in shape: {error}. Pad "
            "all samples to one length, or choose plan='same'."
        ) from error


@contextmanager
def left_alone(loader: Any) -> Iterator[None]:
    """Read a little out of a loader and leave its random order, and the global random state, as they were."""
    generators = _generators(loader)
    states = [generator.get_state() for generator in generators]
    with random_state_kept(seed=0):
        yield
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def _generators(loader: Any) -> list[torch.Generator]:
    """The random numbers that a loader and its sampler have of their own."""
    owners = (loader, getattr(loader, "sampler", None))
    found = {
        id(g): g
        for g in (getattr(owner, "generator", None) for owner in owners)
        if isinstance(g, torch.Generator)
    }
    return list(found.values())
