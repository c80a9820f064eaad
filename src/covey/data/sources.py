"""Samples that stay where they are: read by number out of a data set, or batch after batch out of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate

from covey.data.container import Split
from covey.errors import DataError
from covey.seeds import random_state_kept, seed_of
from covey.tensors import rows_of

LABELS = ("labels", "label", "target", "targets", "y")
"""Names of the column that holds the answers, where nobody says which it is."""

_STRIDE = (
    1 << 32
)  # the numbers of a stream's samples: its batch's number times this, plus the place in the batch
NOTHING = torch.zeros(0)
"""The targets of samples that are not read yet."""


@dataclass(frozen=True)
class Columns:
    """Which part of a sample or batch is the answer, and which part the network is given.

    Args:
        label: the column of the answers in samples that are dicts; found among `LABELS` if None.
        inputs: columns that go to the network by keyword, or the name of one that goes to it as its only argument;
            None for all but the label, by keyword.
        classes: words for labels, in the order of their numbers; empty where labels are numbers.
    """

    label: str | None = None
    inputs: str | Sequence[str] | None = None
    classes: tuple[str, ...] = ()

    def parts(self, batch: Any, where: str) -> tuple[Any, Tensor]:
        """Inputs and targets of a batch: a pair, or a dict that holds the label."""
        if isinstance(batch, Mapping):
            label = self.label_in(batch, where)
            return self._named(batch, label, where), self._targets(batch[label], f"{where}: {label!r}")
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            what = type(batch).__name__
            if isinstance(batch, tuple | list):
                what = f"{what} of {len(batch)}"
            raise DataError(
                f"{where}: expected a pair (inputs, targets) or a dict with a label, got {what}. Where a network "
                "takes several inputs, they are one tuple or dict: ((first, second), targets)."
            )
        inputs, targets = batch
        return tensors(inputs, f"{where}: inputs"), self._targets(targets, f"{where}: targets")

    def label_in(self, batch: Mapping[str, Any], where: str) -> str:
        """The column that holds the answers."""
        names = ", ".join(map(repr, batch))
        if self.label is not None:
            if self.label not in batch:
                raise DataError(f"{where}: there is no column {self.label!r} (label=) among {names}.")
            return self.label
        found = [name for name in LABELS if name in batch]
        if len(found) != 1:
            several = (
                f"{' and '.join(map(repr, found))} could be" if found else "none of the columns is called as"
            )
            raise DataError(
                f"{where}: {several} the label; there are {names}. Say which it is: "
                "covey.data.adapt(data, label=...)."
            )
        return found[0]

    def _named(self, batch: Mapping[str, Any], label: str, where: str) -> Any:
        if isinstance(self.inputs, str):
            return tensors(self._column(batch, self.inputs, where), f"{where}: {self.inputs!r}")
        names = [name for name in batch if name != label] if self.inputs is None else self.inputs
        return {
            name: tensors(self._column(batch, name, where), f"{where}: column {name!r}") for name in names
        }

    @staticmethod
    def _column(batch: Mapping[str, Any], name: str, where: str) -> Any:
        if name not in batch:
            raise DataError(
                f"{where}: there is no column {name!r} (inputs=) among {', '.join(map(repr, batch))}."
            )
        return batch[name]

    def _targets(self, given: Any, where: str) -> Tensor:
        """Answers as a tensor; words by their place among the classes."""
        words = given.tolist() if isinstance(given, np.ndarray) and given.dtype.kind in "OSU" else given
        if isinstance(words, tuple | list) and words and isinstance(words[0], str):
            return self._numbers(words, where)
        targets = tensors(given, where)
        if not isinstance(targets, Tensor):
            raise DataError(f"{where}: expected one tensor of labels or numbers, got {type(given).__name__}.")
        return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets

    def _numbers(self, words: Sequence[str], where: str) -> Tensor:
        if not self.classes:
            raise DataError(
                f"{where} are words, such as {words[0]!r}, and nobody says which number each has. Name the classes in "
                "their order: covey.data.adapt(data, classes=[...])."
            )
        places = {name: k for k, name in enumerate(self.classes)}
        unknown = sorted({str(word) for word in words} - set(places))
        if unknown:
            raise DataError(
                f"{where}: {unknown[0]!r} is none of the {len(places)} classes {list(places)[:10]}."
            )
        return torch.tensor([places[word] for word in words])


def tensors(given: Any, where: str) -> Any:
    """A tensor, or a tuple or dict of them, out of arrays, numbers and lists of numbers."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping):
        return {name: tensors(value, f"{where}, {name!r}") for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(tensors(value, where) for value in given)
    if isinstance(given, list) and given and all(isinstance(value, Tensor) for value in given):
        if given[0].ndim and len({value.shape for value in given}) > 1:
            shapes = sorted({tuple(value.shape) for value in given})[:3]
            raise DataError(
                f"{where}: samples differ in shape ({', '.join(map(str, shapes))}) and cannot become one tensor. Pad "
                "them, or give a function that does: covey.data.adapt(data, collate=...), such as transformers' "
                "DataCollatorWithPadding."
            )
        return torch.stack(given)
    return _from_array(_array(given, where), where)


def _array(given: Any, where: str) -> np.ndarray:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise DataError(f"{where}: some values are masked; fill them in, or leave these samples out.")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(
            f"{where}: samples differ in length and cannot become one tensor. Pad them."
        ) from error
    if array.dtype.kind in "OSU":
        words = next((value for value in array.flat if isinstance(value, str)), None)
        held = (
            "words, such as " + repr(str(words))
            if words is not None
            else f"{array.dtype} ({type(given).__name__})"
        )
        raise DataError(
            f"{where}: expected numbers, and these are {held}. Turn them into numbers, or leave the column out: "
            "covey.data.adapt(data, inputs=[...]). A table with words in a CSV file is read by covey.data.load."
        )
    return array


def _from_array(array: np.ndarray, where: str) -> Tensor:
    # torch shares the array's memory, so it takes neither read-only nor mirrored arrays
    is_mirrored = min(array.strides, default=0) < 0
    if is_mirrored or not array.flags.writeable:
        array = array.copy()
    if not array.dtype.isnative:  # as arrays out of HDF5 and FITS files may be
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        tensor = torch.from_numpy(array)
    except TypeError as error:
        raise DataError(f"{where}: an array of {array.dtype} cannot become a tensor.") from error
    # NumPy's and Python's floats are float64 unless one says otherwise, torch's networks float32
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def collated(samples: Sequence[Any]) -> Any:
    """Samples as one batch, as torch's loaders make it, with NumPy's and Python's floats as torch's."""

    def plain(value: Any) -> Any:
        if isinstance(value, float | np.ndarray | np.generic) and not isinstance(value, str):
            return _from_array(np.asarray(value), "a sample")
        return value

    return default_collate([tree_map(plain, sample) for sample in samples])


@dataclass(frozen=True, eq=False)
class Indexed(Split):
    """Samples of a map-style data set, each read when it is needed.

    Args:
        inputs: the data set: anything with a length whose samples are got by number.
        targets: not known before they are read, so an empty tensor.
        rows: which samples, in which order.
        columns: what is the label and what goes to the network.
        collate: makes a batch of a list of samples.
        whole: whether the data set answers a list of numbers with a whole batch, as Hugging Face's do.
    """

    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    columns: Columns = field(default_factory=Columns)
    collate: Callable[[Sequence[Any]], Any] = collated
    whole: bool = False

    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of the samples with these numbers, (B,)."""
        numbers = self.rows[rows].tolist()
        where = f"samples {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"sample {numbers[0]}"
        if self.whole:
            batch = self.inputs[numbers]
        else:
            batch = self._collated([self.inputs[number] for number in numbers], where)
        inputs, targets = self.columns.parts(batch, where)
        check_lengths(inputs, targets, where)
        return inputs, targets

    def _collated(self, samples: Sequence[Any], where: str) -> Any:
        try:
            return self.collate(samples)
        except (RuntimeError, TypeError) as error:
            raise DataError(
                f"{where} cannot become one batch: {error}. Bring them to one shape, or give a function that makes a "
                "batch of a list of samples: covey.data.adapt(data, collate=...)."
            ) from error

    def in_order(self, size: int, *, first: int = 0, every: int = 1) -> Iterator[tuple[Any, Tensor]]:
        """All samples in batches, as they lie; or of the batches the one numbered `first` and each `every`-th after."""
        for rows in torch.arange(len(self)).split(size)[first::every]:
            yield self.read(rows)

    def shown(self, rows: Tensor) -> Tensor:
        """The numbers of these samples in the data set."""
        return self.rows[rows]

    def take(self, indices: Tensor) -> Split:
        """The samples with these numbers, in this order."""
        return replace(self, rows=self.rows[indices])


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


def check_lengths(inputs: Any, targets: Tensor, where: str) -> None:
    """Refuse batches without samples, and inputs of another number than their targets."""
    if targets.ndim == 0:
        raise DataError(f"{where}: targets are a single number; expected one for each sample, (N, ...).")
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) != len(targets):
            raise DataError(f"{where}: {len(leaf)} inputs but {len(targets)} targets; expected one for each.")
    if not len(targets):
        raise DataError(f"{where}: there are no samples.")


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
