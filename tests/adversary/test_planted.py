"""Mistakes that were once made, planted again: the search finds each of them.

A planted mistake is an executor that does not do what its curve says, or a curve that says too much. Each is
written out here, so that these tests do not depend on what the package does today.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chi2

from fedproof.accounting import account, tradeoff
from fedproof.mechanisms import FixedSize, InstanceFedAvg, InstanceFedSGD, Poisson, UserFedAvg
from fedproof.threat import Relation, ThreatModel, Unit
from tests.adversary.laws import (
    Pair,
    best_tests,
    between,
    composed,
    drawn,
    gaps,
    instances_of,
    mixture,
    roc,
    selected,
)


@dataclass(frozen=True)
class Believed:
    """The exact curve of a pair of laws, taken for the curve of a mechanism."""

    pair: Pair

    def lower(self, probability):
        return np.interp(probability, *roc(self.pair))

    def upper(self, probability):
        return 1 - self.lower(1 - np.asarray(probability))


def smallest(pair, chance):
    """How rare a test can become that has at least this `chance` on clean data."""
    clean, poisoned = roc(pair)
    return float(np.interp(chance, clean, poisoned))


def broken(pair, curve):
    return gaps(best_tests(pair), curve).min() < 0


# --- one instance in each of k users ------------------------------------------------------------------------


def fedsgd(plan, *, rounds=3):
    """InsDP-FedSGD: 10 of 100 users drawn, σ = 1, p = 0.4, instances of `plan` poisoned."""
    once = selected(FixedSize(cohort=10, users=100), plan, 0.4, 1 / math.sqrt(10), Relation.REPLACE)
    return composed([once], [rounds])


def test_instances_of_one_user_are_not_the_worst():
    # The curve that was believed: all k instances belong to one user, drawn with chance q.
    curve = Believed(fedsgd([(1, 50)]))
    assert float(curve.lower(0.97)) == pytest.approx(0.697, abs=4e-3)
    spread = fedsgd([(50, 1)])
    assert broken(spread, curve)
    assert smallest(spread, 0.97) < 0.44
    assert smallest(fedsgd([(100, 1)]), 0.97) < 0.03
    assert not broken(fedsgd([(1, 50)]), curve)  # what it was made for


@pytest.mark.parametrize("size", [2, 10, 50, 100])
def test_spread_instances_are_covered_by_the_curve(size):
    mechanism = InstanceFedSGD(
        rounds=3, noise_multiplier=1.0, sampling=FixedSize(cohort=10, users=100), batch_probability=0.4
    )
    curve = tradeoff(mechanism, ThreatModel(unit=Unit.INSTANCE), size)
    for plan in ([(size, 1)], [(1, size)], [(size // 2, 1), (1, size - size // 2)]):
        pair = fedsgd([(holders, each) for holders, each in plan if holders and each])
        assert not broken(pair, curve)
        assert not broken(pair.swapped(), curve)


# --- whoever joins changes nobody's chance ------------------------------------------------------------------


def joined(rates, *, users=1000, size=100, noise=20.0, rounds=10):
    """`size` users join `users`; everybody is drawn with the first of `rates` before, the second after."""
    sides = []
    for rate, joiners in zip(rates, (0, size), strict=True):
        numbers, chances = drawn(Poisson(probability=rate), [users, joiners])
        sides.append(mixture(numbers, chances, [(1 / noise,), (-1 / noise,)]))
    return composed([between(*sides)], [rounds])


def test_chances_that_follow_the_number_of_users_are_found():
    mechanism = UserFedAvg(rounds=10, noise_multiplier=20.0, sampling=Poisson(probability=0.1))
    curve = tradeoff(mechanism, ThreatModel(relation=Relation.JOIN), 100)
    assert float(curve.lower(0.97)) == pytest.approx(0.616, abs=2e-3)
    assert broken(joined((0.1, 100 / 1100)), curve)  # q = cohort / number of users at hand
    assert smallest(joined((0.1, 100 / 1100)), 0.97) < 0.3
    assert not broken(joined((0.1, 0.1)), curve)


def test_a_divisor_that_follows_the_number_of_users_is_found():
    # q is a constant, but sums are divided by q times the users at hand: the noise is smaller after a join,
    # which a model of a few hundred parameters shows.
    mechanism = UserFedAvg(rounds=1, noise_multiplier=20.0, sampling=Poisson(probability=0.1))
    curve = tradeoff(mechanism, ThreatModel(relation=Relation.JOIN), 100)
    edges = np.concatenate(([0.0], chi2.ppf(np.linspace(1e-6, 1 - 1e-6, 400), 500), [np.inf]))
    clean, poisoned = (np.diff(chi2.cdf(edges * factor, 500)) for factor in (1.0, (1100 / 1000) ** 2))
    assert broken(Pair(clean, poisoned), curve)
    assert not broken(Pair(clean, clean), curve)


def test_batches_that_follow_the_number_of_instances_are_found():
    # Four instances and batches of four; with a fifth one each is drawn with chance 4/5.
    mechanism = InstanceFedAvg(rounds=1, local_steps=6, noise_multiplier=1.0, batch_probability=1.0)
    curve = tradeoff(mechanism, ThreatModel(unit=Unit.INSTANCE, relation=Relation.JOIN), 1)
    sides = []
    for rate, joiners in ((1.0, 0), (0.8, 1)):
        numbers, chances = drawn(Poisson(probability=rate), [4, joiners])
        sides.append(mixture(numbers, chances, [(1.0,), (-1.0,)]))
    pair = composed([between(*sides)], [6])
    assert broken(pair, curve)
    epsilon = account(mechanism, 0.4, ["pld"])["pld"]
    assert float(np.maximum(pair.clean - np.exp(epsilon) * pair.poisoned, 0).sum()) > 0.4
    kept = composed([instances_of(1, 1.0, 1.0, Relation.JOIN)], [6])
    assert not broken(kept, curve)
