"""What a data set is once it is loaded: tensors in memory, and a record of where they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covey.tensors import rows_of

Task = Literal["classification", "regression", "language", "segmentation", "multilabel"]

IGNORED = 255
"""The class of pixels that do not count, in training and in scores of a segmentation."""


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Split:
    """Samples with their answers.

    Args:
        inputs: images (N, C, H, W) uint8 or float, tables (N, D) float32, text (N, T) uint8 (a view of the
            bytes); or a tuple or dict of such tensors, where a network takes several.
        targets: classes (N,) int64, numbers (N,) or (N, D) float32, the next bytes (N, T) uint8, classes of pixels
            (N, H, W) uint8 (255: does not count), or which labels are true, (N, L) float32 of 0 and 1.
    """

    inputs: Any
    targets: Tensor

    by_number: ClassVar[bool] = True
    """Whether samples have numbers and can be read in any order; else they come batch after batch."""

    in_memory: ClassVar[bool] = True
    """Whether `inputs` and `targets` are the samples themselves; else `read` fetches them."""

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of the samples with these numbers, (B,)."""
        return rows_of(self.inputs, rows), self.targets[rows]

    def example(self) -> Any:
        """The inputs of the first two samples."""
        return self.read(torch.arange(min(2, len(self))))[0]

    def in_order(self, size: int, *, first: int = 0, every: int = 1) -> Iterator[tuple[Any, Tensor]]:
        """All samples in batches, as they lie; or of the batches the one numbered `first` and each `every`-th after."""
        for start in range(first * size, len(self), every * size):
            rows = slice(start, start + size)  # a view, where the numbers of the rows would make a copy
            yield rows_of(self.inputs, rows), self.targets[rows]

    def shown(self, rows: Tensor) -> Tensor:
        """The numbers of these samples as their owner knows them."""
        return rows

    def take(self, indices: Tensor) -> Split:
        """The samples with these numbers, in this order; the very same tensors if it is all of them."""
        if len(indices) == len(self) and torch.equal(indices, torch.arange(len(self))):
            return self
        return Split(rows_of(self.inputs, indices), self.targets[indices])


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation, one a channel (images, on the scale 0 to 1 if uint8) or one a column."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor) -> Tensor:
        """Images (..., C, H, W), uint8 or float, to float32 of about mean 0 and deviation 1 a channel."""
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        # One multiplication and one addition, in place, instead of a division, a subtraction and a division.
        return images.to(torch.float32, copy=True).mul_(1 / (scale * std)).sub_(mean / std)

    def restore(self, values: Tensor) -> Tensor:
        """Standardised numbers back in their own unit: (..., D) of D targets, or of any shape if there is one.

        In float64: float32 would round away what numbers such as dates in seconds differ by.
        """
        mean = torch.tensor(self.mean, dtype=torch.float64, device=values.device)
        return values.double() * self.scale(values) + mean

    def scale(self, values: Tensor) -> Tensor:
        """The standard deviations, (D,), as float64 on the device of `values`."""
        return torch.tensor(self.std, dtype=torch.float64, device=values.device)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set that is ready to train on.

    Args:
        train: what the network learns from. Empty (length 0) where only test files are there.
        validation: held back from training, to choose by. Empty where none was asked for.
        test: to be looked at last.
        ood: inputs from elsewhere by the name of their set; shaped like the others.
        task: what is to be predicted.
        classes: names of the classes or labels; empty for regression; the 256 bytes for text.
        shape: of one input: (C, H, W), (D,) or (T,).
        normalisation: what `prepare` does to images. None for tables, which are standardised already.
        target_normalisation: regression targets are standardised; this leads back to their unit.
        record: how all this came about, JSON-able: source, seed, counts, digests of the indices, columns,
            notes.
        transform: called on the inputs of every training batch; see `covey.data.adapt`.
        class_weights: factor of the loss of each class's samples, (C,), or None.
        sample_weights: factor of the loss of each training sample, (N,), or None.
    """

    train: Split
    validation: Split
    test: Split
    task: Task
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    ood: dict[str, Tensor] = field(default_factory=dict)
    normalisation: Normalisation | None = None
    target_normalisation: Normalisation | None = None
    record: dict[str, Any] = field(default_factory=dict)
    transform: Callable[[Any], Any] | None = None
    class_weights: Tensor | None = None
    sample_weights: Tensor | None = None

    @property
    def outputs(self) -> int:
        """How many numbers a network has to answer with: one per class or label, or per target of a regression."""
        if self.classes:
            return len(self.classes)
        for split in (self.train, self.test):
            if self.task == "regression" and split.targets.ndim == 2:
                return split.targets.shape[1]
        return 1

    def prepare(self, inputs: Any) -> Any:
        """Inputs as a network takes them: images normalised, bytes as int64, tables as they are."""
        if self.task == "language":
            return inputs.long()
        return inputs if self.normalisation is None else self.normalisation.apply(inputs)
