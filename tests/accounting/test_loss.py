"""Composition of privacy losses, and ε read from them, to the last digit."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft

from fedproof.accounting.epsilon import pld_epsilon
from fedproof.accounting.loss import ROUNDING, LossDistribution, self_convolve
from fedproof.accounting.tradeoff import composed_losses, dominating_pair, grid_step
from fedproof.mechanisms import Everyone, FixedSize, Poisson, Query, UserFedAvg
from fedproof.threat import Relation


@pytest.mark.parametrize(("size", "count"), [(3, 2), (50, 7), (769, 100), (4885, 1000)])
def test_sums_of_losses_are_those_of_dp_accounting(size, count):
    masses = np.random.default_rng(0).random(size) ** 4
    masses /= masses.sum()
    first, expected = common.self_convolve(masses, count, 1e-15)
    low, found, _ = self_convolve(masses, count)
    # The range may differ by one where a bound is rounded; the mass there is below the tail.
    assert abs(low - first) <= 1
    assert abs(low + len(found) - first - len(expected)) <= 1
    both = slice(max(low, first), min(low + len(found), first + len(expected)))
    np.testing.assert_allclose(
        found[both.start - low : both.stop - low],
        np.asarray(expected)[both.start - first : both.stop - first],
        atol=1e-15,
    )
    assert found.sum() == pytest.approx(1, abs=1e-12)


def release(noise, probability, size=1, relation=Relation.JOIN):
    query = Query(noise_multiplier=noise, sampling=Poisson(probability=probability), count=1)
    pair = dominating_pair(query, relation, size)
    return pair.discretise(grid_step([pair], 40.0)).forward


# --- rounding ----------------------------------------------------------------------------------------------


def exact_power(masses, count):
    """The law of the sum in extended precision, cyclic on enough cells."""
    low, found, _ = self_convolve(masses, count)
    size = fft.next_fast_len(max(len(found), len(masses)))
    square = fft.fft(masses.astype(np.longdouble), size)
    power = np.ones(size, dtype=square.dtype)
    while count:
        power = power * square if count & 1 else power
        square, count = square * square, count >> 1
    return np.roll(np.real(fft.ifft(power)), -low)[: len(found)]


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision here")
@pytest.mark.parametrize(
    ("noise", "probability", "size", "count"),
    [(1.8, 0.1, 1, 3), (1.8, 0.1, 1, 3000), (7.0, 0.0016, 100, 2000), (20.0, 0.01, 1, 100_000)],
)
def test_what_the_transform_rounds_is_given_away(noise, probability, size, count):
    masses = release(noise, probability, size).masses
    _, found, rounding = self_convolve(masses, count)
    errors = found - exact_power(masses, count)
    assert float(np.abs(errors).sum()) < rounding
    assert rounding < 1e-14 * count + 1e-12
    if count == 100_000:  # a fixed allowance would not do
        assert float(np.abs(np.cumsum(errors)).max()) > ROUNDING


@pytest.mark.parametrize("count", [2, 5])
def test_one_after_another_is_repetition(count):
    one = release(1.5, 0.2)
    together = one
    for _ in range(count - 1):
        together = together.then(one)
    repeated = one.repeat(count)
    for epsilon in (0.0, 0.1, 0.5, 2.0):
        assert together.delta(epsilon) == pytest.approx(repeated.delta(epsilon), abs=1e-12)


def test_no_mass_is_lost_or_negative():
    one, other = release(1.5, 0.2), release(0.7, 0.4, size=3)
    other = LossDistribution(step=one.step, first=other.first, masses=other.masses, infinite=other.infinite)
    for law in (one, one.repeat(7), one.then(other), one.repeat(50).then(other.repeat(3))):
        assert np.all(law.masses >= 0)
        assert 1 <= law.masses.sum() + law.infinite <= 1 + 1e-11


def test_what_is_always_told_apart_stays_so():
    law = LossDistribution(step=0.1, first=-1, masses=np.array([0.1, 0.1]), infinite=0.8)
    assert law.repeat(200).delta(1.0) == 1
    assert law.repeat(200).epsilon(0.5) == math.inf


# --- ε at every δ ------------------------------------------------------------------------------------------


def losses_of(sampling, noise, count, size, relation):
    query = Query(noise_multiplier=noise, sampling=sampling, count=count)
    return composed_losses((query,), relation, size)


LAWS = [
    law
    for question in [
        (Poisson(probability=0.1), 1.8, 3, 1, Relation.JOIN),
        (Poisson(probability=0.3), 1.0, 1, 1, Relation.JOIN),
        (Poisson(probability=0.02), 3.0, 100, 1, Relation.JOIN),
        (Poisson(probability=0.9), 0.4, 1, 4, Relation.REPLACE),
        (Poisson(probability=1e-3), 0.6, 500, 1, Relation.JOIN),
        (FixedSize(cohort=5, users=100), 2.0, 10, 3, Relation.REPLACE),
        (Everyone(), 2.0, 4, 1, Relation.JOIN),
        (Poisson(probability=0.5), 3.0, 2000, 1, Relation.JOIN),
    ]
    for law in losses_of(*question)
]


def check_crossing(law, delta):
    epsilon = law.epsilon(delta)
    losses, deltas = law.profile()
    if math.isinf(epsilon):
        assert law.infinite + ROUNDING > delta - 1e-11
        return
    assert law.delta(epsilon) <= delta
    if epsilon > 0:
        assert law.delta(epsilon * (1 - 1e-9) - 1e-12) > delta - 1e-12  # and no smaller one would do
    enough = np.flatnonzero(deltas <= delta)
    if enough.size:
        assert epsilon <= losses[enough[0]]


@pytest.mark.parametrize("law", LAWS, ids=range(len(LAWS)))
def test_epsilon_at_thousands_of_deltas(law):
    generator = np.random.default_rng(0)
    for delta in 10 ** generator.uniform(-11.5, 0, 300):
        check_crossing(law, float(delta))
    _, deltas = law.profile()
    for delta in deltas[:: max(1, len(deltas) // 40)]:  # next to the grid, where rounding decides
        for moved in range(-8, 9):
            near = float(delta) * (1 + moved * 2.0**-53)
            if 0 < near < 1:
                check_crossing(law, near)


def test_the_crossing_that_was_skipped():
    # Each of two cells saw its crossing of such a δ just outside of itself, and a smaller one was taken.
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    assert pld_epsilon(mechanism, 0.0027245866643446953) == pytest.approx(0.2160, abs=1e-4)
    losses = composed_losses(mechanism.queries, Relation.JOIN, 1)
    for delta in losses[0].profile()[1][1:200]:
        for moved in range(-20, 21):
            near = float(delta) * (1 + moved * 2.0**-53)
            epsilon = max(law.epsilon(near) for law in losses)
            assert max(law.delta(epsilon) for law in losses) <= near


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    masses=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda masses: sum(masses) > 0.1),
    first=st.integers(-15, 15),
    step=st.floats(1e-9, 3),
    infinite=st.floats(0, 0.2),
    log_delta=st.floats(-10, 0),
)
def test_any_law_is_inverted(masses, first, step, infinite, log_delta):
    values = np.array(masses) / sum(masses) * (1 - infinite)
    law = LossDistribution(step=step, first=first, masses=values, infinite=infinite)
    check_crossing(law, 10**log_delta)
    losses = (first + np.arange(len(values))) * step
    epsilons = np.concatenate(([0.0, 0.37 * step], np.abs(losses), np.abs(losses) + step / 3))
    found = [law.delta(float(epsilon)) for epsilon in np.sort(epsilons)]
    assert np.all(np.diff(found) <= 0)
    for epsilon, delta in zip(np.sort(epsilons), found, strict=True):
        exact = infinite + math.fsum(
            mass * -math.expm1(epsilon - loss)
            for mass, loss in zip(values, losses, strict=True)
            if loss > epsilon
        )
        assert min(1.0, exact) <= delta <= exact + 2e-12
