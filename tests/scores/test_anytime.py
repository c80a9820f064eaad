from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

import covey
from covey.scores import Record
from covey.scores.subsets import Anytime, Measured, Subset, anytime, of_record, spread


def _ensemble(members: int = 3) -> covey.Ensemble:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    return covey.convert(network, covey.DeepEnsemble(members=members), example=torch.zeros(2, 5))


_SEEDED = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 5, generator=_SEEDED), torch.randint(0, 3, (40,), generator=_SEEDED)


@pytest.mark.parametrize("score", ["accuracy", "nll"])
def test_every_subset_is_scored_by_its_mean_probability(score: str) -> None:
    ensemble = _ensemble().train()
    found = anytime(ensemble, X, Y, score=score, batch=16)
    assert ensemble.training
    expected = {m for n in (1, 2, 3) for m in itertools.combinations(range(3), n)}
    assert {subset.members for subset in found.subsets} == expected
    plain = [ensemble.member(k).eval() for k in range(3)]
    for subset in found.subsets:
        with torch.no_grad():
            probs = torch.stack([plain[k](X).softmax(-1) for k in subset.members]).mean(0)
        right = (
            probs.argmax(-1).eq(Y).double().mean()
            if score == "accuracy"
            else probs[range(40), Y].log().mean()
        )
        assert subset.score == pytest.approx(right.item(), abs=1e-6)
        assert subset.multiply_adds == len(subset.members) * (5 * 7 + 7 * 3)
        assert subset.milliseconds > 0


def test_numbers_and_quantiles_are_scored_too() -> None:
    target = X[:, :1] + X[:, 1:2] ** 2
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=X[:2], task="regression").eval()
    found = {subset.members: subset.score for subset in anytime(ensemble, X, target).subsets}
    assert found[0, 1] == pytest.approx(-(ensemble.predict(X).mean - target).square().mean().item())
    assert found[0,] == pytest.approx(-(ensemble.member(0)(X) - target).square().mean().item())
    asked = covey.Quantiles((0.1, 0.5, 0.9))
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=X[:2], task=asked).eval()
    (both,) = (s for s in anytime(ensemble, X, target[:, 0]).subsets if len(s.members) == 2)
    answer = ensemble.predict(X)
    apart = target - answer.quantiles
    levels = torch.tensor([0.1, 0.5, 0.9])
    pinball = torch.maximum(levels * apart, (levels - 1) * apart).mean()
    assert both.score == pytest.approx(-pinball.item(), rel=1e-5)


def _fixed() -> Anytime:
    subsets = (
        Subset((0,), 10, 1.0, 0.6),
        Subset((1,), 20, 2.0, 0.55),
        Subset((0, 1), 30, 3.0, 0.7),
        Subset((2,), 40, 4.0, 0.75),
        Subset((0, 2), 50, 5.0, 0.75),
        Subset((1, 2), 60, 6.0, 0.74),
        Subset((0, 1, 2), 70, 7.0, 0.8),
    )
    return Anytime(subsets, 10, "accuracy", _ensemble())


def test_the_front_and_the_best_for_a_budget() -> None:
    fixed = _fixed()
    assert [s.members for s in fixed.front()] == [(0,), (0, 1), (2,), (0, 1, 2)]
    assert [s.members for s in fixed.front("multiply_adds")] == [(0,), (0, 1), (2,), (0, 1, 2)]
    assert fixed.best(1.0).members == (0,)
    assert fixed.best(6.9).members == (2,)
    assert fixed.best(100).members == (0, 1, 2)
    assert fixed.best(6.9, samples=20).members == (0, 1)  # twice the measured batch takes twice the time
    with pytest.raises(covey.CoveyError, match=r"budget_ms is 0.5, and the fastest member, 0, takes 1 ms"):
        fixed.best(0.5)


def test_predict_runs_only_the_chosen_members() -> None:
    fixed = _fixed()
    answer = fixed.predict(X[:4], budget_ms=3.5)
    assert isinstance(answer, covey.Prediction)
    expected = fixed.ensemble.predict(X[:4], members=[0, 1])
    assert torch.equal(answer.logits, expected.logits)  # type: ignore[union-attr]


def test_refining_yields_the_answer_after_each_member() -> None:
    fixed = _fixed()
    assert fixed.order() == [2, 0, 1]
    steps = list(fixed.refine(X[:4]))
    assert [n for n, _ in steps] == [1, 2, 3]
    whole = fixed.ensemble.predict(X[:4], members=[2, 0, 1])
    torch.testing.assert_close(steps[-1][1].probs, whole.probs)  # type: ignore[union-attr]
    first = fixed.ensemble.predict(X[:4], members=[2])
    torch.testing.assert_close(steps[0][1].probs, first.probs)  # type: ignore[union-attr]
    assert [n for n, _ in fixed.refine(X[:4], members=[1])] == [1]


