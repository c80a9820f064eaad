"""An exported file, asked as an ensemble is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from covey.deploy import DeployedEnsemble
from covey.errors import OptionError, StoreError


class ServedFile:
    """An .onnx file that `covey export` wrote, with what a service asks of an ensemble.

    Args:
        path: of the file.
        threads: that answer; all of the machine's by default.

    Attributes:
        record: of the training data.
        task: as an ensemble's.
        members: how many there are.
        method: its name.
        calibrated: whether a temperature is inside.
        tells_members: whether the file gives each member's own answer.
        guaranteed: whether it gives conformal sets or intervals.
        alpha: the share of truths that those may miss; None where there are none.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        self._file = DeployedEnsemble(path, threads=threads)
        about = self._file.about
        if about["data"] is None:
            raise StoreError(
                f"{path} does not say what data it was trained on: it was exported without record=. Export it from a "
                "run with `covey export`."
            )
        if len(about["inputs"]) != 1:
            raise OptionError(
                f"{path} takes {len(about['inputs'])} inputs; only files that take one are served."
            )
        self.record: dict[str, Any] = about["data"]
        self.task: str = about["task"]
        self.members: int = about["members"]
        self.method = str(about["method"].get("method", "ensemble"))
        self.calibrated = "temperature" in about["calibration"]
        told = {"member_logits", "member_mean", "member_quantiles"}
        self.tells_members = not told.isdisjoint(about["outputs"])
        self.alpha: float | None = about["calibration"].get("conformal", {}).get("alpha")
        self.guaranteed = not {"sets", "low"}.isdisjoint(about["outputs"])

    def predict(self, inputs: Tensor, *, check: bool = False, members: Sequence[int] | None = None) -> Any:
        """The file's answer, by the names of an ensemble's."""
        if members is not None:
            raise OptionError("a file answers with all of its members")
        return self._file.predict(inputs)
