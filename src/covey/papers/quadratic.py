"""The noisy quadratic problem, on which what late-phase weights do can be computed.

    L(w) = 1/2 (w - w* + eps)^T H (w - w* + eps),   eps ~ N(0, Sigma / B),   H_ii = 1/i,   Sigma = H^-1

von Oswald et al. (2021), section 3.1 and appendix C. Members are w_k = theta phi_k with one number phi_k each, or K
full vectors; both are trained by plain gradient descent, and what counts is the risk 1/2 (w - w*)^T H (w - w*) of
the mean of the w_k once it no longer falls.

The product theta phi has a direction along which nothing changes (theta c, phi / c), and gradient noise drifts along
it by lr^2 a step. The paper gives neither the learning rate nor B. The defaults here make the noise small enough for
that drift not to matter while the risk settles. Without noise |theta|^2 - mean phi_k^2 stays as it was; members start
with both alike, so that they end, near |w*| = 1, with phi around 1 and hence the step size of the full ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from covey.errors import OptionError
from covey.extras import load

MemberWeights = Literal["late-phase", "full"]
"""What a member is: theta times one number of its own, or a full vector."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """The problem and how it is trained.

    Args:
        size: n, how many weights.
        lr: the learning rate, below 1 so that the steepest direction (H = 1) converges.
        batch: B, by which the noise's variance is divided.
        distance: how far the mean of the members is from w* at the start.
    """

    size: int = 100
    lr: float = 0.1
    batch: int = 100_000
    distance: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch < 1:
            raise OptionError(f"size and batch are at least 1; got {self.size} and {self.batch}.")
        if not 0 < self.lr < 1:
            raise OptionError(f"lr is between 0 and 1, else the steepest direction diverges; got {self.lr}.")

    @property
    def curvature(self) -> Array:
        """The diagonal of H, (n,)."""
        return 1 / np.arange(1, self.size + 1, dtype=np.float64)

    def goal(self, seed: int) -> Array:
        """w*, a random direction of length 1, (n,)."""
        drawn = np.random.default_rng([seed, 0]).standard_normal(self.size)
        return drawn / np.linalg.norm(drawn)

    def risk(self, weights: Array, goal: Array) -> Array:
        """1/2 (w - w*)^T H (w - w*) for weights (..., n)."""
        return 0.5 * ((weights - goal) ** 2) @ self.curvature


def full_ensemble_risk(problem: Quadratic, members: int) -> float:
    """The exact steady-state risk of the mean of K independent models, 1/2 Tr(H C).

    vec C = lr^2 / (K B) (I - (I - lr H) x (I - lr H))^-1 vec(H Sigma H), which is diagonal because H is.

    >>> round(full_ensemble_risk(Quadratic(lr=0.1, batch=1), 1), 6)
    0.131807
    """
    curvature = problem.curvature
    noise = curvature  # H Sigma H with Sigma = H^-1
    kept = (1 - problem.lr * curvature) ** 2  # of the variance in a step
    covariance = _noise_scale(problem, members) * noise / (1 - kept)
    return float(0.5 * curvature @ covariance)


def late_phase_risk(problem: Quadratic, members: int, goal: Array) -> float:
    """The steady-state risk of late-phase members near w* for small noise and phi around 1.

    There e, the mean of the members less w*, follows e' = (I - lr P H) e - lr P H mean(eps) with
    P = I + w* w*^T, so its covariance solves C = A C A^T + lr^2 / (K B) P H Sigma H P.
    """
    solve_discrete_lyapunov = load("scipy.linalg").solve_discrete_lyapunov

    curvature = problem.curvature
    identity = np.eye(problem.size)
    projection = identity + np.outer(goal, goal)  # P
    mix = projection * curvature  # P H
    noise = _noise_scale(problem, members) * projection @ mix.T  # P H Sigma H P, because H Sigma = I
    step = identity - problem.lr * mix
    covariance = solve_discrete_lyapunov(step, noise)
    return float(0.5 * curvature @ covariance.diagonal())


def _noise_scale(problem: Quadratic, members: int) -> float:
    """lr^2 / (K B): what the mean of K members receives of the gradient's noise in a step."""
    return problem.lr**2 / (members * problem.batch)


def simulate(
    problem: Quadratic,
    members: int,
    kind: MemberWeights = "late-phase",
    *,
    steps: int = 30_000,
    last: int = 10_000,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> Array:
    """Train and return the risk of the members' mean, averaged over the last steps, for each seed, (S,).

    Args:
        problem: what to train on.
        members: K.
        kind: "late-phase" for w_k = theta phi_k, "full" for K vectors of their own.
        steps: iterations; in each, every member draws noise of its own and gamma is 1/K.
        last: over how many of them, at the end, the risk is averaged.
        seeds: of w*, of the start and of the noise.
    """
    if kind not in _STATES:
        raise OptionError(f"kind is 'late-phase' or 'full'; got {kind!r}.")
    if not 0 < last <= steps:
        raise OptionError(f"last is between 1 and steps={steps}; got {last}.")
    goals = np.stack([problem.goal(seed) for seed in seeds])
    generators = [np.random.default_rng([seed, 1]) for seed in seeds]
    starts = _draw(generators, (problem.size,))
    starts *= problem.distance / np.linalg.norm(starts, axis=1, keepdims=True)
    state = _STATES[kind](problem, goals, starts, members)
    deviation = 1 / np.sqrt(problem.curvature * problem.batch)
    total = np.zeros(len(goals))
    for step in range(steps):
        noise = _draw(generators, (members, problem.size)) * deviation
        state.step(noise)
        if step >= steps - last:
            total += problem.risk(state.mean(), goals)
    return total / last


def _draw(generators: Sequence[np.random.Generator], shape: tuple[int, ...]) -> Array:
    """Normal numbers (S, ...), each seed's from its own generator, so that seeds do not depend on each other."""
    return np.stack([generator.standard_normal(shape) for generator in generators])


class _Full:
    """K full vectors for each seed, (S, K, n)."""

    def __init__(self, problem: Quadratic, goals: Array, starts: Array, members: int) -> None:
        self.goals = goals[:, None]
        self.rate = problem.lr * problem.curvature
        self.weights = np.repeat((goals + starts)[:, None], members, axis=1)

    def step(self, noise: Array) -> None:
        noise += self.weights
        noise -= self.goals
        noise *= self.rate  # in the noise's own memory, because steps are many
        self.weights -= noise

    def mean(self) -> Array:
        return self.weights.mean(1)


class _LatePhase:
    """theta (S, n) and phi (S, K) for each seed."""

    def __init__(self, problem: Quadratic, goals: Array, starts: Array, members: int) -> None:
        self.goals = goals[:, None]
        self.rate = problem.lr * problem.curvature
        weights = goals + starts
        root = np.sqrt(np.linalg.norm(weights, axis=1, keepdims=True))
        self.theta = weights / root
        self.phi = np.repeat(root, members, axis=1)

    def step(self, noise: Array) -> None:
        noise += self.theta[:, None] * self.phi[..., None]
        noise -= self.goals
        noise *= self.rate  # lr H (w_k - w* + eps_k), (S, K, n)
        members = self.phi.shape[1]
        theta_step = np.matmul(self.phi[:, None], noise)[:, 0] / members
        phi_step = np.matmul(noise, self.theta[..., None])[..., 0]
        self.theta = self.theta - theta_step
        self.phi -= phi_step

    def mean(self) -> Array:
        return self.theta * self.phi.mean(1, keepdims=True)


_STATES: dict[str, type[_Full] | type[_LatePhase]] = {"late-phase": _LatePhase, "full": _Full}
