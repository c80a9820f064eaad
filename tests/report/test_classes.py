"""Scores of single classes against scikit-learn, and the samples that are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from parsed_page import Page
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.report import Run, write
from covey.scores import Evaluation, Record, score
from covey.scores.classes import class_scores, most_confused
from covey.scores.examples import KINDS, Shown, examples


def test_scores_of_classes_against_scikit_learn() -> None:
    torch.manual_seed(0)
    labels, predicted = torch.randint(5, (300,)), torch.randint(5, (300,))
    found = class_scores(predicted, labels, 5)
    assert np.array_equal(found["confusion"], confusion_matrix(labels, predicted))
    precision, recall, f1, samples = precision_recall_fscore_support(labels, predicted)
    assert found["per_class"]["samples"] == samples.tolist()
    for name, expected in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert found["per_class"][name] == pytest.approx(expected.tolist())


def test_a_class_that_never_occurs_has_no_recall() -> None:
    found = class_scores(torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]), 3)
    assert found["per_class"]["recall"] == [0.5, 0.0, None]
    assert found["per_class"]["precision"] == [0.5, 0.0, None]
    assert found["confused"] == [
        {"label": 0, "predicted": 1, "count": 1},
        {"label": 1, "predicted": 0, "count": 1},
    ]
    assert most_confused(torch.diag(torch.tensor([3, 4]))) == []


def outputs(answers: list[int], sure: list[float]) -> torch.Tensor:
    """Logits of one member that answers so, with these logits for the answer."""
    logits = torch.zeros(1, len(answers), 3)
    logits[0, torch.arange(len(answers)), torch.tensor(answers)] = torch.tensor(sure)
    return logits


def test_confident_mistakes_and_foreign_inputs_come_first() -> None:
    prediction = Prediction(outputs([0, 1, 2, 0], [1.0, 2.0, 3.0, 4.0]))
    labels = torch.tensor([0, 0, 1, 0])
    outside = {"far": Prediction(outputs([1, 2], [0.5, 5.0]))}
    shown = Shown(torch.randn(4, 2), {"far": torch.tensor([[1.0, 2.0], [3.0, torch.nan]])}, ("age", "size"))
    found = examples(prediction, labels, outside, shown)
    wrong = [each for each in found if each["kind"] == "confidently wrong"]
    assert [each["index"] for each in wrong] == [2, 1]
    assert wrong[0]["values"].keys() == {"age", "size"}
    foreign = [each for each in found if each["kind"] == "out of distribution"]
    assert [each["index"] for each in foreign] == [1, 0]
    assert foreign[0]["set"] == "far"
    assert foreign[0]["label"] is None
    assert foreign[0]["values"] == {"age": 3.0, "size": None}
    assert {each["kind"] for each in found} == set(KINDS) - {"uncertainty map"}
    json.dumps(found, allow_nan=False)


HOSTILE = '"><script>alert(1)</script> | `x` {{7*7}}'


def table_run(classes: tuple[str, ...], columns: tuple[str, ...], **sets: torch.Tensor) -> Run:
    torch.manual_seed(1)
    labels = torch.randint(3, (40,))
    record = Record(
        torch.randn(2, 40, 3), labels, classes=classes, ood={name: torch.randn(2, 9, 3) for name in sets}
    )
    return Run("method", 0, score(record, inputs=torch.randn(40, 2), ood=sets, columns=columns))


def test_a_report_of_a_table_shows_rows_and_escapes_their_names(tmp_path: Path) -> None:
    run = table_run((HOSTILE, "b", "c"), (HOSTILE, "size"), **{HOSTILE: torch.randn(9, 2)})
    stored = Evaluation.from_dict(json.loads(json.dumps(run.evaluation.to_dict())))
    page = write([Run("method", 0, stored)], tmp_path)
    text = page.read_text()
    parsed = Page(text)
    assert len(parsed.of("script")) == 1
    assert "method: confidently wrong" in text
    assert "method: out of distribution" in text
    assert "Recall / precision in % by class" in text
    assert (tmp_path / "figures" / "confusion-method.svg").is_file()
    twin = (tmp_path / "report.md").read_text()
    assert "<script" not in twin
    assert "| Sample | Class | Answer | Sure, % |" in twin


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"confusion": [[1, 2], [3, 4]]}, "confusion should be 3 x 3"),
        (
            {"per_class": {"samples": [1], "recall": [], "precision": [], "f1": []}},
            "3 entries, one for each",
        ),
        ({"confused": [{"label": 7, "predicted": 0, "count": 1}]}, "a class beyond the 3 classes"),
    ],
)
def test_stored_scores_of_classes_that_do_not_fit_are_refused(change: dict, told: str) -> None:
    stored = table_run((), ()).evaluation.to_dict()
    with pytest.raises(EvaluationError, match=told):
        Evaluation.from_dict({**stored, "scores": {**stored["scores"], **change}})


def test_a_row_of_words_is_left_out_with_a_note(tmp_path: Path) -> None:
    stored = table_run((), ()).evaluation.to_dict()
    stored["examples"][0]["values"] = {"x0": "<b>"}
    page = write([Run("method", 0, Evaluation.from_dict(stored))], tmp_path)
    assert "1 stored example(s) left out" in page.read_text()
