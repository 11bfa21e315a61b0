"""Margin certificates: never beyond the explicit worst case, never weaker than the mean certificate."""

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import norm

from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates.confidence import Bound
from fedproof.certificates.margin import levels, margin_sizes_by_betting, margin_sizes_by_levels, stages
from fedproof.certificates.tight import class_bounds, mean_sizes

METHODS = [margin_sizes_by_betting, margin_sizes_by_levels]
STEP = 0.25  # shift of the Gaussian pair per poisoned unit
POINTS = norm.ppf((np.arange(200_000) + 0.5) / 200_000)  # a fine quadrature of N(0, 1)


def curve(size):
    return GaussianTradeoff(shift=STEP * size)


def confidences(z, centre):
    """Three classes; class 0 falls with z, so that poisoning (z grows) hurts it as much as possible."""
    top = expit(2 * (centre - z))
    return np.stack([top, 0.8 * (1 - top), 0.2 * (1 - top)], axis=-1)


def true_size(centre):
    """Largest size at which the poisoned mean still prefers class 0 to class 1."""
    sizes = np.arange(60)
    means = np.array([confidences(POINTS + STEP * size, centre).mean(axis=0) for size in sizes])
    return int(np.argmax(means[:, 0] <= means[:, 1]) - 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("centre", [0.7, 1.5, 2.5])
def test_coverage_against_the_worst_poisoned_distribution(method, centre):
    # 2,000 inputs are 2,000 experiments; a size above the true one is a false claim.
    failure_probability = 0.05
    z = np.random.default_rng(5).standard_normal((200, 2000))
    found = method(confidences(z, centre), curve, failure_probability=failure_probability, max_size=60)
    limit = failure_probability + 3 * np.sqrt(failure_probability * (1 - failure_probability) / 2000)
    assert np.mean(found.sizes > true_size(centre)) <= limit


def test_copied_replicas_would_be_caught():
    # forty copies of five models are not two hundred independent ones: the limit must be exceeded
    z = np.repeat(np.random.default_rng(5).standard_normal((5, 2000)), 40, axis=0)
    np.random.default_rng(6).shuffle(z)
    found = margin_sizes_by_betting(confidences(z, 1.5), curve, failure_probability=0.05, max_size=60)
    assert np.mean(found.sizes > true_size(1.5)) > 0.065


@pytest.mark.parametrize("method", METHODS)
def test_many_replicas_reach_the_truth(method):
    z = np.random.default_rng(6).standard_normal((20_000, 8))
    found = method(confidences(z, 1.5), curve, failure_probability=0.01, max_size=60)
    assert np.all(found.sizes <= true_size(1.5))
    assert np.all(found.sizes >= true_size(1.5) - 1)


@pytest.mark.parametrize("strength", [[60, 1, 1], [8, 1, 1], [4, 2, 2]])
def test_betting_on_margins_beats_betting_on_means(strength):
    scores = np.random.default_rng(8).dirichlet(strength, size=(500, 40))
    bounds = class_bounds(scores, Bound.BETTING, 0.01 / 6)
    means = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, 60)
    margins = margin_sizes_by_betting(scores, curve, failure_probability=0.01, max_size=60).sizes
    assert margins.mean() >= means.mean()


def test_exact_integral_is_never_weaker_than_the_mean():
    # theory.md section 3: Choquet integral, Jensen; checked on empirical distributions
    generator = np.random.default_rng(9)
    for size in (1, 3, 6):
        scores = generator.dirichlet([6, 2, 1], size=400)
        margin = np.sort(scores[:, 0] - scores[:, 1])
        survival = 1 - np.arange(400) / 400  # Pr[g >= sorted value]
        gaps = np.diff(np.concatenate([[-1.0], margin]))
        integral = -1 + float(gaps @ curve(size).lower(survival))
        low = curve(size).lower(scores[:, 0].mean())
        high = curve(size).upper(scores[:, 1].mean())
        assert integral >= low - high - 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_undecided_inputs_get_no_size(method):
    scores = np.random.default_rng(10).dirichlet([1, 1, 1], size=(300, 50))
    assert np.mean(method(scores, curve, failure_probability=0.01, max_size=9).sizes == -1) > 0.9


@pytest.mark.parametrize("num", [1, 2, 48, 96])
def test_levels_span_the_margins(num):
    grid = levels(num)
    assert grid[0] == -1
    assert grid[-1] == 1
    assert np.all(np.diff(grid) > 0)
    assert np.array_equal(grid * 4096, np.round(grid * 4096))


def test_perfect_replicas_are_certified_as_far_as_their_number_allows():
    # every margin is 1: 15/16 of the replicas prove Pr[g = 1] >= p, with p near ψ^(1/n)
    scores = np.zeros((800, 1, 2))
    scores[..., 0] = 1.0
    found = margin_sizes_by_betting(scores, curve, failure_probability=0.01, max_size=60).sizes[0]
    limit = 0.01 ** (1 / 750)
    best = int(np.argmax(ndtr(norm.ppf(limit) - STEP * np.arange(60)) <= 0.5) - 1)
    assert best - 1 <= found <= best


@pytest.mark.parametrize("num", [2, 3, 15, 16, 100, 1000, 12345])
def test_stages_use_every_replica_once(num):
    cuts = stages(num)
    assert cuts[0] >= 1
    assert cuts[-1] == num
    assert cuts == sorted(set(cuts))
