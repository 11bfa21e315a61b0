"""How far from tight each curve is: explicit attacks, played by sampling what an observer sees.

An attack is a law of what is released without and with the adversary. The best test between the two, a
threshold on their likelihood ratio, is an event; a model that votes for A just on that event is turned when
its chance falls to a half. No attack may do more than the certificate allows, and the table of
`docs/theory.md` says from which size each one turns what is certified up to the size before.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom, hypergeom

import fedproof as fp
from fedproof.mechanisms import Bagging, InstanceFedSGD

CLEAN = 0.97  # of the event, before anybody is poisoned
SAMPLES = 100_000
FALSE_ALARM = 1e-6
ROUNDS, SIGMA, CHANCE, COHORT, USERS = 3, 1.8, 0.1, 20, 200


@dataclass(frozen=True)
class Laws:
    """One round: a mixture of normal laws with the same noise, without and with the adversary."""

    weights: tuple[np.ndarray, np.ndarray]
    shifts: tuple[np.ndarray, np.ndarray]
    sigma: float


def played(laws, rounds, generator):
    """Log likelihood ratios `(samples,)` of the whole training, drawn with and without the adversary."""
    return [sum(_ratios(laws, side, generator) for _ in range(rounds)) for side in (0, 1)]


def _ratios(laws, side, generator):
    shifts = generator.choice(
        laws.shifts[side], size=SAMPLES, p=laws.weights[side] / laws.weights[side].sum()
    )
    seen = shifts + laws.sigma * generator.standard_normal(SAMPLES)
    clean, poisoned = (
        logsumexp(-(((seen[:, None] - centre) / laws.sigma) ** 2) / 2, b=weight, axis=1)
        for weight, centre in zip(laws.weights, laws.shifts, strict=True)
    )
    return poisoned - clean


def share_left(clean, poisoned):
    """Chance under attack of the event with chance `CLEAN` that the attack hurts most."""
    return float(np.mean(poisoned <= np.quantile(clean, CLEAN)))


def drawn(weights, shift=1.0):
    return weights, shift * np.arange(len(weights), dtype=float)


def poisson_join(k):
    weights, shifts = drawn(binom.pmf(np.arange(k + 1), k, CHANCE))
    return Laws((np.ones(1), weights), (np.zeros(1), shifts), SIGMA)


def poisson_replace(k):
    weights, shifts = drawn(binom.pmf(np.arange(k + 1), k, CHANCE))
    return Laws((weights, weights), (-shifts, shifts), SIGMA)


def fixed(k):
    """Everybody sends one update and adversaries its opposite, instead of users or beside those observed."""
    weights, shifts = drawn(hypergeom.pmf(np.arange(k + 1), USERS, k, COHORT), 2.0)
    return Laws((np.ones(1), weights), (np.zeros(1), shifts), SIGMA)


def everyone(k):
    return Laws((np.ones(1), np.ones(1)), (np.zeros(1), np.array([2.0 * k])), 5 * SIGMA)


POISSON = fp.UserFedAvg(rounds=ROUNDS, noise_multiplier=SIGMA, sampling=fp.Poisson(probability=CHANCE))
FIXED = fp.UserFedAvg(
    rounds=ROUNDS, noise_multiplier=SIGMA, sampling=fp.FixedSize(cohort=COHORT, users=USERS)
)
EVERYONE = fp.UserFedAvg(rounds=ROUNDS, noise_multiplier=5 * SIGMA, sampling=fp.Everyone())

CASES = {
    "Poisson, join": (POISSON, "join", poisson_join, 19, 20),
    "Poisson, replace": (POISSON, "replace", poisson_replace, 11, 12),
    "fixed size, join": (FIXED, "join", fixed, 9, 10),
    "fixed size, replace": (FIXED, "replace", fixed, 8, 10),
    "everyone, replace": (EVERYONE, "replace", everyone, 4, 5),
}


def left_of_certificate(mechanism, relation, k, unit="user"):
    return fp.tradeoff(mechanism, fp.ThreatModel(unit=unit, relation=relation), k).lower(CLEAN)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_attack_beats_a_curve_and_one_comes_near(case):
    mechanism, relation, laws, certified, turned = case
    assert left_of_certificate(mechanism, relation, certified) > 0.5
    assert left_of_certificate(mechanism, relation, certified + 1) <= 0.5
    error = np.sqrt(-np.log(FALSE_ALARM / 2) / (2 * SAMPLES)) * 2  # Hoeffding; of the threshold and the share
    for size in (certified, turned):
        generator = np.random.default_rng(size)
        left = share_left(*played(laws(size), ROUNDS, generator))
        assert left > left_of_certificate(mechanism, relation, size) - error
        assert (left <= 0.5) == (size == turned)


def test_a_curve_that_claims_more_is_refuted_by_the_attack():
    left = share_left(*played(poisson_replace(12), ROUNDS, np.random.default_rng(0)))
    assert left < left_of_certificate(POISSON, "join", 12) - 0.1  # `join` is not `replace`


def test_sampling_alone_is_tight():
    # Models vote for A on 97 % of the cohorts; those that a poisoned user enters are among them and turn.
    mechanism = Bagging(sampling=fp.FixedSize(cohort=3, users=1000), rounds=1)
    certified = max(k for k in range(400) if left_of_certificate(mechanism, "replace", k) > 0.5)
    without = [hypergeom.pmf(0, 1000, k, 3) for k in (certified, certified + 1)]
    assert [CLEAN - (1 - one) > 0.5 for one in without] == [True, False]
    assert certified == 190


def test_instances_of_drawn_users_are_some_way_from_tight():
    # One poisoned instance in each of k users, who is drawn being known: theory.md, m = 10 of 100.
    mechanism = InstanceFedSGD(
        rounds=3,
        noise_multiplier=1.0,
        sampling=fp.FixedSize(cohort=10, users=100),
        batch_probability=0.4,
    )

    def attacked(k):
        generator, sigma = np.random.default_rng(k), np.sqrt(10.0)
        sides = []
        for side in (0, 1):
            total = np.zeros(SAMPLES)
            for _ in range(3):
                there = generator.hypergeometric(k, 100 - k, 10, SAMPLES)
                total += _known(there, side, sigma, generator)
            sides.append(total)
        return share_left(*sides)

    lower = [left_of_certificate(mechanism, "replace", k, "instance") > 0.5 for k in (26, 27)]
    assert lower == [True, False]
    assert [attacked(k) > 0.5 for k in (42, 44)] == [True, False]


def _known(there, side, sigma, generator):
    """Ratios of one round in which `there` (samples,) of the users with a poisoned instance are drawn."""
    found = np.zeros(len(there))
    for number in np.unique(there):
        rows = np.flatnonzero(there == number)
        weights, shifts = drawn(binom.pmf(np.arange(number + 1), number, 0.4))
        centres = (-shifts, shifts)
        seen = generator.choice(centres[side], size=len(rows), p=weights)
        seen = seen + sigma * generator.standard_normal(len(rows))
        clean, poisoned = (
            logsumexp(-(((seen[:, None] - centre) / sigma) ** 2) / 2, b=weights, axis=1) for centre in centres
        )
        found[rows] = poisoned - clean
    return found
