"""What an exported file says about itself, so that the file alone is enough."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from covey.calibration import SPEC as CALIBRATION
from covey.data import tokens
from covey.data.inputs import RECORD, check_record
from covey.deploy.tracing import Example
from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.losses import loss_of
from covey.registry import described
from covey.schema import Either, Many, Maybe, Named, Record, Truth, Whole, Word, check, parse_json
from covey.version import __version__

KEY = "covey"
"""Under which the metadata stand in a file."""

FORMAT = 1
SPEC = Record(
    {
        "format": Whole(),
        "versions": Named(Word()),
        "method": Named(),
        "members": Whole(1),
        "task": Word(),
        "labels": Many(Word()),
        "inputs": Named(
            Record({"shape": Many(Either((Whole(), Word(("batch", "length")))), most=16), "dtype": Word()})
        ),
        "outputs": Named(Word()),
        "data": Maybe(RECORD),
        "calibration": Named(CALIBRATION),
        "fixed_draws": Truth(),
        "weights": Word(("made", "stored")),
        "coverage": Named(),
    },
    optional={"preparation": Maybe(Word())},
)
"""What the metadata look like."""

MEANING = {
    "probs": "probability of each class, (batch, ..., classes): the mean over members, calibrated",
    "entropy": "total uncertainty in nats, (batch, ...)",
    "mutual_information": "what members do not agree on, in nats, (batch, ...)",
    "sets": "which classes are in the conformal set, (batch, ..., classes)",
    "member_logits": "each member's logits, (members, batch, ..., classes)",
    "mean": "the prediction, (batch, ...)",
    "std": "standard deviation of the prediction, (batch, ...)",
    "epistemic": "variance between members, (batch, ...)",
    "aleatoric": "mean variance that members predict, (batch, ...)",
    "low": "lower end of the conformal interval, (batch, ...)",
    "high": "upper end of the conformal interval, (batch, ...)",
    "member_mean": "each member's prediction, (members, batch, ...)",
    "quantiles": "the quantiles of the task's levels, rising, (batch, ..., levels)",
    "member_quantiles": "each member's quantiles, (members, batch, ..., levels)",
    "member_variance": "each member's variance, (members, batch, ...)",
}


IMAGES = "images of shape (channels, height, width): 8-bit values / 255, then (x - mean) / std of data.normalisation"
TABLE = (
    "for each of data.columns in order: a number as (value - mean) / std; a date likewise, in days since 1970-01-01; a "
    "category as 0 or 1 for each of its values. If missing is true, one more follows: 1 where the value is missing, "
    "which itself is then 0"
)
TEXTS = "token numbers, made of texts as data.columns says"


def preparation(record: Mapping[str, Any] | None) -> str | None:
    """How raw inputs become what the file takes, in words; None where they go in as they are, or nobody knows."""
    if record is None:
        return None
    if record["columns"]:
        return TEXTS if record["columns"][0]["kind"] == tokens.KIND else TABLE
    return None if record["normalisation"] is None else IMAGES


def describe(
    ensemble: Ensemble,
    example: Example,
    outputs: Sequence[str],
    record: Mapping[str, Any] | None,
    random: bool,
    weights: str,
) -> dict[str, Any]:
    """The metadata of a file."""
    inputs = {}
    for name, tensor in zip(example.names, example.tensors, strict=True):
        inputs[name] = {"shape": example.shape(tensor), "dtype": str(tensor.dtype).removeprefix("torch.")}
    calibration = {}
    if ensemble.temperature is not None:
        calibration["temperature"] = ensemble.temperature.to_dict()
    if ensemble.conformal is not None:
        calibration["conformal"] = ensemble.conformal.to_dict()
    coverage = ensemble.coverage
    rows = [[row.name, list(row.shape), row.role, row.parameters] for row in coverage.rows]
    return {
        "format": FORMAT,
        "versions": {"covey": __version__, "torch": str(torch.__version__)},
        "method": described(ensemble.method),
        "members": ensemble.members,
        "task": ensemble.task,
        "labels": list(record["classes"]) if record else [],
        "inputs": inputs,
        "preparation": preparation(record),
        "outputs": {name: MEANING[name] for name in outputs},
        "data": None if record is None else _kept(record),
        "calibration": calibration,
        "fixed_draws": random,
        "weights": weights,
        "coverage": {"parameters": coverage.total, "of_the_network": coverage.ratio, "tensors": rows},
    }


def _kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """What predictions need of a record of data."""
    return {key: record[key] for key in (*RECORD.keys, *RECORD.optional) if key in record}


def as_text(described: Mapping[str, Any]) -> str:
    """As the file holds it."""
    return json.dumps(described)


def read(text: str | None, path: Path) -> dict[str, Any]:
    """From what a file holds, checked."""
    if text is None:
        raise StoreError(f"{path} was not written by covey: its metadata have no entry {KEY!r}.")
    found = parse_json(text, path)
    check(found, SPEC, path)
    if found["format"] != FORMAT:
        raise StoreError(f"{path} has format {found['format']}; this covey reads format {FORMAT}.")
    try:
        loss_of(found["task"])
    except OptionError as error:
        raise StoreError(f"{path}: {error}") from error
    if found["data"] is not None:
        check_record(found["data"], str(path))
    return found
