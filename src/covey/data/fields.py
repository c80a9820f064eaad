"""What a batch of someone else's data holds: inputs and targets out of tuples and dicts, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import default_collate

from covey.errors import DataError

LABELS = ("labels", "label", "target", "targets", "y")
"""Names of the column that holds the answers, where nobody says which it is."""

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


def check_lengths(inputs: Any, targets: Tensor, where: str) -> None:
    """Refuse batches without samples, and inputs of another number than their targets."""
    if targets.ndim == 0:
        raise DataError(f"{where}: targets are a single number; expected one for each sample, (N, ...).")
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) != len(targets):
            raise DataError(f"{where}: {len(leaf)} inputs but {len(targets)} targets; expected one for each.")
    if not len(targets):
        raise DataError(f"{where}: there are no samples.")
