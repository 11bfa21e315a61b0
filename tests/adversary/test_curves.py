"""No adversary that can be written down moves a probability further than the curves of `accounting` allow.

`FEDPROOF_FUZZ_TRIALS` is the number of trials for each kind of mechanism; `make fuzz` sets it to more than a
million in all. A trial is one test level of one adversary against one certificate, see `search.Found`.
"""

import math
import os
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from fedproof.accounting import account, tradeoff
from fedproof.accounting.epsilon import natural_relation, pld_delta, rdp_delta
from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates.privacy import approximate_curve
from fedproof.mechanisms import Everyone, FixedSize, Flat, Poisson, Queries
from fedproof.threat import Relation
from tests.adversary.laws import NUMERICAL_ERROR, Group, best_tests, composed, drawn, release, roc
from tests.adversary.search import search
from tests.adversary.worlds import KINDS

TRIALS = int(os.environ.get("FEDPROOF_FUZZ_TRIALS", 2500))
SEED = 19
NOISY = [name for name in KINDS if "alone" not in name]


@pytest.mark.parametrize("kind", KINDS)
def test_no_adversary_breaks_a_curve(kind, record_property):
    found = search(KINDS[kind], np.random.default_rng(SEED), TRIALS)
    for name in ("trials", "adversaries", "certificates", "nearest"):
        record_property(name, getattr(found, name))
    assert found.trials >= TRIALS
    assert not found.broken, sorted(found.broken)[0]


# --- the search is not blind: small mistakes in what is believed --------------------------------------------


def believed(change):
    return lambda mechanism, threat, size: tradeoff(change(mechanism), threat, size)


def more_noise(mechanism):
    if isinstance(mechanism, Queries):
        louder = tuple(
            replace(one, noise_multiplier=1.02 * one.noise_multiplier) for one in mechanism.queries
        )
        return replace(mechanism, queries=louder)
    return replace(mechanism, noise_multiplier=1.02 * mechanism.noise_multiplier)


def fewer_drawn(mechanism):
    return replace(mechanism, sampling=Poisson(probability=0.95 * mechanism.sampling.probability))


def as_poisson(mechanism):
    return replace(mechanism, sampling=Poisson(probability=mechanism.sampling.probability))


def product_of_chances(mechanism):
    # The published accounting: an instance drawn with the product of both chances.
    query = mechanism.queries[0]
    chance = query.sampling.probability * query.selection_probability
    drawn_once = replace(query, sampling=Poisson(probability=chance), selection_probability=1.0)
    return Queries(queries=(drawn_once,), unit=mechanism.unit)


def rounds_are_free(mechanism):
    return replace(mechanism, rounds=1)


def flat(mechanism):
    return replace(mechanism, clipping=Flat())  # forgets √layers, or the second query


MISTAKES = [
    *((kind, more_noise) for kind in NOISY),
    ("user poisson", fewer_drawn),
    ("sampling alone poisson", fewer_drawn),
    ("user per layer", flat),
    ("user quantile", flat),
    ("user fixed", as_poisson),
    ("once poisson", rounds_are_free),
    ("instance fedsgd", product_of_chances),
]


@pytest.mark.parametrize(("kind", "mistake"), MISTAKES, ids=lambda value: getattr(value, "__name__", value))
def test_small_mistakes_are_found(kind, mistake):
    assert search(KINDS[kind], np.random.default_rng(SEED), 20_000, believed(mistake), stop=True).broken


@pytest.mark.parametrize("kind", ["user poisson", "instance fedavg", "sampling alone poisson"])
def test_a_weaker_threat_is_found(kind):
    def joined(mechanism, threat, size):
        return tradeoff(mechanism, replace(threat, relation=Relation.JOIN), size)

    def one_less(mechanism, threat, size):
        return tradeoff(mechanism, threat, size - 1)

    assert search(KINDS[kind], np.random.default_rng(SEED), 5000, one_less, stop=True).broken
    if "alone" not in kind:  # where every draw counts alike, join and replace cost the same
        assert search(KINDS[kind], np.random.default_rng(SEED), 5000, joined, stop=True).broken


