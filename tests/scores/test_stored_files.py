"""Files of an evaluation that were changed after they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey.cli import reading
from covey.errors import CoveyError, EvaluationError, StoreError
from covey.scores import Evaluation
from covey.scores.robustness import read_cifar_c


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("evaluation")
    inputs, labels = torch.randn(40, 4), torch.arange(40) % 3
    covey.evaluate(nn.Linear(4, 3), (inputs, labels), ood={"far": 9 * inputs}, folder=folder)
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("scores",), [], "scores should be a table"),
        (("scores", "ensemble"), {}, "scores.ensemble lacks 'accuracy'"),
        (("scores", "ensemble", "nll"), "low", "scores.ensemble.nll should be a number"),
        (("scores", "ood", "sets"), {}, r"scores.ood has the sets \[\], and about.ood has \['far'\]"),
        (("scores", "members"), [{}, {}], "scores.members should have 1 entries"),
        (("curves", "roc", "far", "lost"), [0.0], "the lists of the curve 'far' differ in length"),
        (("curves", "histogram", "share", "test"), [1.0], "the histogram should have 30 shares"),
        (("about", "members"), 0, "about.members should be a whole number from 1"),
        (("about", "classes"), 3, "about.classes should be a list"),
        (
            ("calibration",),
            {"pooled": {"calibration": "magic"}},
            "calibration.pooled.calibration should be one of",
        ),
        (("notes",), [None], r"notes\[0\] should be a text"),
    ],
)
def test_a_changed_evaluation_is_refused_with_the_place(
    stored: dict[str, Any], place: tuple[str, ...], value: object, words: str, tmp_path: Path
) -> None:
    changed = json.loads(json.dumps(stored))
    entry = changed
    for step in place[:-1]:
        entry = entry[step]
    entry[place[-1]] = value
    (tmp_path / "evaluation.json").write_text(json.dumps(changed))
    with pytest.raises(EvaluationError, match=words):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "3", '{"format": 1}', '{"format": 1' + "0" * 5000 + "}", "\ud800"]
)
def test_a_text_that_is_no_evaluation_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(text, errors="surrogatepass")
    with pytest.raises(EvaluationError):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": None}, "options should be a table"),
        ({"method": ["single"]}, "method should be a text"),
        ({"seconds": "long"}, "seconds should be a number"),
        ({"record": {}}, "record lacks 'task'"),
    ],
)
def test_changed_settings_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    record = {
        "task": "classification", "classes": ["a", "b"], "shape": [3, 8, 8], "columns": [],
        "normalisation": {"mean": [0.0], "std": [1.0]}, "target_normalisation": None,
    }  # fmt: skip
    parts: dict[str, Any] = {key: {} for key in ("options", "dataset", "network", "recipe", "machine")}
    whole = {"method": "single", **parts, "record": record, "seconds": 1.0, "ended": "done"}
    (tmp_path / "settings.json").write_text(json.dumps({**whole, **changes}))
    with pytest.raises(StoreError, match=words):
        reading.read_settings(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps(whole))
    with pytest.raises(StoreError, match="normalisation has 1 means and 1 deviations; expected 3 of each"):
        reading.read_settings(tmp_path)


def test_published_corruptions_are_believed_as_far_as_their_size(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(10, np.int64))
    np.save(tmp_path / "fog.npy", np.zeros((10, 4, 4, 3), np.uint8))
    assert read_cifar_c(tmp_path, "fog", 1)[0].shape == (2, 3, 4, 4)
    whole = (tmp_path / "fog.npy").read_bytes()
    for broken in (
        whole.replace(b"(10, 4", b"(10**9", 1),
        whole.replace(b"(10, ", b"(99, "),
        whole[:-9],
        b"\x93NUMPY\x01",
    ):
        (tmp_path / "fog.npy").write_bytes(broken)
        with pytest.raises(CoveyError, match="not an .npy file"):
            read_cifar_c(tmp_path, "fog", 1)
