"""InsDP-FedSGD: poisoned instances spread over users, against explicit adversaries and all allocations."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr

from fedproof.accounting import spread, tradeoff
from fedproof.accounting.pairs import poisson_pair
from fedproof.accounting.spread import SpreadPair, envelope, pair_of_profiles
from fedproof.accounting.tradeoff import composed_losses, curve_of, dominating_pair, grid_step
from fedproof.mechanisms import FixedSize, InstanceFedSGD, Poisson, Query
from fedproof.threat import Relation, ThreatModel

PROBABILITIES = np.linspace(0, 1, 201)
INNER = PROBABILITIES[1:-1]


def fedsgd(noise, cohort, users, batch, rounds=1):
    return InstanceFedSGD(
        rounds=rounds,
        noise_multiplier=noise,
        sampling=FixedSize(cohort=cohort, users=users),
        batch_probability=batch,
    )


def lower(mechanism, relation, size, at=PROBABILITIES):
    return tradeoff(mechanism, ThreatModel(unit="instance", relation=relation), size).lower(at)


def sum_of_rounds(size, *, rounds=3, cohort=10, users=100, batch=0.4):
    """How many poisoned instances take part in all rounds together, one in each of `size` users: exactly."""
    drawn = stats.hypergeom(users, size, cohort).pmf(np.arange(cohort + 1))
    owners = np.array([1.0])
    for _ in range(rounds):
        owners = np.convolve(owners, drawn)
    numbers = np.arange(len(owners))
    return owners @ stats.binom.pmf(numbers, numbers[:, None], batch), numbers


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("size", [20, 50, 100])
def test_one_poisoned_instance_in_each_of_many_users(relation, size):
    """Whoever looks at the sum of three rounds only, m = 10 of N = 100, σ = 1, p = 0.4.

    At k = 50, `replace`, the event that had 0.97 has 0.436 then. The k instances of one user, played with the
    chance of that user, would promise 0.699.
    """
    weights, numbers = sum_of_rounds(size)
    std = np.sqrt(3 * 10)
    clean_means = 0 * numbers if relation == Relation.JOIN else -numbers

    def clean(threshold):
        return weights @ ndtr((threshold - clean_means) / std)

    threshold = brentq(lambda t: clean(t) - 0.97, -100, 100, xtol=1e-13)
    poisoned = weights @ ndtr((threshold - numbers) / std)
    mechanism = fedsgd(1.0, 10, 100, 0.4, rounds=3)
    assert lower(mechanism, relation, size, 0.97) <= poisoned
    if size == 50 and relation == Relation.REPLACE:
        assert poisoned == pytest.approx(0.4364, abs=1e-4)
        assert of_one_user(mechanism, relation, size, 0.97) == pytest.approx(0.699, abs=1e-3)


def of_one_user(mechanism, relation, size, at):
    """The curve that forgets the other users: all poisoned instances belong to one. One side, for a test."""
    (query,) = mechanism.queries
    pair = poisson_pair(query, relation, size)
    release = pair.discretise(0.01)
    once = pair_of_profiles(
        0.01,
        query.selection_probability * release.forward.divergences(),
        query.selection_probability * release.backward.divergences(),
    )
    epsilons, deltas = once.forward.repeat(query.count).profile()
    steep = 1 - deltas - np.exp(epsilons) * (1 - at)
    return max(np.max((at - deltas) * np.exp(-epsilons)), np.max(steep))


# --- all allocations ---------------------------------------------------------------------------------------


def cells_of(number, noise, batch, relation, edges):
    """Masses of clean and poisoned sums of `number` instances whose users are drawn."""
    drawn = np.arange(number + 1)
    weights = stats.binom(number, batch).pmf(drawn)
    before = 0 * drawn if relation == Relation.JOIN else -drawn
    return tuple(np.diff(ndtr(edges[:, None] - means / noise), axis=0) @ weights for means in (before, drawn))


def allocations(size, users):
    """Numbers of instances of each user, in falling order, that add up to `size`."""
    if users == 1:
        return [(size,)]
    return [
        (most, *rest)
        for most in range(size, -1, -1)
        for rest in allocations(size - most, users - 1)
        if rest[0] <= most
    ]


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("noise", "batch"), [(0.7, 0.5), (2.0, 0.3), (0.3, 1.0)])
def test_no_allocation_in_a_tiny_federation_is_worse(relation, noise, batch):
    """Six users, up to five instances, every cohort, every allocation, both directions, many α."""
    users = 6
    alphas = np.exp(np.concatenate(([0.0], np.geomspace(1e-3, 6, 40))))
    edges = np.concatenate(([-np.inf], np.linspace(-25, 25, 20_001), [np.inf]))
    for cohort in (1, 2, 4, 5):
        mechanism = fedsgd(noise, cohort, users, batch)
        std = np.sqrt(cohort) * noise
        masses = [cells_of(number, std, batch, relation, edges) for number in range(6)]
        exact = {  # the cells coarsen the outputs, so this is a little below the truth
            (number, way): np.array([np.maximum(one - alpha * other, 0).sum() for alpha in alphas])
            for number, (clean, poisoned) in enumerate(masses)
            for way, (one, other) in enumerate(((clean, poisoned), (poisoned, clean)))
        }
        cohorts = list(itertools.combinations(range(users), cohort))
        for size in range(1, 6):
            losses = composed_losses(mechanism.queries, relation, size)
            for way in (0, 1):
                ours = np.array([losses[way].delta(np.log(alpha)) for alpha in alphas])
                worst = np.zeros(len(alphas))
                for spread_out in allocations(size, users):
                    drawn = [sum(spread_out[user] for user in members) for members in cohorts]
                    worst = np.maximum(worst, np.mean([exact[number, way] for number in drawn], axis=0))
                assert np.all(worst <= ours + 1e-12)
                if size == 1:  # and no more than needed is given away
                    assert np.all(ours <= worst * 1.01 + 1e-5)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(data=st.data())
def test_two_rounds_of_any_allocation(exact_curve, either_way_exact, data):
    """Whoever sees the cohorts and both sums; instances at the clip bound."""
    users = data.draw(st.integers(2, 4))
    cohort = data.draw(st.integers(1, users - 1))
    counts = data.draw(st.lists(st.integers(0, 4), min_size=users, max_size=users).filter(any))
    noise, batch = data.draw(st.floats(0.3, 3)), data.draw(st.floats(0.05, 1))
    relation = data.draw(st.sampled_from(list(Relation)))
    std = np.sqrt(cohort) * noise
    edges = np.concatenate(([-np.inf], np.linspace(-12, 12, 120), [np.inf]))
    rounds = []
    for members in itertools.combinations(range(users), cohort):
        number = sum(counts[user] for user in members)
        rounds.append(cells_of(number, std, batch, relation, edges))
    clean, poisoned = (np.concatenate(side) / len(rounds) for side in zip(*rounds, strict=True))
    both = [np.outer(side, side).ravel() for side in (clean, poisoned)]
    reference = either_way_exact if relation == Relation.JOIN else exact_curve
    found = lower(fedsgd(noise, cohort, users, batch, rounds=2), relation, sum(counts), INNER)
    assert np.all(found <= reference(*both, INNER) + 1e-9)


# --- shape -------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    noise=st.floats(0.5, 5),
    batch=st.floats(0.02, 1),
    cohort=st.integers(1, 19),
    rounds=st.integers(1, 30),
    size=st.integers(1, 40),
    relation=st.sampled_from(list(Relation)),
)
def test_more_instances_never_help(noise, batch, cohort, rounds, size, relation):
    mechanism = fedsgd(noise, cohort, 20, batch, rounds)
    now, worse = (lower(mechanism, relation, number) for number in (size, size + 1))
    assert np.all(worse <= now + 1e-3)  # different grids round differently; both are valid bounds
    assert now[0] == 0
    assert np.all(np.diff(now) >= 0)
    assert np.all(np.diff(now, 2)[:-1] >= -1e-11)


@pytest.mark.parametrize("relation", list(Relation))
def test_profiles_rise_with_the_number_on_one_grid(relation):
    (query,) = fedsgd(1.0, 10, 100, 0.4).queries
    profiles = [
        SpreadPair(query=query, relation=relation, size=size).discretise(0.05).forward.divergences()
        for size in (1, 2, 3, 9, 10, 25, 26)
    ]
    for now, more in itertools.pairwise(profiles):
        length = min(len(now), len(more))
        assert np.all(more[:length] >= now[:length] - 3e-14)


@pytest.mark.parametrize("relation", list(Relation))
def test_one_instance_costs_what_its_user_costs(relation):
    (query,) = fedsgd(1.0, 10, 100, 0.4).queries
    pair = dominating_pair(query, relation, 1)
    alone = poisson_pair(query, relation, 1)
    step = grid_step([pair], 40.0)
    assert step == grid_step([alone], 40.0)
    found, expected = pair.discretise(step), alone.discretise(step)
    for way in ("forward", "backward"):
        ours, theirs = (getattr(one, way).divergences() for one in (found, expected))
        both = slice(min(len(ours), len(theirs)))
        assert ours[both] == pytest.approx(0.1 * theirs[both], rel=1e-9, abs=2e-14)
        assert np.all(ours[both.stop :] < 2e-14)


def test_a_user_who_is_always_drawn_hides_nothing():
    # q → 1: the envelope at k is h(k), the sampled Gaussian mechanism on instances.
    nearly = Query(
        noise_multiplier=2.0, sampling=Poisson(probability=0.3), count=3, selection_probability=1 - 1e-9
    )
    always = Query(noise_multiplier=2.0, sampling=Poisson(probability=0.3), count=3)
    for relation in Relation:
        one, other = (
            curve_of((query,), relation, 7, 40.0).lower(PROBABILITIES) for query in (nearly, always)
        )
        assert one == pytest.approx(other, abs=1e-3)


def test_profiles_come_back_from_their_pair():
    steps = np.arange(80)
    forward, backward = 0.01 + 0.3 * np.exp(-0.11 * steps), 0.02 + 0.29 * np.exp(-0.12 * steps)
    pair = pair_of_profiles(0.1, forward, backward)
    for law, profile in ((pair.forward, forward), (pair.backward, backward)):
        assert np.all(law.divergences() >= profile)
        assert law.divergences() == pytest.approx(profile, abs=2e-13)
        assert law.masses.sum() + law.infinite >= 1


@settings(derandomize=True, deadline=None, max_examples=50)
@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=8), share=st.floats(0, 1, exclude_max=True))
def test_the_envelope_is_the_best_law_with_that_mean(values, share):
    top = len(values) - 1
    at = share * top
    best = max(
        values[a] if a == b else ((b - at) * values[a] + (at - a) * values[b]) / (b - a)
        for a, b in itertools.combinations_with_replacement(range(top + 1), 2)
        if a <= at <= b
    )
    found = envelope(np.arange(top + 1), np.array(values)[:, None], at)
    assert found == pytest.approx([best], abs=1e-12)


def test_skipping_numbers_only_rounds_up(monkeypatch):
    (query,) = fedsgd(2.0, 5, 50, 0.3).queries
    pair = SpreadPair(query=query, relation=Relation.REPLACE, size=60)
    exact = pair.discretise(0.05).forward.divergences()
    monkeypatch.setattr(spread, "_ALL_UP_TO", 5)
    coarse = pair.discretise(0.05).forward.divergences()
    assert np.all(coarse >= exact - 1e-14)
    assert np.max(coarse - exact) < 0.01


# --- range, speed, bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
def test_any_number_of_instances_is_answered(noise, relation):
    for size in (2, 300, 10**7):
        found = lower(fedsgd(noise, 10, 30, 0.4, rounds=50), relation, size)
        assert np.all((found >= 0) & (found <= 1))
        assert size < 300 or noise > 1 or found[-2] < 1e-9


def test_a_walk_takes_seconds():
    curve_of.cache_clear()
    start = time.process_time()
    for size in range(1, 31):
        lower(fedsgd(1.0, 10, 100, 0.4, rounds=3), "replace", size)
    assert time.process_time() - start < 6


def test_selection_of_users_goes_with_independent_instances_only():
    with pytest.raises(ValueError, match=r"sampling = FixedSize\(.*\) must be Poisson or Everyone"):
        Query(
            noise_multiplier=1.0,
            sampling=FixedSize(cohort=2, users=9),
            count=1,
            selection_probability=0.5,
        )


@pytest.mark.parametrize("relation", Relation)
def test_instances_that_are_hardly_ever_drawn_have_a_curve(relation):
    """Every loss is zero as computed, and so is how far it reaches; it ended with a domain error."""
    mechanism = InstanceFedSGD(
        rounds=500,
        noise_multiplier=1e5,
        sampling=FixedSize(cohort=45, users=53),
        batch_probability=1e-15,
    )
    curve = tradeoff(mechanism, ThreatModel(unit="instance", relation=relation), 5)
    assert 0.5 - 1e-6 < float(curve.lower(0.5)) <= 0.5
