"""Bounds on the attacker's cost: closed forms, explicit worst cases, coverage, bad input."""

from functools import cache

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from fedproof.certificates import ApproximateDP, CostMethod, dumps, inefficacy, loads_inefficacy
from fedproof.certificates.paper_theorems import inefficacy_bounds
from fedproof.mechanisms import Everyone, FixedSize, NoisyPartition, OneRound, UserFedAvg
from fedproof.mechanisms.uploads import Ball
from tests.certificates.conftest import REPLACE

NOISY = NoisyPartition(groups=2, noise_multiplier=1.0)
RELEASED = OneRound(upload=Ball(features=2, classes=2), noise_multiplier=1.0)

POINTS = norm.ppf((np.arange(100_000) + 0.5) / 100_000)
SIGMA = 16.0
MECHANISM = UserFedAvg(rounds=1, noise_multiplier=SIGMA, sampling=Everyone())  # shift 2k/σ
SIZES = range(0, 13, 3)


def cost(z):
    """A cost in [0, 1/2] that falls with z: poisoning lowers it as much as the curve allows."""
    return 0.5 * expit(2 * (1 - z))


@cache
def poisoned(size, sign=1):
    return float(cost(POINTS + sign * 2 * size / SIGMA).mean())


@pytest.mark.parametrize("method", ["mean", "distribution"])
def test_bounds_hold_against_the_worst_poisoned_distribution(method):
    wrong = 0
    for seed in range(200):
        costs = cost(np.random.default_rng(seed).standard_normal(150))
        found = inefficacy(
            costs,
            cost_bound=0.5,
            mechanism=MECHANISM,
            threat=REPLACE,
            sizes=SIZES,
            method=method,
            failure_probability=0.05,
        )
        low = all(b <= poisoned(k) + 1e-9 for k, b in zip(SIZES, found.lower, strict=True))
        high = all(b >= poisoned(k, -1) - 1e-9 for k, b in zip(SIZES, found.upper, strict=True))
        wrong += not (low and high)
    assert wrong <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_the_distribution_is_nearly_exact_with_many_replicas():
    costs = cost(np.random.default_rng(0).standard_normal(40_000))
    found = inefficacy(
        costs, cost_bound=0.5, mechanism=MECHANISM, threat=REPLACE, sizes=SIZES, method="distribution"
    )
    exact = np.array([poisoned(k) for k in SIZES])
    assert np.all(np.array(found.lower) <= exact)
    assert np.allclose(found.lower, exact, atol=0.015)  # half a level is 0.004
    mean = inefficacy(costs, cost_bound=0.5, mechanism=MECHANISM, threat=REPLACE, sizes=SIZES)
    assert np.all(np.array(found.lower[1:]) > np.array(mean.lower[1:]))


def test_negative_costs_mirror_positive_ones():
    costs = cost(np.random.default_rng(1).standard_normal(100))
    settings = {"cost_bound": 0.5, "mechanism": MECHANISM, "threat": REPLACE, "sizes": SIZES}
    for method in CostMethod:
        positive = inefficacy(costs, method=method, delta=1e-5, **settings)
        negative = inefficacy(-costs, method=method, delta=1e-5, negative=True, **settings)
        assert np.allclose(negative.lower, -np.array(positive.upper))
        assert np.allclose(negative.upper, -np.array(positive.lower))
        assert negative.cost == -positive.cost


def test_the_papers_bounds():
    privacy = ApproximateDP(epsilon=0.63, delta=0.0029, relation="replace")
    found = inefficacy(
        [0.3, 0.5], cost_bound=0.5, privacy=privacy, method="paper", bound="none", sizes=range(4), tau=2
    )
    lower, upper = inefficacy_bounds(0.4, range(4), cost_bound=0.5, epsilon=0.63, delta=0.0029)
    assert np.allclose(found.lower, lower)
    assert np.allclose(found.upper, upper)
    assert found.needed == pytest.approx(np.log(1 + 0.4 / (0.4 + 0.0029 / np.expm1(0.63))) / 0.63)
    assert found.unmet[0].code == "no-confidence"