# --- the laws are exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
@pytest.mark.parametrize("shift", [0.1, 1.0, 3.0])
def test_laws_of_normal_shifts_are_the_closed_form(rounds, shift):
    pair = composed([release(Everyone(), [Group(1, (0.0,), (shift / math.sqrt(rounds),))])], [rounds])
    tests = best_tests(pair)
    exact = GaussianTradeoff(shift=shift).lower(tests[:, 0])
    assert len(tests) > 30
    assert (tests[:, 1] >= exact - NUMERICAL_ERROR).all()  # a real test, so never better than the best
    assert np.abs(tests[:, 1] - exact).max() < 3e-3  # and hardly worse


def test_all_chances_add_up_to_one():
    rng = np.random.default_rng(SEED)
    for kind in KINDS.values():
        for _ in range(6):
            pair = kind(rng)().pair
            for side in (pair.clean, pair.poisoned):
                assert side.sum() == pytest.approx(1, abs=NUMERICAL_ERROR / 2)
                assert side.min() >= 0
            clean, poisoned = roc(pair)
            assert min(np.diff(clean).min(), np.diff(poisoned).min()) > -NUMERICAL_ERROR


def test_draws_are_those_of_all_cohorts():
    sizes = (2, 3, 1)
    owner = np.repeat(np.arange(3), sizes)

    def counted(members):
        return tuple(np.bincount(owner[list(members)], minlength=3).tolist())

    numbers, chances = drawn(FixedSize(cohort=3, users=6), sizes)
    expected = [counted(members) for members in combinations(range(6), 3)]
    for case, chance in zip(numbers.tolist(), chances, strict=True):
        assert chance == pytest.approx(expected.count(tuple(case)) / len(expected), abs=1e-14)
    numbers, chances = drawn(Poisson(probability=0.3), sizes)
    found = dict(zip(map(tuple, numbers.tolist()), chances, strict=True))
    total = dict.fromkeys(found, 0.0)
    for chosen in product((0, 1), repeat=6):
        total[counted(np.flatnonzero(chosen))] += 0.3 ** sum(chosen) * 0.7 ** (6 - sum(chosen))
    assert found == pytest.approx(total, abs=1e-14)


# --- ε, and certificates from ε alone -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", NOISY)
def test_no_adversary_tells_more_than_epsilon(kind, record_property):
    """One unit, the relation ε is said for: P(E) <= e^ε Q(E) + δ for the best E."""
    rng, trials = np.random.default_rng(SEED), 0
    while trials < max(60, TRIALS // 50):
        world = KINDS[kind](rng)()
        if world.size > 1 or world.threat.relation is not natural_relation(world.mechanism):
            continue
        # Sampling without replacement has Rényi curves that take seconds each.
        names = ("pld",) if "fixed" in kind else ("rdp", "pld")
        for pair in world.sides:
            delta = float(np.exp(rng.uniform(np.log(1e-7), np.log(0.3))))
            said = [(epsilon, delta) for epsilon in account(world.mechanism, delta, names).values()]
            for epsilon in rng.exponential(1.0, 4):
                said.append((epsilon, pld_delta(world.mechanism, epsilon)))
                if "rdp" in names:
                    said.append((epsilon, rdp_delta(world.mechanism, epsilon)))
            for epsilon, allowed in said:
                # Chances are known to within an error, which counts e^ε times on one side.
                error = NUMERICAL_ERROR * (1 + np.exp(min(epsilon, 700)))
                if error > max(allowed, NUMERICAL_ERROR) * 0.1 and epsilon > 5:
                    continue  # nothing can be told from such chances
                told = float(np.maximum(pair.clean - np.exp(epsilon) * pair.poisoned, 0).sum())
                assert told <= allowed + error, (str(world), epsilon, allowed)
                trials += 1
    record_property("trials", trials)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_chains_of_federations_stay_within_group_privacy(size):
    # k federations, each (ε, δ)-close to the one before: the event loses as much as it can at every step.
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        epsilon, delta = rng.exponential(0.5), np.exp(rng.uniform(np.log(1e-8), np.log(0.1)))
        curve = approximate_curve(epsilon, delta, size)
        start = rng.uniform(0, 1, 50)
        now = start
        for _ in range(size):
            now = np.maximum.reduce(
                [(now - delta) * np.exp(-epsilon), 1 - delta - (1 - now) * np.exp(epsilon), 0 * now]
            )
        assert (curve.lower(start) <= now + 1e-12).all()
        assert (curve.upper(1 - start) >= 1 - now - 1e-12).all()
