"""Samples that stay where they are and are read by number out of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from covey.data.container import Split
from covey.data.fields import Columns, check_lengths, collated
from covey.errors import DataError


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
