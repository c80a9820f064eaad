"""What a person sees of an answer and of an evaluation."""

from __future__ import annotations

import pytest
import torch

from covey.combine import Prediction, Regression
from covey.scores import Record, score


def rows(text: str, start: int) -> list[list[str]]:
    """The cells of a table's lines, from the first after its rule on."""
    return [line.split() for line in text.splitlines()[start:]]


def test_a_prediction_prints_its_first_samples() -> None:
    prediction = Prediction(torch.tensor([[[2.0, 0.0]] * 1200, [[0.0, 2.0]] * 1200]))
    text = str(prediction)
    assert text.startswith("Prediction of 2 members for a batch (1200,), 2 classes\n")
    assert text.splitlines()[1].split() == [
        "sample",
        "label",
        "probability",
        "entropy",
        "mutual",
        "information",
    ]
    assert rows(text, 3)[0] == ["0", "0", "0.5000", "0.6931", "0.3278"]
    assert text.endswith("... and 1,195 more")
    assert len({len(line) for line in text.splitlines()[1:8]}) == 1, "columns are aligned"
    assert repr(prediction) == "Prediction(members=2, batch=(1200,), classes=2)"


def test_printing_uses_the_calibrated_probabilities() -> None:
    pooled = torch.tensor([[0.9, 0.1]]).log()
    text = str(Prediction(torch.zeros(3, 1, 2), pooled))
    assert rows(text, 3) == [["0", "0", "0.9000", "0.3251", "0.0000"]]


@pytest.mark.parametrize(
    ("shape", "first"), [((2, 3, 4, 5), "0, 0"), ((2, 2, 5), "0"), ((2, 5), ""), ((1, 0, 5), None)]
)
def test_every_shape_prints(shape: tuple[int, ...], first: str | None) -> None:
    text = str(Prediction(torch.randn(shape, requires_grad=True)))
    lines = text.splitlines()[3:]
    assert not lines if first is None else lines[0].strip().startswith(first)


def test_a_regression_prints_both_variances() -> None:
    means, variances = torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[0.5]], [[1.5]]])
    text = str(Regression(means, variances))
    assert text.startswith("Regression of 2 members for a batch (1, 1)\n")
    assert rows(text, 3) == [["0,", "0", "2.0000", "1.4142", "1.0000", "1.0000"]]
    assert rows(str(Regression(means)), 3) == [["0,", "0", "2.0000", "1.0000", "-", "1.0000"]]
    assert repr(Regression(means)) == "Regression(members=2, batch=(1, 1))"
    assert "2e+06" in str(Regression(1e6 * means)), "large values keep their size"


def test_an_evaluation_prints_its_headline() -> None:
    torch.manual_seed(0)
    record = Record(
        torch.randn(2, 30, 3),
        torch.randint(3, (30,)),
        ood={"<script>alert(1)</script>": torch.randn(2, 1500, 3)},
        classes=("a", "b", "c"),
    )
    found = score(record)
    text = str(found)
    assert text.startswith("Evaluation: classification, 2 members, 30 test samples, 3 classes\n")
    accuracy = found.scores["ensemble"]["accuracy"], found.scores["member_mean"]["accuracy"]
    assert ["accuracy", *(f"{value:.4f}" for value in accuracy)] in rows(text, 0)
    outside = found.scores["ood"]["sets"]["<script>alert(1)</script>"]["entropy"]
    shown = [f"{outside[name]:.4f}" for name in ("auroc", "aupr_out", "aupr_in", "fpr95")]
    assert ["<script>alert(1)</script>", "1500", *shown] in rows(text, 0)
    assert "Note: No validation data" in text
    assert repr(found) == "Evaluation(task='classification', members=2, samples=30, outputs=3)"
    assert repr(record) == "Record(task='classification', members=2, samples=30, outputs=3)"
    page = found._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<table>") == page.count("</table>") == 2


def test_an_evaluation_of_a_regression_prints() -> None:
    found = score(Record(torch.randn(1, 6, 1), torch.randn(6, 1), task="regression"))
    assert str(found).startswith("Evaluation: regression, 1 member, 6 test samples, 1 output\n")
    assert "gaussian_nll" not in str(found), "scores that are not defined are left out"


def test_notebooks_show_the_same_table() -> None:
    page = Prediction(torch.zeros(2, 7, 3))._repr_html_()
    assert page.count("<tr>") == 6
    assert "the first 5" in page
    assert "<td" in Regression(torch.zeros(2, 3))._repr_html_()
