"""The paper's Rényi certificates: an exact two-point worst case, group constants, properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from scipy.optimize import brentq

from fedproof.certificates.method import Group
from fedproof.certificates.renyi import halvings, radius, renyi_sizes


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
