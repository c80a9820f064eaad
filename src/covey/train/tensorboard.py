"""TensorBoard files, if they are asked for and the package is there."""

from __future__ import annotations

from typing import Any

from covey.errors import OptionError
from covey.extras import load
from covey.train.state import Job


class Board:
    """Writes each epoch's numbers to `folder/tensorboard`; does nothing where it was not asked for."""

    def __init__(self, job: Job) -> None:
        self.writer: Any = None
        if not (job.machine.tensorboard and job.leads):
            return
        if job.folder is None:
            raise OptionError("tensorboard=True needs a folder to write to.")
        tensorboard = load("torch.utils.tensorboard")
        self.writer = tensorboard.SummaryWriter(str(job.folder / "tensorboard"))

    def write(self, row: dict[str, Any]) -> None:
        """One epoch's numbers."""
        if self.writer is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self.writer.add_scalar(name, value, row["epoch"])

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
