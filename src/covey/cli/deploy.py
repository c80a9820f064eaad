"""`covey export`: a trained run as one file that answers without covey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tyro.conf import Positional

from covey import deploy
from covey.cli import reading
from covey.cli.calibrated import Kind, read_calibrated
from covey.cli.flags import parse_one
from covey.combine import raw_variance
from covey.data import Data
from covey.data.inputs import prepare, read_inputs
from covey.deploy.int8 import processor_has_vnni
from covey.errors import OptionError
from covey.quantiles import Quantiles
from covey.scores import evaluate
from covey.tables import text_table

CHECKED = 16  # samples that a file must answer as the ensemble does
CALIBRATED = 256  # samples that int8 is calibrated on
SCORES = ("accuracy", "nll", "ece", "auroc", "pinball", "rmse", "gaussian_nll")


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Write a trained run as one file that answers without covey.

    Args:
        folder: of the run.
        to: "onnx" for ONNX Runtime, "pt2" for torch.export.
        data: inputs as `covey predict` takes them, on which the file must answer as the ensemble does; the run's own
            test data if not given.
        out: the file to write; ensemble.onnx or ensemble.pt2 in the run's folder if not given.
        members: give each member's own answer too.
        weights: "made" is the fastest; "stored" holds what members share once, the smallest.
        int8: compute in int8, calibrated on "train" (the run's own training data) or on inputs as `covey predict`
            takes them; the float file is written too, and a table says what int8 costs.
        int8_limit: largest share of predictions that int8 may change; layers that hurt stay in float.
        network: the network as FILE.py:FUNCTION, for a run whose network was one.
        temperature: calibrate probabilities with the temperature that `covey evaluate` fitted: "pooled" for one of the
            mean, "members" for one per member.
    """

    folder: Positional[str]
    to: Literal["onnx", "pt2"] = "onnx"
    data: str | None = None
    out: str | None = None
    members: bool = False
    weights: Literal["made", "stored"] = "made"
    int8: str | None = None
    int8_limit: float = 0.005
    network: str | None = None
    temperature: Kind | None = None


def export(args: Sequence[str]) -> int:
    """Write a trained run as one file without covey: covey export FOLDER --to onnx"""
    own = parse_one(
        "covey export", ExportFlags, args, about="Write a trained run as one file that answers without covey."
    )
    if own.out is not None and Path(own.out).suffix != f".{own.to}":
        raise OptionError(f"--out names a file that ends in .{own.to}, as --to says; got {own.out}.")
    folder = reading.existing(own.folder)
    record = reading.read_settings(folder)["record"]
    ensemble = read_calibrated(folder, own.network, own.temperature)
    data = None if own.data is not None else reading.read_data(folder)
    path = Path(own.out) if own.out else folder / f"ensemble.{own.to}"
    example = _example(own.data, data, record)
    options: dict[str, Any] = {"to": own.to, "members": own.members, "weights": own.weights, "record": record}
    written = deploy.export(ensemble, path, example, **options)
    print(written)
    if own.int8 is None:
        return 0
    small = path.with_name(f"{path.stem}-int8{path.suffix}")
    calibration = _calibration(own.int8, folder, record)
    print(deploy.export(ensemble, small, example, int8=calibration, int8_limit=own.int8_limit, **options))
    if data is not None and len(data.test):
        print(cost_of_int8(path, small, data))
    return 0


def _example(source: str | None, data: Data | None, record: dict[str, Any]) -> Tensor:
    if data is not None:
        return data.prepare((data.test if len(data.test) else data.train).inputs[:CHECKED])
    assert source is not None
    _, inputs = read_inputs(source, record)
    return prepare(inputs[:CHECKED], record)


def _calibration(source: str, folder: Path, record: dict[str, Any]) -> Tensor:
    if source == "train":
        data = reading.read_data(folder)
        return data.prepare(data.train.inputs[:CALIBRATED])
    _, inputs = read_inputs(source, record)
    return prepare(inputs[:CALIBRATED], record)


class _Answers(nn.Module):
    """A file as a network, for `evaluate`: log-probabilities, predictions, or quantiles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.deployed = deploy.DeployedEnsemble(path)

    def forward(self, x: Tensor) -> Tensor:
        """The file's answer."""
        found = self.deployed(x.numpy())
        if "probs" in found:
            logits = torch.from_numpy(found["probs"]).clamp_min(1e-30).log()
            # of pixels, networks give classes first
            return logits.movedim(-1, 1) if logits.ndim == 4 else logits
        if "quantiles" in found:
            return torch.from_numpy(found["quantiles"])
        mean = torch.from_numpy(found["mean"])
        if self.deployed.about["task"] != "gaussian":
            return mean
        variance = torch.from_numpy(found["epistemic"] + found["aleatoric"])
        return torch.cat([mean, raw_variance(variance)], -1)

    @property
    def task(self) -> Any:
        """What `evaluate` has to know of it."""
        told = self.deployed.about["task"]
        return told if told == "gaussian" else Quantiles.of(told)


def cost_of_int8(plain: Path, small: Path, data: Data) -> str:
    """A table of what int8 costs on the test data, beside what it saves."""
    rows: list[tuple[str, ...]] = []
    columns: dict[str, dict[str, float]] = {}
    for name, path in (("float", plain), ("int8", small)):
        answers = _Answers(path)
        scores = evaluate(answers, data, task=answers.task)
        found = {key: value for key, value in scores.headline.items() if value is not None}
        found["MB"] = path.stat().st_size / 1e6
        columns[name] = found
    for key in (*SCORES, "MB"):
        if all(key in column for column in columns.values()):
            rows.append((key, *(f"{column[key]:.4f}" for column in columns.values())))
    has = "has" if processor_has_vnni() else "has no"
    table = text_table(("", *columns), rows, right=tuple(columns))
    return f"{table}\nthis processor {has} VNNI"
