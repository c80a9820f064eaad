"""TensorBoard files, if they are asked for and the package is there."""

from __future__ import annotations

from typing import Any

from covey.errors import OptionError
from covey.train.state import Job


class Board:
    """Writes each epoch's numbers to `folder/tensorboard`; does nothing where it was not asked for."""

    def __init__(self, job: Job) -> None:
        self.writer: Any = None
        if not (job.machine.tensorboard and job.leads):
            return
        if job.folder is None:
            raise OptionError("tensorboard=True needs a folder to write to.")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise OptionError(
                "tensorboard=True needs the package tensorboard; pip install tensorboard."
            ) from error
        self.writer = SummaryWriter(str(job.folder / "tensorboard"))

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
