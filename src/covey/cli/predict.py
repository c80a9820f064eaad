"""covey predict: what a run says of inputs, with its uncertainty, as a table."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tyro.conf import Positional

from covey.cli import reading
from covey.cli.calibrated import Kind, read_calibrated
from covey.cli.flags import UsageError, parse_one
from covey.combine import MultiLabel, Prediction, Regression
from covey.data.inputs import prepare, read_inputs
from covey.deploy import DeployedEnsemble
from covey.errors import DataError, StoreError, reason
from covey.files import write_text
from covey.quantiles import KIND, QuantileAnswer, kind_of

_NAMED = 5  # inputs in a message
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what the cells begin with that spreadsheets compute


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """Predict with a trained run.

    Args:
        folder: of the run, or an .onnx file that `covey export` wrote.
        inputs: images, folders of images, tables with the training columns, or .npy or .npz arrays.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        temperature: calibrate probabilities with the temperature that `covey evaluate` fitted: "pooled" for one of the
            mean, "members" for one per member.
        out: a .csv or .json file to write; printed as CSV if not given.
        batch: samples that run at once.
    """

    folder: Positional[str]
    inputs: Positional[tuple[str, ...]]
    network: str | None = None
    temperature: Kind | None = None
    out: str | None = None
    batch: int = 256


def predict(args: Sequence[str]) -> int:
    """Predict with a trained run: covey predict FOLDER INPUT..."""
    own = parse_one("covey predict", PredictFlags, args, about="Predict with a trained run.")
    if own.out is not None and Path(own.out).suffix not in (".csv", ".json"):
        raise UsageError(f"--out is a .csv or .json file; got {own.out!r}.")
    if own.batch < 1:
        raise UsageError(f"--batch is a whole number of at least 1; got {own.batch}.")
    if not own.inputs:
        raise UsageError(
            "covey predict needs INPUTS (images, folders of images, tables or arrays) after the run."
        )
    answering, record, task = _answering(Path(own.folder), own)
    rows: list[dict[str, Any]] = []
    for source in own.inputs:
        names, inputs = read_inputs(source, record)
        if len(own.inputs) > 1:
            names = _names_in(source, names)
        for labels, part in zip(_cut(names, own.batch), inputs.split(own.batch), strict=True):
            rows += prediction_rows(labels, answering(prepare(part, record)), record, task)
    _check_finite(rows, ", ".join(own.inputs))
    text = _as_csv(rows) if own.out is None or own.out.endswith(".csv") else json.dumps(rows, indent=1) + "\n"
    if own.out is None:
        sys.stdout.write(text)
    else:
        try:
            write_text(Path(own.out), text)
        except OSError as error:
            raise StoreError(f"cannot write {own.out}: {reason(error)}.") from error
        print(f"{len(rows)} predictions written to {own.out}")
    return 0


def _names_in(source: str, names: list[str]) -> list[str]:
    """Names of inputs that say which of several sources they are from."""
    if Path(source).is_dir():
        return [str(Path(source) / name) for name in names]
    return [source] if names == [Path(source).name] else [f"{source}: {name}" for name in names]


def _answering(path: Path, own: PredictFlags) -> tuple[Callable[[Tensor], Any], dict[str, Any], str]:
    """What answers prepared inputs, the record of the data that it was trained on, and its task."""
    if path.suffix == ".onnx":
        _check_file_flags(own)
        deployed = DeployedEnsemble(path)
        if deployed.about["data"] is None:
            raise StoreError(
                f"{path} does not say what data it was trained on: it was exported without record=. Export it from a "
                "run with `covey export`."
            )

        return deployed.predict, deployed.about["data"], deployed.about["task"]
    if path.suffix == ".pt2":
        raise UsageError(
            f"covey predict runs folders of runs and .onnx files; {path} is for torch.export.load. Export it again "
            "with --to onnx, or name the run's folder."
        )
    record = reading.read_settings(path)["record"]
    ensemble = read_calibrated(path, own.network, own.temperature)
    # Whether answers are finite is checked over all batches and with the inputs' names.
    return (lambda inputs: ensemble.predict(inputs, check=False)), record, ensemble.task


def _check_file_flags(own: PredictFlags) -> None:
    for flag, given in (("--network", own.network), ("--temperature", own.temperature)):
        if given is not None:
            raise UsageError(f"{flag} is for runs; {own.folder} is an exported file, which answers as it is.")


def prediction_rows(
    names: Sequence[str], answer: Any, record: dict[str, Any], task: str
) -> list[dict[str, Any]]:
    """A record for each input: the prediction and its uncertainty."""
    columns = COLUMNS[kind_of(task)](answer, record)
    return [
        dict(zip(("input", *columns), row, strict=True)) for row in zip(names, *columns.values(), strict=True)
    ]


def _class_columns(answer: Prediction, record: dict[str, Any]) -> dict[str, list[Any]]:
    classes = _class_names(record["classes"], answer.probs.shape[-1])
    if answer.probs.ndim == 4:
        return _pixel_columns(answer, classes)
    return {
        "prediction": [classes[i] for i in answer.label.tolist()],
        "probability": answer.max_prob.tolist(),
        "entropy": answer.entropy.tolist(),
        "mutual_information": answer.mutual_information.tolist(),
        **_sets(answer, classes),
        **{f"p({name})": answer.probs[:, i].tolist() for i, name in enumerate(classes)},
    }


def _sets(answer: Prediction, classes: Sequence[str]) -> dict[str, list[str]]:
    """The classes of the conformal sets, if the ensemble has some."""
    if not answer.guaranteed:
        return {}
    told = []
    for inside in answer.sets.tolist():
        told.append("; ".join(name for name, is_in in zip(classes, inside, strict=True) if is_in))
    return {"set": told}


def _pixel_columns(answer: Prediction, classes: Sequence[str]) -> dict[str, list[Any]]:
    """An image's shares of classes, and the means over its pixels of how sure the answer is."""

    def mean(values: Tensor) -> list[float]:
        return values.flatten(1).double().mean(1).tolist()

    return {
        "probability": mean(answer.max_prob),
        "entropy": mean(answer.entropy),
        "mutual_information": mean(answer.mutual_information),
        **{f"share({name})": mean(answer.label == i) for i, name in enumerate(classes)},
    }