@pytest.mark.parametrize("method", ["mean", "distribution"])
def test_needed_adversaries_are_the_first_size_that_may_suffice(method):
    costs = cost(np.random.default_rng(2).standard_normal(2000))
    found = inefficacy(
        costs, cost_bound=0.5, mechanism=MECHANISM, threat=REPLACE, sizes=range(60), method=method, tau=2
    )
    truth = next(k for k in range(60) if poisoned(k) <= poisoned(0) / 2)
    assert 0 < found.needed <= truth
    tripled = inefficacy(
        -costs / 6, cost_bound=0.5, mechanism=MECHANISM, threat=REPLACE, method=method, tau=3, negative=True
    )
    assert tripled.needed > 0


@pytest.mark.parametrize("negative", [False, True])
def test_what_is_reached_without_anybody_takes_no_unit(negative):
    # τ = 1 asks for the cost as it is; L_0(J) is J, but for the last digit
    nothing = ApproximateDP(epsilon=0.0, delta=0.0, relation="replace")
    for seed in range(40):
        costs = np.random.default_rng(seed).uniform(0.2, 0.9, 60) * (-1 if negative else 1)
        assert inefficacy(costs, cost_bound=1.0, privacy=nothing, tau=1.0, negative=negative).needed == 0


def test_a_goal_out_of_reach_is_none():
    found = inefficacy(
        [0.5, 0.5],
        cost_bound=0.5,
        privacy=ApproximateDP(epsilon=0.1, delta=0.0, relation="replace"),
        bound="none",
        tau=1e9,
        max_size=20,
    )
    assert found.needed is None


@pytest.mark.parametrize("negative", [False, True])
def test_no_number_of_units_moves_a_cost_on_which_they_have_no_influence(negative):
    nothing = ApproximateDP(epsilon=0.0, delta=0.0, relation="replace")
    costs = np.linspace(0.1, 0.4, 50) * (-1 if negative else 1)
    found = inefficacy(costs, cost_bound=1.0, privacy=nothing, method="paper", tau=2.0, negative=negative)
    assert found.needed is None
    assert loads_inefficacy(dumps(found)) == found


def test_clipped_costs_are_reported():
    privacy = ApproximateDP(epsilon=0.1, delta=0.0, relation="replace")
    found = inefficacy([0.2, 0.7, -0.1, 0.3], cost_bound=0.5, privacy=privacy, bound="none")
    assert found.clipped_share == 0.5
    assert found.cost == pytest.approx((0.2 + 0.5 + 0 + 0.3) / 4)


def test_reasons_of_the_papers_accounting():
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=FixedSize(cohort=20, users=200))
    found = inefficacy([0.2, 0.3], cost_bound=0.5, mechanism=mechanism, method="paper", delta=0.0029)
    assert not found.sound
    assert {"fixed-size", "relation"} <= {one.code for one in found.unmet}
    assert inefficacy([0.2, 0.3], cost_bound=0.5, mechanism=mechanism).sound


@pytest.mark.parametrize(
    ("costs", "settings", "message"),
    [
        ([0.1], {}, "two or more replicas"),
        ([[0.1, 0.2]], {}, "shape"),
        ([0.1, np.nan], {}, "replica 1 is not a finite number"),
        (["a", "b"], {}, "must be numbers"),
        ([0.1, 0.2], {"cost_bound": 0.0}, "cost_bound"),
        ([0.1, 0.2], {"tau": 0.5}, "tau"),
        ([0.1, 0.2], {"sizes": [-1]}, "sizes"),
        ([0.1, 0.2], {"method": "median"}, "median"),
        ([0.1, 0.2], {"bound": "levels"}, "levels"),
        ([0.1, 0.2], {"bound": "clopper-pearson"}, "clopper-pearson"),
        ([0.1, 0.2], {"privacy": None}, "privacy"),
        ([0.1, 0.2], {"privacy": None, "mechanism": NOISY}, "noisy-partition' has no replicas"),
        ([0.1, 0.2], {"privacy": None, "mechanism": RELEASED}, "one-round' has no replicas"),
    ],
)
def test_bad_input(costs, settings, message):
    known = {"cost_bound": 0.5, "privacy": ApproximateDP(epsilon=0.1, delta=0.0, relation="replace")}
    with pytest.raises(ValueError, match=message):
        inefficacy(costs, **(known | settings))
