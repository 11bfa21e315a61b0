"""Coverage and width of every bound; a wrong bound must be caught by the same test."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedproof.certificates import certify
from fedproof.certificates.confidence import (
    Bound,
    Spending,
    betting_lower,
    betting_rejects,
    binomial_lower,
    hoeffding_width,
    log_capital,
    mean_lower,
    mean_upper,
    share,
)
from fedproof.mechanisms import Bagging, FixedSize

EXPERIMENTS = 2000
FAILURE_PROBABILITY = 0.05
# "at most ψ plus three standard errors": a bound that fails with exactly ψ trips it with a false-alarm rate
# of 1.6e-3; the seeds are fixed.
MOST_FAILURES = FAILURE_PROBABILITY + 3 * np.sqrt(
    FAILURE_PROBABILITY * (1 - FAILURE_PROBABILITY) / EXPERIMENTS
)

MEANS = [Bound.HOEFFDING, Bound.EMPIRICAL_BERNSTEIN, Bound.BETTING]


def beta_scores(mean, deviation, shape, seed):
    """Beta-distributed scores of given mean and standard deviation."""
    total = mean * (1 - mean) / deviation**2 - 1
    return np.random.default_rng(seed).beta(mean * total, (1 - mean) * total, size=shape)


def draw(kind, num_replicas, seed):
    if kind == "votes":
        generator = np.random.default_rng(seed)
        return (generator.random((num_replicas, EXPERIMENTS)) < 0.97).astype(float)
    mean, deviation = {"narrow": (0.97, 0.05), "wide": (0.6, 0.4)}[kind]
    return beta_scores(mean, deviation, (num_replicas, EXPERIMENTS), seed)


TRUTH = {"votes": 0.97, "narrow": 0.97, "wide": 0.6}


def failures(kind, bound, num_replicas):
    values = draw(kind, num_replicas, seed=1)
    low = mean_lower(values, bound, FAILURE_PROBABILITY)
    high = mean_upper(values, bound, FAILURE_PROBABILITY)
    return np.mean(low > TRUTH[kind]), np.mean(high < TRUTH[kind])


@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("bound", MEANS)
def test_coverage(kind, bound):
    assert max(failures(kind, bound, 150)) <= MOST_FAILURES


def test_coverage_of_clopper_pearson():
    assert max(failures("votes", Bound.CLOPPER_PEARSON, 150)) <= MOST_FAILURES


def test_the_coverage_test_catches_a_bound_that_is_too_narrow():
    values = draw("wide", 150, seed=1)
    narrow = values.mean(axis=0) - 0.3 * hoeffding_width(150, FAILURE_PROBABILITY)
    assert np.mean(narrow > 0.6) > MOST_FAILURES


@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("bound", MEANS)
def test_coverage_with_a_thousand_replicas(kind, bound):
    assert max(failures(kind, bound, 1000)) <= MOST_FAILURES


def test_betting_is_narrow_on_confident_scores():
    # mean 0.97, sd 0.05, O = 1000, ψ = 0.01: within 0.012 where Hoeffding is 0.048 away
    scores = beta_scores(0.97, 0.05, (1000, 50), seed=3)
    assert np.all(scores.mean(axis=0) - betting_lower(scores, 0.01) < 0.012)
    assert np.all(mean_upper(scores, Bound.BETTING, 0.01) - scores.mean(axis=0) < 0.012)
    assert hoeffding_width(1000, 0.01) == pytest.approx(0.048, abs=5e-4)


def test_a_test_at_one_mean_agrees_with_the_root():
    scores = beta_scores(0.8, 0.2, (300, 20), seed=4)
    root = betting_lower(scores, 0.01)
    assert betting_rejects(scores, root - 1e-6, 0.01).all()
    assert not betting_rejects(scores, root + 1e-6, 0.01).any()


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 200))
def test_the_order_of_the_replicas_does_not_matter(seed, num_replicas):
    generator = np.random.default_rng(seed)
    scores = generator.beta(4, 1, size=(num_replicas, 3))
    shuffled = generator.permuted(scores, axis=0)
    assert np.array_equal(betting_lower(scores, 0.01), betting_lower(shuffled, 0.01))
    assert np.array_equal(betting_lower(scores, 0.01), betting_lower(np.sort(scores, axis=0), 0.01))


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_capital_decreases_in_the_mean(first, second, seed):
    scores = np.random.default_rng(seed).random((40, 1))
    low, high = (log_capital(scores, np.array([m])) for m in sorted((first, second)))
    assert low >= high - 1e-9


@settings(derandomize=True, deadline=None)
@given(st.sampled_from([*MEANS, Bound.NONE]), st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_bounds_enclose_the_mean_and_mirror(bound, seed, num_replicas):
    scores = np.random.default_rng(seed).random((num_replicas, 2))
    low, high = mean_lower(scores, bound, 0.01), mean_upper(scores, bound, 0.01)
    assert np.all((low <= scores.mean(axis=0) + 1e-12) & (scores.mean(axis=0) <= high + 1e-12))
    assert np.allclose(high, 1 - mean_lower(1 - scores, bound, 0.01))


@pytest.mark.parametrize("trials", [1, 7, 1000])
def test_clopper_pearson_inverts_the_binomial(trials):
    table = binomial_lower(trials, 0.01)
    successes = np.arange(1, trials + 1)
    assert binom.sf(successes - 1, trials, table[1:]) == pytest.approx(0.01, rel=1e-6)
    assert np.all(binom.sf(successes - 1, trials, table[1:]) <= 0.01)
    assert table[0] == 0
    assert table[-1] == pytest.approx(0.01 ** (1 / trials))  # all successes: ψ^(1/n)


def test_how_the_failure_probability_is_shared():
    # theory.md section 4: ψ/(C + 2), two classes mirror each other; the paper spends ψ on each
    assert share(0.01, 2, Spending.SOUND) == 0.005
    assert share(0.012, 10, Spending.SOUND) == 0.001
    assert share(0.01, 10, Spending.PAPER) == 0.01


@pytest.mark.parametrize("chances", [(1 / 6,) * 6, (0.4, 0.4, 0.05, 0.05, 0.05, 0.05), (0.5, 0.5)])
@pytest.mark.parametrize(
    ("method", "bound"),
    [("vote", "clopper-pearson"), ("vote", "betting"), ("mean", "hoeffding"), ("margin", "levels")],
)
def test_the_choice_of_both_classes_is_covered(method, bound, chances):
    """Classes that truly come first alike: whatever is claimed of one of them is false. ψ is 20 %."""
    votes = np.random.default_rng(2).multinomial(1, chances, size=(60, 600)).astype(float)
    asked = {"mechanism": Bagging(rounds=1, sampling=FixedSize(cohort=1, users=9)), "max_size": 0}
    found = certify(votes, method=method, bound=bound, failure_probability=0.2, **asked)
    assert sum(label is not None for label in found.prediction) <= binom.isf(1e-6, 600, 0.2)
    if method != "margin":
        exact = certify(votes, method=method, bound="none", **asked)
        assert sum(label is not None for label in exact.prediction) > binom.isf(1e-6, 600, 0.2)


def test_bounds_refuse_what_they_cannot_bound():
    with pytest.raises(ValueError, match="votes"):
        mean_lower([[0.5], [0.5]], Bound.CLOPPER_PEARSON, 0.01)
    with pytest.raises(ValueError, match="margin"):
        mean_lower([[0.5], [0.5]], Bound.LEVELS, 0.01)
    with pytest.raises(ValueError, match="failure_probability"):
        mean_lower([[0.5], [0.5]], Bound.HOEFFDING, 0.0)


def test_users_who_see_all_replicas_at_once_break_bounds_and_those_who_remember_do_not():
    # Of every replica, given all the others, the mean is 0.6; yet all fail together, or none does.
    generator, mean, replicas = np.random.default_rng(1), TRUTH["wide"], 150
    right = generator.random((replicas, EXPERIMENTS)).sum(axis=0) % 1 < mean
    together = np.tile(right.astype(float), (replicas, 1))
    # One after another: the law of each depends on what came before, and its mean does not.
    remembered = np.empty((replicas, EXPERIMENTS))
    for replica in range(replicas):
        ahead = remembered[:replica].sum(axis=0) > mean * replica
        remembered[replica] = np.where(ahead, mean, generator.random(EXPERIMENTS) < mean)
    for bound in (Bound.BETTING, Bound.HOEFFDING):
        assert np.mean(mean_lower(together, bound, FAILURE_PROBABILITY) > mean) > 0.5
        assert np.mean(mean_lower(remembered, bound, FAILURE_PROBABILITY) > mean) <= MOST_FAILURES


@pytest.mark.parametrize("failure_probability", [0.005, 1e-15])
def test_clopper_pearson_holds_where_the_inverse_of_the_incomplete_beta_has_lost_digits(failure_probability):
    num, successes = 100_000, 99_001
    rate = binomial_lower(num, failure_probability)[successes]
    assert binom.sf(successes - 1, num, rate) <= failure_probability * (1 + 1e-10)


@pytest.mark.parametrize("failure_probability", [1e-150, 1e-250, 1e-300, 1e-307])
@pytest.mark.parametrize(("num", "successes"), [(100, 63), (100, 100), (1000, 966), (1000, 1000), (5000, 1)])
def test_clopper_pearson_holds_where_chances_leave_the_incomplete_beta(num, successes, failure_probability):
    """It is zero from about 1e-270 on, where the chance was larger than allowed by a factor of 1e33."""
    rate = mpmath.mpf(float(binomial_lower(num, failure_probability)[successes]))
    with mpmath.workdps(30):
        chance = mpmath.fsum(
            mpmath.binomial(num, j) * rate**j * (1 - rate) ** (num - j) for j in range(successes, num + 1)
        )
        assert chance <= mpmath.mpf(failure_probability) * (1 + mpmath.mpf(1e-9))


def test_a_failure_probability_that_no_inverse_knows_bounds_nothing():
    assert np.isfinite(binomial_lower(100, 1e-200)).all()
