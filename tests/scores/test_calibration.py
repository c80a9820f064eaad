from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from covey.calibration import from_dict
from covey.combine import Prediction
from covey.errors import EvaluationError
from covey.scores import calibration
from covey.scores.calibration import Conformal, Temperature, fit_conformal, fit_temperature


def drawn_labels(logits: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=logits).sample()


def test_members_temperatures_are_found_again() -> None:
    true = torch.randn(2, 20_000, 5) * 2
    labels = drawn_labels(true[0])
    # Both members say the truth, the first three times too surely, the second half as surely as they may.
    logits = torch.stack((3 * true[0], 0.5 * true[0]))
    fitted = fit_temperature(logits, labels, kind="members")
    assert fitted.values == pytest.approx((3, 0.5), rel=0.05)
    scaled = fitted.apply(logits)
    assert torch.allclose(scaled[0], logits[0] / fitted.values[0])
    assert scaled.shape == logits.shape


def test_pooled_temperature_is_found_again_and_never_hurts_validation_nll() -> None:
    logits = torch.randn(4, 20_000, 6) * 3
    pooled = Prediction(logits).log_probs
    labels = drawn_labels(pooled / 1.7)
    fitted = fit_temperature(logits, labels)
    assert fitted.values == pytest.approx((1.7,), rel=0.05)
    calibrated = Prediction(fitted.apply(logits))
    assert torch.allclose(calibrated.log_probs, (pooled / fitted.values[0]).log_softmax(-1), atol=1e-5)

    def nll(log_probs: Tensor) -> Tensor:
        return torch.nn.functional.nll_loss(log_probs, labels)

    assert nll(calibrated.log_probs) < nll(pooled)


def test_temperatures_end_where_validation_has_no_error() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    logits = torch.nn.functional.one_hot(labels, 3).float()[None]
    assert calibration.LOWEST <= fit_temperature(logits, labels).values[0] < 0.05


@pytest.mark.parametrize("kind", ["threshold", "aps"])
@pytest.mark.parametrize("samples", [19, 200])
def test_conformal_sets_keep_their_promise(kind: str, samples: int) -> None:
    # Over many draws of validation data, mean coverage is at least 1 - alpha; and for continuous scores
    # at most 1/(n + 1) more, plus what the most probable class adds to otherwise empty threshold sets.
    torch.manual_seed(3)
    alpha, coverages = 0.2, []
    for _ in range(300):
        logits = torch.randn(samples + 200, 5) * 1.5
        labels = drawn_labels(0.6 * logits)  # the network is too sure of itself
        probs = logits.softmax(-1)
        fitted = fit_conformal(probs[:samples], labels[:samples], alpha=alpha, kind=kind)
        coverages.append(calibration.conformal_scores(fitted, probs[samples:], labels[samples:])["coverage"])
    mean = sum(coverages) / len(coverages)
    assert 1 - alpha - 0.01 < mean < 1 - alpha + 1 / (samples + 1) + 0.015


def test_conformal_by_hand() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
    assert Conformal("threshold", 0.1, 0.7).sets(probs).tolist() == [[True, True, False], [False, True, True]]
    assert Conformal("aps", 0.1, 0.85).sets(probs).tolist() == [[True, False, False], [False, True, True]]
    assert Conformal("threshold", 0.1, 0.1).sets(probs).any(-1).all(), "a set is never empty"


@pytest.mark.parametrize(
    "fitted", [Temperature("pooled", (1.5,)), Temperature("members", (1.0, 2.0)), Conformal("aps", 0.1, 0.9)]
)
def test_stored_as_json(fitted: Temperature | Conformal) -> None:
    assert from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


def test_bad_input() -> None:
    logits, labels = torch.randn(2, 8, 3), torch.zeros(8, dtype=torch.long)
    with pytest.raises(EvaluationError, match=r"alpha 0\.1 need 9 validation samples or more, got 8"):
        fit_conformal(logits[0].softmax(-1), labels)
    with pytest.raises(EvaluationError, match="alpha: expected between 0 and 1"):
        fit_conformal(logits[0].softmax(-1), labels, alpha=1.0)
    with pytest.raises(EvaluationError, match="'threshold' or 'aps', got 'raps'"):
        fit_conformal(logits[0].softmax(-1), labels, kind="raps")
    with pytest.raises(EvaluationError, match="'pooled' or 'members', got 'vector'"):
        fit_temperature(logits, labels, kind="vector")
    with pytest.raises(EvaluationError, match="temperatures for 3 members, the logits 2"):
        Temperature("members", (1.0, 1.0, 1.0)).apply(logits)
    with pytest.raises(
        EvaluationError, match="'temperature', 'conformal', 'intervals', 'margin', got 'isotonic'"
    ):
        from_dict({"calibration": "isotonic"})
    with pytest.raises(EvaluationError, match="not complete"):
        from_dict({"calibration": "temperature", "kind": "pooled"})
