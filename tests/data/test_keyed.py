"""Keyed random numbers against splitmix64 in Python's integers, and against their distributions."""

import pytest
import torch
from scipy import stats

from covey.data import keyed

MASK = (1 << 64) - 1


def splitmix(x):
    """The published algorithm on unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_the_mixing_function_is_splitmix64():
    # The first outputs of the reference generator seeded with 1234567, as its authors' code prints them.
    state = torch.tensor([1234567])
    got = []
    for _ in range(3):
        got.append(int(keyed._mix(state)) & MASK)
        state = state + keyed._GOLDEN
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_bits_are_the_chain_over_the_keys():
    samples = torch.tensor([0, 5, 2**40])
    got = keyed.bits(samples, (7, -3, torch.tensor([1, 2, 3])), 2)
    for row, (sample, last) in enumerate(zip([0, 5, 2**40], [1, 2, 3], strict=True)):
        state = 0
        for key in (7, -3 & MASK, last, sample):
            state = splitmix(state ^ key)
        for column in range(2):
            expected = splitmix((state + column * 0x9E3779B97F4A7C15) & MASK)
            assert int(got[row, column]) & MASK == expected


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda n: keyed.uniform(n, (1,)), stats.uniform()),
        (lambda n: keyed.normal(n, (1,)), stats.norm()),
        (lambda n: keyed.beta(n, (1,), 0.2), stats.beta(0.2, 0.2)),
        (lambda n: keyed.beta(n, (1,), 1.0), stats.uniform()),
    ],
)
def test_distributions(draw, distribution):
    numbers = draw(torch.arange(20_000))[:, 0].numpy()
    assert stats.kstest(numbers, distribution.cdf).pvalue > 0.01


def test_keys_give_unrelated_numbers():
    n = torch.arange(20_000)
    first = keyed.uniform(n, (0, 0, 1), 2)
    for other in (
        keyed.uniform(n, (1, 0, 1), 2),
        keyed.uniform(n, (0, 1, 1), 2),
        keyed.uniform(n, (0, 0, 2), 2),
    ):
        both = torch.stack([first.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(first.T)[0, 1])) < 0.03


def test_permutation_is_one_and_depends_on_the_keys():
    first, again, other = (keyed.permutation(1000, (seed,)) for seed in (0, 0, 1))
    assert first.sort().values.tolist() == list(range(1000))
    assert torch.equal(first, again)
    assert (first == other).sum() < 20
