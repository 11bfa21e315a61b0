"""The paper's theorems: published readings, references, an exact two-point worst case, properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from mpmath import mp, mpf
from scipy.optimize import brentq

from fedproof.certificates.paper_theorems import (
    Group,
    adversaries_needed,
    certified_size,
    group,
    halvings,
    inefficacy_bounds,
    radius,
    real_size,
    renyi_sizes,
)

settings.register_profile("derandomized", derandomize=True, deadline=None)
settings.load_profile("derandomized")

epsilons = floats(0.001, 3)
deltas = floats(0, 0.05)
tops = floats(0.5, 1)
rivals = floats(0, 0.5)


def test_published_reading_of_mnist():
    # theory.md section 2: MNIST, sigma = 1.8
    assert real_size(0.97, 0.03, epsilon=0.6298, delta=0.0029) == pytest.approx(2.68, abs=0.005)
    assert certified_size(0.97, 0.03, epsilon=0.6298, delta=0.0029) == 2


@pytest.mark.parametrize(
    ("epsilon", "top", "expected"),
    # theory.md section 3, column "paper K": F_B = 1 - F_A; epsilon from the paper's tables
    [(0.6298, 0.80, 1.09), (0.6298, 0.995, 3.80), (0.4187, 0.97, 3.95), (0.2444, 0.97, 6.52)],
)
def test_published_sizes(epsilon, top, expected):
    assert real_size(top, 1 - top, epsilon=epsilon, delta=0.0029) == pytest.approx(expected, abs=0.006)


def test_delta_zero_has_a_closed_form():
    # log(0.9 / 0.1) / (2 * 0.5) = 2.197
    assert certified_size(0.9, 0.1, epsilon=0.5, delta=0.0) == 2


def test_an_integer_size_is_not_certified_itself():
    # K = log(e^4) / (2 * 1) = 2 exactly: only k = 1 is strictly below
    rival = 0.9 * math.exp(-4)
    assert certified_size(0.9, rival, epsilon=1.0, delta=0.0) == 1


def test_epsilon_zero_is_the_limit():
    assert real_size(0.9, 0.1, epsilon=0.0, delta=0.01) == pytest.approx(40.0)
    assert real_size(0.9, 0.1, epsilon=1e-9, delta=0.01) == pytest.approx(40.0, rel=1e-6)
    assert real_size(0.9, 0.1, epsilon=0.0, delta=0.0) == math.inf
    assert adversaries_needed(0.4, 2, cost_bound=0.5, epsilon=0.0, delta=0.1) == pytest.approx(4.0)


def test_huge_epsilon_does_not_overflow():
    assert real_size(0.9, 0.1, epsilon=1e4, delta=0.01) == pytest.approx(math.log(9) / 2e4)


def test_a_quotient_that_rounds_to_zero_is_not_a_delta_of_zero():
    # δ / (e^ε - 1) is zero as a float; K is (800 + log(0.9 / 0.1)) / 1600 and log(0.9 (e^5 - 1) / δ) / 10
    assert 0.4 < real_size(0.9, 0.0, epsilon=800.0, delta=0.1) < 0.501
    assert 60 < real_size(0.9, 0.0, epsilon=5.0, delta=5e-324) < 74.9
    assert real_size(0.9, 0.0, epsilon=5.0, delta=0.0) == math.inf


@given(top=tops, rival=rivals, epsilon=epsilons, delta=deltas)
def test_agrees_with_fifty_digits(top, rival, epsilon, delta):
    mp.dps = 50
    if top <= rival or rival + delta == 0:
        return
    scale = mp.expm1(mpf(epsilon))
    exact = mp.log((mpf(top) * scale + mpf(delta)) / (mpf(rival) * scale + mpf(delta))) / (2 * mpf(epsilon))
    real = real_size(top, rival, epsilon=epsilon, delta=delta)
    assert real == pytest.approx(float(exact), rel=1e-12) or (rival + delta < 1e-299 and real < exact)
    size = certified_size(top, rival, epsilon=epsilon, delta=delta)
    assert size < exact or size == 0


@given(top=tops, rival=rivals, epsilon=epsilons, delta=deltas)
def test_the_two_theorems_agree_on_one_adversary(top, rival, epsilon, delta):
    size = real_size(top, rival, epsilon=epsilon, delta=delta)
    if abs(size - 1) > 1e-6:
        one = top > np.exp(2 * epsilon) * rival + (1 + np.exp(epsilon)) * delta  # the paper, Theorem 1
        assert one == (size > 1)


@given(top=tops, rival=rivals, epsilon=epsilons, delta=deltas)
def test_halving_epsilon_never_shrinks_the_certificate(top, rival, epsilon, delta):
    loose, tight = (certified_size(top, rival, epsilon=e, delta=delta) for e in (epsilon, epsilon / 2))
    assert tight >= loose


@given(epsilon=epsilons, delta=deltas, size=integers(0, 20))
def test_group_privacy_composes_one_unit_at_a_time(epsilon, delta, size):
    # (kε, δ_k) after one more unit: δ_{k+1} = δ + e^ε δ_k
    _, before = group(epsilon, delta, size)
    total, after = group(epsilon, delta, size + 1)
    assert total == pytest.approx((size + 1) * epsilon)
    assert after == pytest.approx(delta + math.exp(epsilon) * before, rel=1e-9)


@given(cost=floats(0, 0.5), size=integers(0, 30), epsilon=epsilons, delta=deltas)
def test_cost_bounds_enclose_the_cost_and_mirror(cost, size, epsilon, delta):
    known = {"cost_bound": 0.5, "epsilon": epsilon, "delta": delta}
    lower, upper = inefficacy_bounds(cost, size, **known)
    assert 0 <= lower <= cost * (1 + 1e-12) + 1e-15
    assert cost * (1 - 1e-12) <= upper <= 0.5
    mirrored = inefficacy_bounds(-cost, size, negative=True, **known)
    assert (mirrored[0], mirrored[1]) == (-upper, -lower)


@given(cost=floats(0.01, 0.5), tau=floats(1, 20), epsilon=epsilons, delta=floats(1e-6, 0.01))
def test_needed_adversaries_just_reach_the_goal(cost, tau, epsilon, delta):
    known = {"cost_bound": 0.5, "epsilon": epsilon, "delta": delta}
    needed = adversaries_needed(cost, tau, **known)
    lower, _ = inefficacy_bounds(cost, needed, **known)
    assert lower == pytest.approx(cost / tau, rel=1e-6, abs=1e-9)
    negative = adversaries_needed(-cost, tau, negative=True, **known)
    low, _ = inefficacy_bounds(-cost, negative, negative=True, **known)
    assert low == pytest.approx(max(-cost * tau, -0.5), rel=1e-6)


def test_arrays_go_in_and_come_out():
    sizes = certified_size(np.array([0.9, 0.97, 0.5]), np.array([0.1, 0.03, 0.5]), epsilon=0.5, delta=0.0)
    assert sizes.tolist() == [2.0, 3.0, 0.0]


@pytest.mark.parametrize("bad", [{"epsilon": -1.0}, {"delta": 1.0}, {"epsilon": math.nan}])
def test_bad_privacy_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        real_size(0.9, 0.1, **({"epsilon": 0.5, "delta": 0.01} | bad))


def test_costs_beyond_their_bound_are_refused():
    with pytest.raises(ValueError, match=r"must lie in \[0, 0\.5\]"):
        inefficacy_bounds(0.6, 1, cost_bound=0.5, epsilon=1.0, delta=0.0)
    with pytest.raises(ValueError, match="tau"):
        adversaries_needed(0.4, 0.5, cost_bound=0.5, epsilon=1.0, delta=0.0)


# --- from the Rényi curve -----------------------------------------------------------------------------------


def gaussian(noise_multiplier):
    """RDP of the Gaussian mechanism: α / 2σ² (Mironov 2017, Corollary 3)."""
    return lambda orders: orders / (2 * noise_multiplier**2)


def divergence(first, second, order):
    """Rényi divergence of two Bernoulli laws."""
    terms = first**order * second ** (1 - order) + (1 - first) ** order * (1 - second) ** (1 - order)
    return np.log(terms) / (order - 1)


@settings(derandomize=True, deadline=None)
@given(top=floats(0.51, 0.99), order=floats(1.1, 60))
def test_two_classes_flip_exactly_at_the_radius(top, order):
    # with p_b = 1 - p_a the poisoned vote is even at Bernoulli(1/2): the bound is met with equality
    assert radius(top, 1 - top, order) == pytest.approx(divergence(0.5, top, order), rel=1e-9)


def test_no_smaller_divergence_flips_a_two_class_vote():
    for order in (1.5, 4.0, 20.0):
        limit = float(radius(0.9, 0.1, order)) * 0.999
        worst = brentq(lambda q, a=order, r=limit: divergence(q, 0.9, a) - r, 1e-9, 0.9)
        assert worst > 0.5


@settings(derandomize=True, deadline=None)
@given(top=floats(0.5, 1), rival=floats(0, 0.5), order=floats(1.1, 60))
def test_radius_is_monotone(top, rival, order):
    rival = min(rival, 1 - top)
    value = radius(top, rival, order)
    assert value >= 0
    assert radius(top, rival / 2, order) >= value - 1e-12
    assert radius((top + 1 - rival) / 2, rival, order) >= value * (1 - 1e-9) - 1e-12


def test_a_certain_vote_is_certain():
    assert radius(1.0, 0.0, 2.0) > 35  # infinite, but for the rounding against ourselves
    assert radius(0.5, 0.5, 2.0) == 0.0


def test_bounds_that_overlap_are_cut_to_what_is_possible():
    assert radius(0.9, 0.3, 2.0) == radius(0.9, 1 - 0.9, 2.0)


@given(size=integers(1, 10_000))
@settings(derandomize=True, deadline=None)
def test_halvings_cover_the_group(size):
    count = halvings(size, Group.TIGHT)
    assert 2**count >= size
    assert count == 0 or 2 ** (count - 1) < size
    assert halvings(size, Group.PAPER) >= count


def test_tight_constants_never_certify_less():
    top = np.linspace(0.5, 0.9999, 50)
    found = {group: renyi_sizes(top, 1 - top, gaussian(30.0), max_size=30, group=group) for group in Group}
    assert np.all(found[Group.TIGHT] >= found[Group.PAPER])
    assert found[Group.TIGHT].max() > found[Group.PAPER].max() > 1
    assert np.all(np.diff(found[Group.TIGHT]) >= 0)
    assert found[Group.TIGHT][0] == -1  # 0.5 against 0.5 is open


def test_replacing_takes_two_steps_of_an_add_or_remove_curve():
    top, rival = np.array([0.99]), np.array([0.01])
    single = renyi_sizes(top, rival, gaussian(30.0), max_size=60)
    double = renyi_sizes(top, rival, gaussian(30.0), max_size=60, steps_per_unit=2)
    assert double[0] == single[0] // 2


def test_never_beyond_the_tight_certificate():
    # Gaussian, no sampling: the exact curve of k units has shift k/σ
    from fedproof.accounting.tradeoff import GaussianTradeoff
    from fedproof.certificates.tight import mean_sizes

    top = np.linspace(0.51, 0.9999, 40)
    for noise_multiplier in (3.0, 10.0):
        exact = mean_sizes(top, 1 - top, lambda k, s=noise_multiplier: GaussianTradeoff(shift=k / s), 100)
        assert np.all(renyi_sizes(top, 1 - top, gaussian(noise_multiplier), max_size=100) <= exact)


@pytest.mark.parametrize("epsilon", [400.0, 1000.0])
def test_a_group_has_a_delta_where_its_epsilon_is_beyond_all_powers(epsilon):
    assert group(epsilon, 0.5, 0) == (0.0, 0.0)
    assert group(epsilon, 0.5, 1) == (epsilon, 0.5)
    assert group(epsilon, 0.5, 2)[1] > 1
    assert group(epsilon, 0.5, 9)[1] > 1


@pytest.mark.parametrize("cost", [0.0, 0.2])
def test_bounds_on_a_cost_hold_where_epsilon_is_beyond_all_powers(cost):
    lower, upper = inefficacy_bounds(cost, [0, 1, 2], cost_bound=1.0, epsilon=800.0, delta=0.1)
    assert lower.tolist() == [cost, 0.0, 0.0]
    assert upper.tolist() == [cost, 1.0 if cost else 0.1, 1.0]