def test_many_members_are_chained_greedily() -> None:
    found = anytime(_ensemble(13), X, Y)
    assert sorted(len(s.members) for s in found.subsets) == list(range(1, 14))
    longest = max(found.subsets, key=lambda s: len(s.members))
    assert found.order() == list(longest.members)


def test_bad_input() -> None:
    ensemble = _ensemble()
    with pytest.raises(covey.CoveyError, match="'accuracy' or 'nll' for classification; got 'f1'"):
        anytime(ensemble, X, Y, score="f1")
    with pytest.raises(covey.CoveyError, match="got 40 and 3"):
        anytime(ensemble, X, Y[:3])


BODY, HEAD = 5 * 7, 7 * 3


@pytest.mark.parametrize(
    ("method", "of_three"),
    [
        (covey.MIMO(members=3), BODY + 3 * HEAD),
        (covey.MultiHead(members=3), BODY + 3 * HEAD),
        (covey.DeepEnsemble(members=3), 3 * (BODY + HEAD)),
    ],
)
def test_what_members_share_counts_once(method: covey.Method, of_three: int) -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    ensemble = covey.convert(network, method, example=X[:2])
    ensemble.run = "batched"
    adds = {s.members: s.multiply_adds for s in anytime(ensemble, X, Y, repeats=2).subsets}
    assert adds[0,] == BODY + HEAD
    assert adds[0, 1, 2] == of_three
    assert adds[1, 2] == (adds[0,] + of_three) / 2


def test_a_shared_body_that_runs_for_each_member_counts_for_each() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    ensemble = covey.convert(network, covey.MultiHead(members=3), example=X[:2])
    ensemble.run = "loop"
    adds = {s.members: s.multiply_adds for s in anytime(ensemble, X, Y, repeats=2).subsets}
    assert adds[0, 1, 2] == 3 * (BODY + HEAD)


def test_generated_weights_do_not_count_as_work_of_an_answer() -> None:
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    x, y = torch.randn(6, 2, 8, 8), torch.zeros(6, dtype=torch.long)
    ensemble = covey.convert(network, covey.Mixture(members=2, budget=2.0), example=x)
    adds = {s.members: s.multiply_adds for s in anytime(ensemble, x, y, repeats=2).subsets}
    assert adds[0, 1] == 2 * adds[0,]


def test_updates_that_act_on_activations_count_for_one_member_as_for_all() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    ensemble = covey.convert(network, covey.LowRank(members=3, rank=2), example=X[:2])
    adds = {s.members: s.multiply_adds for s in anytime(ensemble, X, Y, repeats=2).subsets}
    assert adds[0, 1, 2] == 3 * adds[1,]


def test_an_evaluations_outputs_are_scored_in_their_own_unit() -> None:
    ensemble = _ensemble(2)
    record = Record(outputs=torch.randn(2, 40, 3), targets=Y)
    found = {s.members: s.score for s in of_record(ensemble, record, X[:8], repeats=2).subsets}
    both = record.outputs.softmax(-1).mean(0).argmax(-1)
    assert found[0, 1] == pytest.approx((both == Y).double().mean().item())
    numbers = Record(outputs=torch.randn(2, 40, 1), targets=X[:, :1], task="regression")
    rmse = of_record(ensemble, numbers, X[:8], repeats=2)
    (first,) = (s for s in rmse.subsets if s.members == (0,))
    assert rmse.score == "rmse"
    assert first.score == pytest.approx(-(numbers.outputs[0] - X[:, :1]).square().mean().sqrt().item())
    asked = covey.Quantiles((0.1, 0.9))
    quantiles = Record(outputs=torch.randn(2, 40, 2), targets=X[:, 0], task=str(asked))
    (last,) = (s for s in of_record(ensemble, quantiles, X[:8], repeats=2).subsets if len(s.members) == 2)
    assert last.score == pytest.approx(-asked(quantiles.outputs.mean(0), X[:, 0]).item())


def test_of_many_samples_some_are_taken_all_over() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    rows = spread(20_000, 10_000)
    assert len(rows.unique()) == 10_000
    assert (rows < 10_000).sum() == 5_000
    assert (rows[0], rows[-1]) == (0, 19_999)


def test_what_was_measured_can_be_stored() -> None:
    fixed = _fixed()
    again = Measured.from_dict(json.loads(json.dumps(fixed.to_dict())))
    assert again == Measured(fixed.subsets, fixed.batch, fixed.score)
    assert again.front() == fixed.front()
    later = json.loads(json.dumps(fixed.to_dict()))
    later["subsets"][0]["more"] = "what a later version may add"
    assert Measured.from_dict(later) == again