def _label_columns(answer: MultiLabel, record: dict[str, Any]) -> dict[str, list[Any]]:
    names = _class_names(record["classes"], answer.probs.shape[-1])
    said = []
    for true in answer.labels.tolist():
        said.append("; ".join(name for name, is_true in zip(names, true, strict=True) if is_true))
    return {
        "prediction": said,
        "entropy": answer.entropy.sum(-1).tolist(),
        "mutual_information": answer.mutual_information.sum(-1).tolist(),
        **{f"p({name})": answer.probs[:, i].tolist() for i, name in enumerate(names)},
    }


def _number_columns(answer: Regression, record: dict[str, Any]) -> dict[str, list[Any]]:
    values = {
        "prediction": answer.mean,
        "std": answer.std,
        "epistemic_std": answer.epistemic.sqrt(),
        "aleatoric_std": answer.aleatoric.sqrt(),
    }
    if answer.guaranteed:
        values |= {"low": answer.low, "high": answer.high}
    return _in_units(values, record)


def _in_units(values: dict[str, Tensor], record: dict[str, Any]) -> dict[str, list[Any]]:
    """Columns of what is said of each target, (N, D) or (N,), in its own unit."""
    scales, shifts = _unit(record, values["prediction"][0].numel())
    columns = {}
    for k, (scale, shift) in enumerate(zip(scales, shifts, strict=True)):
        which = f"[{k}]" if len(scales) > 1 else ""
        for name, tensor in values.items():
            own = tensor.reshape(len(tensor), -1)[:, k].double() * scale
            columns[name + which] = (own if name in _DISTANCES else own + shift).tolist()
    return columns


_DISTANCES = ("std", "epistemic_std", "aleatoric_std")  # on the targets' scale, where all else are values


def _unit(record: dict[str, Any], outputs: int) -> tuple[list[float], list[float]]:
    """What leads each output back to its target's own unit: a factor, and what is added then."""
    unit = record["target_normalisation"] or {"mean": [0.0] * outputs, "std": [1.0] * outputs}
    return unit["std"], unit["mean"]


def _quantile_columns(answer: QuantileAnswer, record: dict[str, Any]) -> dict[str, list[Any]]:
    values = {"prediction": answer.centre}
    for level, numbers in zip(answer.asked.levels, answer.quantiles.unbind(-1), strict=True):
        values[f"q({level})"] = numbers
    values["epistemic_std"] = answer.asked.centre(answer.epistemic)[..., 0].sqrt()
    if answer.guaranteed:
        values |= {"low": answer.low, "high": answer.high}
    return _in_units(values, record)


COLUMNS: dict[str, Callable[[Any, dict[str, Any]], dict[str, list[Any]]]] = {
    "classification": _class_columns,
    "multilabel": _label_columns,
    "regression": _number_columns,
    "gaussian": _number_columns,
    KIND: _quantile_columns,
}
"""What is written of an answer, by the ensemble's task."""


def _class_names(classes: Sequence[str], outputs: int) -> list[str]:
    """A name for each output; a network may have more outputs than the data have classes."""
    if outputs < len(classes):
        raise StoreError(
            f"the run's settings name {len(classes)} classes, and its ensemble has {outputs} outputs: its files do "
            "not belong together."
        )
    return [*classes, *(f"class {i}" for i in range(len(classes), outputs))]


def _cut(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[i : i + size] for i in range(0, len(names), size)]


def _check_finite(rows: Sequence[dict[str, Any]], source: str) -> None:
    """Refuse to pass on a prediction that is no number, which a reader could take for one."""
    broken = []
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            broken.append(row["input"])
    if not broken:
        return
    named = ", ".join(broken[:_NAMED]) + (f" and {len(broken) - _NAMED} more" if broken[_NAMED:] else "")
    raise DataError(
        f"{source}: the prediction is NaN or infinite for {len(broken)} of {len(rows)} inputs: {named}. Their values "
        "are too large or missing; correct or remove these inputs."
    )


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = list(rows[0]) if rows else ["input"]
    plain = csv.writer(text, lineterminator="\n")
    # The plain writer puts no quotes around a carriage return, which would end the row for whoever reads it.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    table = [names, *([row[name] for name in names] for row in rows)]
    for row in table:
        cells = [_defused(cell) for cell in row]
        returns = any("\r" in cell for cell in cells if isinstance(cell, str))
        writer = quoting if returns else plain
        writer.writerow(cells)
    return text.getvalue()


def _defused(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: a quote before words, such as a file's name, that look like one.

    Numbers stay as they are, those that are the name of a class too.
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
