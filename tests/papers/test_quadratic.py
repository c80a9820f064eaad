"""The noisy quadratic problem against its exact formula, written out here with the full Kronecker product."""

import numpy as np
import pytest

from covey.errors import OptionError
from covey.papers.quadratic import Quadratic, full_ensemble_risk, late_phase_risk, simulate

SEEDS = (0, 1, 2)


def kronecker_risk(problem, members):
    """Equation 37 of the paper as printed, with dense matrices."""
    hessian = np.diag(1 / np.arange(1, problem.size + 1))
    step = np.eye(problem.size) - problem.lr * hessian
    inverse = np.linalg.inv(np.eye(problem.size**2) - np.kron(step, step))
    noise = (hessian @ np.linalg.inv(hessian) @ hessian).reshape(-1)
    covariance = problem.lr**2 / (members * problem.batch) * (inverse @ noise)
    return 0.5 * np.trace(hessian @ covariance.reshape(problem.size, problem.size))


@pytest.mark.parametrize("members", [1, 7])
def test_formula_is_the_paper_s(members):
    problem = Quadratic(size=6, lr=0.3, batch=5)
    np.testing.assert_allclose(
        full_ensemble_risk(problem, members), kronecker_risk(problem, members), rtol=1e-12
    )


def test_full_ensemble_matches_the_formula():
    problem = Quadratic()
    for members in (1, 4):
        measured = simulate(problem, members, "full", steps=20_000, last=12_000, seeds=SEEDS).mean()
        assert measured == pytest.approx(full_ensemble_risk(problem, members), rel=0.03)


def test_late_phase_falls_as_one_over_members():
    problem = Quadratic()
    risks = {
        members: simulate(problem, members, steps=18_000, last=8_000, seeds=SEEDS).mean()
        for members in (1, 2, 8)
    }
    for members, risk in risks.items():
        assert risk * members == pytest.approx(risks[1], rel=0.15)
        assert risk == pytest.approx(full_ensemble_risk(problem, members), rel=0.15)
        theory = np.mean([late_phase_risk(problem, members, problem.goal(seed)) for seed in SEEDS])
        assert risk == pytest.approx(theory, rel=0.08)


def test_the_start_is_at_the_distance():
    problem = Quadratic(distance=2.0)
    # with no time to move, the risk lies between what distance 2 gives on the flattest and the steepest axis
    risk = simulate(problem, 3, steps=1, last=1, seeds=(5,))[0]
    assert 0.5 * 4 / 100 < risk < 0.5 * 4


def test_seeds_are_independent_of_each_other():
    problem = Quadratic(size=5)
    both = simulate(problem, 2, steps=50, last=10, seeds=(3, 4))
    alone = simulate(problem, 2, steps=50, last=10, seeds=(4,))
    np.testing.assert_allclose(both[1], alone[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quadratic(lr=1.5), "between 0 and 1"),
        (lambda: Quadratic(size=0), "at least 1"),
        (lambda: simulate(Quadratic(), 2, "half"), "'late-phase' or 'full'"),
        (lambda: simulate(Quadratic(), 2, steps=5, last=9), "between 1 and steps=5"),
    ],
)
def test_bad_options_are_named(make, words):
    with pytest.raises(OptionError, match=words):
        make()
