from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch

from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.scores import ood


@pytest.mark.parametrize("kind", ["spread", "ties", "huge"])
def test_detection_against_sklearn(kind: str) -> None:
    test, outside = torch.randn(300), torch.randn(200) + 1
    if kind == "ties":
        test, outside = test.round(), outside.round()
    if kind == "huge":  # a sigmoid would make all of these 1
        test, outside = test + 1000, outside + 1000
    found = ood.detection(test, outside)
    truth = np.r_[np.zeros(300), np.ones(200)]
    values = torch.cat((test, outside)).numpy()
    assert found["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(truth, values), abs=1e-6)
    assert found["aupr_out"] == pytest.approx(
        sklearn.metrics.average_precision_score(truth, values), abs=1e-6
    )
    aupr_in = sklearn.metrics.average_precision_score(1 - truth, -values)
    assert found["aupr_in"] == pytest.approx(aupr_in, abs=1e-6)
    # Test inputs as positives, as the measure is defined.
    fpr, tpr, _ = sklearn.metrics.roc_curve(1 - truth, -values, drop_intermediate=False)
    assert found["fpr95"] == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min())


def test_fpr_counts_exactly() -> None:
    test = torch.arange(20.0)  # 19 of 20 are at or below 18
    outside = torch.tensor([17.5, 18.0, 18.5, 30.0])
    assert ood.fpr_at_tpr(test, outside) == 0.5
    with pytest.raises(EvaluationError, match="tpr: expected above 0"):
        ood.fpr_at_tpr(test, outside, tpr=0)


def test_criteria_by_hand() -> None:
    # Two members that are sure of different classes: entropy log 2, all of it mutual information.
    logits = torch.tensor([[[50.0, 0.0, 0.0]], [[0.0, 50.0, 0.0]]])
    values = {name: float(criterion(Prediction(logits))) for name, criterion in ood.CRITERIA.items()}
    assert values["msp"] == pytest.approx(-0.5)
    assert values["max_logit"] == pytest.approx(-25)
    assert values["entropy"] == pytest.approx(np.log(2), abs=1e-6)
    assert values["mutual_information"] == pytest.approx(np.log(2), abs=1e-6)
    assert values["variation_ratio"] == pytest.approx(0.5)
    assert values["energy"] == pytest.approx(-25 - np.log(2))


def test_every_criterion_is_higher_out_of_distribution() -> None:
    torch.manual_seed(1)
    sure = torch.randn(1, 400, 5) * 6 + 0.3 * torch.randn(4, 400, 5)
    unsure = torch.randn(4, 400, 5)
    scores = ood.ood_scores(Prediction(sure), {"first": Prediction(unsure), "second": Prediction(sure)})
    for name, found in scores["sets"]["first"].items():
        assert found["auroc"] > 0.8, name
        assert scores["sets"]["second"][name]["auroc"] == pytest.approx(0.5), name
        assert scores["mean"][name]["auroc"] == pytest.approx((found["auroc"] + 0.5) / 2)


def test_roc_area_is_the_auroc() -> None:
    test, outside = torch.randn(1000), torch.randn(900) + 1
    curve = ood.roc(test, outside)
    area = np.trapezoid(curve["found"], curve["lost"])
    assert area == pytest.approx(ood.detection(test, outside)["auroc"], abs=2e-3)
    assert (curve["lost"][-1], curve["found"][-1]) == (1, 1)


def test_empty_set() -> None:
    with pytest.raises(EvaluationError, match="needs both sets, got 3 test and 0 OOD values"):
        ood.detection(torch.zeros(3), torch.zeros(0))
