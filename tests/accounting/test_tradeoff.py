"""Trade-off curves: published readings, exact references, shape, and attacks on explicit mechanisms."""

import itertools
import math
import sys
import time

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedproof.accounting import tradeoff
from fedproof.accounting.tradeoff import GaussianTradeoff, curve_of
from fedproof.mechanisms import (
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Poisson,
    Query,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel
from tests.patience import finished

PROBABILITIES = np.linspace(0, 1, 401)
INNER = PROBABILITIES[1:-1]  # cells of a brute-force reference blur the ends
FALSE_ALARM = 1e-6


def user(noise, probability, rounds):
    return UserFedAvg(rounds=rounds, noise_multiplier=noise, sampling=Poisson(probability=probability))


def certified(mechanism, relation, top):
    threat = ThreatModel(unit=mechanism.unit, relation=relation)
    size = 0
    while (curve := tradeoff(mechanism, threat, size + 1)).lower(top) > curve.upper(1 - top):
        size += 1
    return size


INSTANCE_MNIST = InstanceFedAvg(rounds=3, local_steps=26, noise_multiplier=5, batch_probability=50 / 1266)


# Certified integer sizes at infinite O: the table of the theory's section 3.
@pytest.mark.parametrize(
    ("mechanism", "top", "join", "replace"),
    [
        (user(1.8, 0.1, 3), 0.80, 8, 4),
        (user(1.8, 0.1, 3), 0.97, 19, 11),
        (user(1.8, 0.1, 3), 0.995, 26, 15),
        (user(2.3, 0.1, 3), 0.97, 24, 13),
        (user(4.0, 0.2, 1), 0.97, 37, 20),
        (INSTANCE_MNIST, 0.97, 26, 13),
    ],
)
def test_known_certified_sizes(mechanism, top, join, replace):
    assert certified(mechanism, "join", top) == join
    assert certified(mechanism, "replace", top) == replace


def test_no_sampling_is_the_gaussian_closed_form():
    mechanism = UserFedAvg(rounds=4, noise_multiplier=2.0, sampling=Everyone())
    join = tradeoff(mechanism, ThreatModel(relation="join"), 3)
    replace = tradeoff(mechanism, ThreatModel(relation="replace"), 3)
    assert join == GaussianTradeoff(shift=3 * math.sqrt(4) / 2.0)
    assert replace == GaussianTradeoff(shift=2 * 3 * math.sqrt(4) / 2.0)


def test_numerical_path_agrees_with_the_closed_form():
    # Sampling probability just below one takes the numerical path to the same curve.
    numerical = curve_of(
        (Query(noise_multiplier=3.0, sampling=Poisson(probability=1 - 1e-9), count=5),),
        Relation.REPLACE,
        2,
        40.0,
    )
    exact = GaussianTradeoff(shift=2 * 2 * math.sqrt(5) / 3.0).lower(PROBABILITIES)
    assert np.all(numerical.lower(PROBABILITIES) <= exact + 1e-9)
    assert np.all(numerical.lower(PROBABILITIES) >= exact - 1e-3)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("noise", "probability", "size"), [(1.8, 0.1, 5), (0.7, 0.3, 2), (4.0, 0.02, 40)])
def test_one_release_is_tight_and_never_above_brute_force(
    brute_force, either_way, relation, noise, probability, size
):
    numbers = np.arange(size + 1)
    weights = stats.binom(size, probability).pmf(numbers)
    poisoned = (weights, numbers / noise)
    clean = ([1.0], [0.0]) if relation == Relation.JOIN else (weights, -numbers / noise)
    reference = either_way if relation == Relation.JOIN else brute_force
    exact = reference(clean, poisoned, PROBABILITIES)
    ours = tradeoff(user(noise, probability, 1), ThreatModel(relation=relation), size).lower(PROBABILITIES)
    assert np.all(ours <= exact + 1e-9)
    assert np.all(ours >= exact - 2e-3)


@pytest.mark.parametrize("relation", list(Relation))
def test_two_releases_are_never_above_brute_force(brute_force, either_way, relation):
    numbers = np.arange(5)
    weights = stats.binom(4, 0.2).pmf(numbers)
    poisoned = (weights, numbers / 1.5)
    clean = ([1.0], [0.0]) if relation == Relation.JOIN else (weights, -numbers / 1.5)
    reference = either_way if relation == Relation.JOIN else brute_force
    exact = reference(clean, poisoned, PROBABILITIES, releases=2, cells=900)
    ours = tradeoff(user(1.5, 0.2, 2), ThreatModel(relation=relation), 4).lower(PROBABILITIES)
    assert np.all(ours <= exact + 1e-9)
    assert np.all(ours >= exact - 4e-3)


def test_finer_grid_only_tightens():
    query = Query(noise_multiplier=1.8, sampling=Poisson(probability=0.1), count=3)
    coarse, middle, fine = (
        curve_of((query,), Relation.REPLACE, 6, resolution).lower(PROBABILITIES)
        for resolution in (5.0, 20.0, 80.0)
    )
    assert np.all(coarse <= middle + 1e-6)
    assert np.all(middle <= fine + 1e-6)
    assert np.max(fine - middle) < 1e-3


@pytest.mark.parametrize("size", [1, 5])
def test_join_lies_between_finer_and_coarser_grids_of_dp_accounting(size):
    # Connect-the-dots approaches the truth from above as its grid gets finer; so do we. (The other
    # discretisation of dp_accounting 0.6.0, use_connect_dots=False, falls below the truth for mixtures.)
    numbers = np.arange(size + 1)
    weights = stats.binom(size, 0.1).pmf(numbers)
    curve = tradeoff(user(1.8, 0.1, 3), ThreatModel(relation="join"), size)
    chosen = np.searchsorted(curve.epsilons, [0, 0.25, 0.5, 1, 2])
    coarse, fine = (
        pld.from_mixture_gaussian_mechanism(
            1.8, numbers.astype(float), weights, value_discretization_interval=interval
        ).self_compose(3)
        for interval in (8 * curve.epsilons[1], curve.epsilons[1] / 4)
    )
    for epsilon, delta in zip(curve.epsilons[chosen], curve.forward[chosen], strict=True):
        assert fine.get_delta_for_epsilon(float(epsilon)) - 1e-9 <= delta
        assert delta <= coarse.get_delta_for_epsilon(float(epsilon)) + 1e-9


# --- attacks on explicit mechanisms: arbitrary contributions, every cohort enumerated ----------------------


def cohort_means(values, cohorts):
    return np.array([sum(values[i] for i in cohort) for cohort in cohorts])


@settings(derandomize=True, deadline=None, max_examples=25)
@given(data=st.data())
def test_no_contributions_beat_the_poisson_curve(brute_force, data):
    unit_interval = st.floats(-1, 1)
    honest = data.draw(st.lists(unit_interval, min_size=0, max_size=3))
    size = data.draw(st.integers(1, 3))
    before, after = (data.draw(st.lists(unit_interval, min_size=size, max_size=size)) for _ in range(2))
    probability, noise = data.draw(st.floats(0.05, 0.9)), data.draw(st.floats(0.4, 3))
    total = len(honest) + size
    cohorts = [c for n in range(total + 1) for c in itertools.combinations(range(total), n)]
    weights = [probability ** len(c) * (1 - probability) ** (total - len(c)) for c in cohorts]
    clean, poisoned = (cohort_means(honest + members, cohorts) / noise for members in (before, after))
    exact = brute_force((weights, clean), (weights, poisoned), INNER, cells=2000)
    ours = tradeoff(user(noise, probability, 1), ThreatModel(relation="replace"), size).lower(INNER)
    assert np.all(ours <= exact + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(data=st.data())
def test_no_contributions_beat_the_fixed_size_curve(brute_force, data):
    unit_interval = st.floats(-1, 1)
    users = data.draw(st.integers(2, 6))
    cohort, size = data.draw(st.integers(1, users)), data.draw(st.integers(1, users))
    before = data.draw(st.lists(unit_interval, min_size=users, max_size=users))
    after = data.draw(st.lists(unit_interval, min_size=size, max_size=size)) + before[size:]
    noise = data.draw(st.floats(0.4, 3))
    cohorts = list(itertools.combinations(range(users), cohort))
    weights = np.full(len(cohorts), 1 / len(cohorts))
    clean, poisoned = (cohort_means(values, cohorts) / noise for values in (before, after))
    exact = brute_force((weights, clean), (weights, poisoned), INNER, cells=2000)
    mechanism = UserFedAvg(rounds=1, noise_multiplier=noise, sampling=FixedSize(cohort=cohort, users=users))
    ours = tradeoff(mechanism, ThreatModel(relation="replace"), size).lower(INNER)
    assert np.all(ours <= exact + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(data=st.data())
def test_nobody_who_joins_beats_the_fixed_size_curve(brute_force, data):
    """Both readings: k join N honest users, and k of N observed users are the adversaries."""
    unit_interval = st.floats(-1, 1) | st.sampled_from([-1.0, 1.0])
    users = data.draw(st.integers(2, 6))
    cohort = data.draw(st.integers(1, users - 1))
    size = data.draw(st.integers(1, users - cohort))
    known = data.draw(st.lists(unit_interval, min_size=users, max_size=users))
    joined = data.draw(st.lists(unit_interval, min_size=size, max_size=size))
    noise = data.draw(st.floats(0.4, 3))

    def law(values):
        cohorts = list(itertools.combinations(range(len(values)), cohort))
        return np.full(len(cohorts), 1 / len(cohorts)), cohort_means(values, cohorts) / noise

    mechanism = UserFedAvg(rounds=1, noise_multiplier=noise, sampling=FixedSize(cohort=cohort, users=users))
    ours = tradeoff(mechanism, ThreatModel(relation="join"), size).lower(INNER)
    assert np.all(ours <= brute_force(law(known), law(known + joined), INNER, cells=2000) + 1e-9)
    honest = known[size:]
    assert np.all(ours <= brute_force(law(honest + joined), law(honest), INNER, cells=2000) + 1e-9)


def test_the_fixed_size_curve_of_joining_is_attained(brute_force):
    # All honest users at -1, adversaries at +1, read in the direction that is worse.
    users, cohort, size, noise = 8, 3, 2, 1.5
    sampling = FixedSize(cohort=cohort, users=users)

    def law(values):
        cohorts = list(itertools.combinations(range(len(values)), cohort))
        return np.full(len(cohorts), 1 / len(cohorts)), cohort_means(values, cohorts) / noise

    clean, observed = law([-1.0] * (users - size)), law([-1.0] * (users - size) + [1.0] * size)
    exact = np.minimum(brute_force(clean, observed, INNER), brute_force(observed, clean, INNER))
    mechanism = UserFedAvg(rounds=1, noise_multiplier=noise, sampling=sampling)
    ours = tradeoff(mechanism, ThreatModel(relation="join"), size).lower(INNER)
    assert np.all(ours <= exact + 1e-9)
    middle = (INNER > 0.3) & (INNER < 0.95)
    assert np.max((exact - ours)[middle]) < 0.02


def test_no_certificate_for_fixed_size_cohorts_reaches_that_of_poisson_sampling(brute_force):
    """T = 3, σ = 1.8, one user in ten, F = 0.97, `replace`: Poisson's 11 cannot be had, at most 9 can.

    All users send the same update, poisoned ones its opposite: N(0) against Σ w_j N(2j) in each of three
    rounds. At k = 10 that turns 0.97 into less than one half, even for whoever sees rounded sums only, so a
    certificate for 10 would be false.
    """
    for users in (200, 1000):
        fixed = UserFedAvg(
            rounds=3, noise_multiplier=1.8, sampling=FixedSize(cohort=users // 10, users=users)
        )
        drawn = np.arange(11)
        poisoned = stats.hypergeom(users, 10, users // 10).pmf(drawn), 2 * drawn / 1.8
        (reached,) = brute_force((np.ones(1), np.zeros(1)), poisoned, np.array([0.97]), releases=3, cells=100)
        assert reached < 0.49
        curve = tradeoff(fixed, ThreatModel(relation="replace"), 8)
        assert curve.lower(0.97) > 0.5
        poisson = tradeoff(user(1.8, 0.1, 3), ThreatModel(relation="replace"), 11)
        assert poisson.lower(0.97) > 0.5


def test_fixed_size_curve_is_attained_up_to_a_little():
    # Honest users all at -1, adversaries at +1: N(0) against Σ w_j N(2j).
    noise, users, cohort, size = 3.0, 50, 5, 4
    numbers = np.arange(size + 1)
    weights = stats.hypergeom(users, size, cohort).pmf(numbers)
    grid = np.linspace(-10, 20, 20_001)
    p = stats.norm.pdf(grid)
    q = stats.norm.pdf(grid[:, None] - 2 * numbers / noise) @ weights
    order = np.argsort(-p / q)
    exact = np.interp(INNER, np.cumsum(p[order]) * 0.0015, np.cumsum(q[order]) * 0.0015)
    mechanism = UserFedAvg(rounds=1, noise_multiplier=noise, sampling=FixedSize(cohort=cohort, users=users))
    ours = tradeoff(mechanism, ThreatModel(relation="replace"), size).lower(INNER)
    assert np.all(ours <= exact + 1e-4)
    assert np.max(exact - ours) < 0.06


def test_instance_fedsgd_counts_the_choice_of_users_as_known(either_way):
    """The published amplification by p·q is not sound: the user's other instances give its selection away.

    One instance of a user is removed; 60 other instances of that user, each at the clip bound, are in every
    batch. The true mechanism is then weaker than the product of both probabilities claims.
    """
    batch, noise = 0.4, 3.0
    mechanism = InstanceFedSGD(
        rounds=1, noise_multiplier=noise, sampling=FixedSize(cohort=10, users=30), batch_probability=batch
    )
    std = math.sqrt(10) * noise
    selection = 1 / 3
    with_it = ([1 - selection, selection * (1 - batch), selection * batch], np.array([0.0, 60.0, 61.0]) / std)
    without = ([1 - selection, selection], np.array([0.0, 60.0]) / std)
    exact = either_way(with_it, without, INNER, cells=20_000)
    threat = ThreatModel(unit="instance", relation="join")
    ours = tradeoff(mechanism, threat, 1).lower(INNER)
    assert np.all(ours <= exact + 1e-9)
    assert np.max(exact - ours) < 1e-3  # and no more than needed is given away
    product = curve_of(
        (Query(noise_multiplier=std, sampling=Poisson(probability=selection * batch), count=1),),
        Relation.JOIN,
        1,
        40.0,
    )
    assert np.any(product.lower(INNER) > exact + 1e-4)  # the published accounting claims too much


def test_no_threshold_test_beats_the_curve():
    # Sample the one-dimensional mechanism three rounds long; every threshold of the sum is an event.
    mechanism, size, samples = user(1.2, 0.2, 3), 4, 200_000
    curve = tradeoff(mechanism, ThreatModel(relation="replace"), size)
    generator = np.random.default_rng(0)

    def outputs(sign, noise):
        drawn = generator.binomial(size, 0.2, (samples, 3))
        return (sign * drawn + noise * generator.standard_normal((samples, 3))).sum(axis=1)

    thresholds = np.linspace(-8, 8, 33)
    slack = math.sqrt(math.log(2 * len(thresholds) / FALSE_ALARM) / (2 * samples))

    def violated(noise):
        clean, poisoned = outputs(-1, noise), outputs(+1, noise)
        p, q = ((values[:, None] < thresholds).mean(axis=0) for values in (clean, poisoned))
        return np.any(q + slack < curve.lower(np.maximum(p - slack, 0)))

    assert not violated(noise=1.2)
    assert violated(noise=0.9)  # noise a quarter too small is caught


# --- shape -------------------------------------------------------------------------------------------------

mechanisms = st.builds(user, st.floats(0.5, 10), st.floats(0.01, 0.99), st.integers(1, 50))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(mechanism=mechanisms, size=st.integers(1, 60), relation=st.sampled_from(list(Relation)))
def test_curves_are_convex_increasing_and_exact_at_the_ends(mechanism, size, relation):
    curve = tradeoff(mechanism, ThreatModel(relation=relation), size)
    lower = curve.lower(PROBABILITIES)
    assert lower[0] == 0
    assert lower[-1] == 1
    assert np.all(np.diff(lower) >= 0)
    assert np.all(lower <= PROBABILITIES + 1e-12)
    assert np.all(np.diff(lower, 2)[:-1] >= -1e-11)
    assert np.allclose(curve.upper(PROBABILITIES), 1 - curve.lower(1 - PROBABILITIES))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(mechanism=mechanisms, size=st.integers(1, 60), at=st.floats(0.001, 0.999))
def test_tangents_stay_below_the_curve_and_touch_it(mechanism, size, at):
    curve = tradeoff(mechanism, ThreatModel(relation="replace"), size)
    slope, intercept = curve.tangent(np.array([at]))
    assert np.all(slope * PROBABILITIES + intercept <= curve.lower(PROBABILITIES) + 1e-12)
    assert float(slope[0] * at + intercept[0]) == pytest.approx(float(curve.lower(at)), abs=1e-9)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    noise=st.floats(0.5, 8),
    probability=st.floats(0.02, 0.6),
    rounds=st.integers(1, 20),
    size=st.integers(1, 20),
    relation=st.sampled_from(list(Relation)),
)
def test_more_poison_sampling_rounds_or_less_noise_never_help(noise, probability, rounds, size, relation):
    def lower(noise, probability, rounds, size):
        return tradeoff(user(noise, probability, rounds), ThreatModel(relation=relation), size).lower(
            PROBABILITIES
        )

    base = lower(noise, probability, rounds, size)
    slack = 2e-3  # different grids round differently; both are valid bounds
    for worse in (
        (noise, probability, rounds, size + 1),
        (noise * 0.8, probability, rounds, size),
        (noise, probability * 1.5, rounds, size),
        (noise, probability, rounds + 3, size),
    ):
        assert np.all(lower(*worse) <= base + slack)


@pytest.mark.parametrize("probability", [1e-30, 1e-20, 1e-17, 1e-16, 1e-12, 1e-6])
def test_a_tiny_probability_may_rise_by_the_chance_of_a_draw(probability):
    # Almost no noise: whatever happens hardly ever may happen whenever an adversary is drawn.
    mechanism = user(0.01, 0.1, 1)
    for relation in Relation:
        assert float(tradeoff(mechanism, ThreatModel(relation=relation), 1).upper(probability)) >= 0.1
    assert float(tradeoff(mechanism, ThreatModel(), 1).upper(0.0)) == 0  # same support


@pytest.mark.parametrize("size", [1, 3, 30])
@pytest.mark.parametrize("sampling", [Everyone(), Poisson(probability=0.4), FixedSize(cohort=8, users=50)])
def test_tangents_next_to_one_are_computable_lines(size, sampling):
    """Slopes of 1e14 would round away all of an intercept; lines that say as much are less steep."""
    mechanism = UserFedAvg(rounds=2, noise_multiplier=1.5, sampling=sampling)
    curve = tradeoff(mechanism, ThreatModel(), size)
    probabilities = 1 - np.concatenate(([0.0], np.geomspace(1e-16, 1, 60)))
    for at in (0.5, 0.999, 1 - 1e-9, 1 - 1e-13, 1.0):
        slope, intercept = curve.tangent(np.array([at]))
        assert np.all(slope <= 1e9 * (1 + 1e-12))
        assert np.all(slope * probabilities + intercept <= curve.lower(probabilities))


def test_replace_is_never_better_than_join():
    for size in (1, 5, 20):
        join, replace = (
            tradeoff(user(1.8, 0.1, 3), ThreatModel(relation=relation), size).lower(PROBABILITIES)
            for relation in ("join", "replace")
        )
        assert np.all(replace <= join + 1e-9)


def test_size_zero_is_the_identity():
    curve = tradeoff(user(1.8, 0.1, 3), ThreatModel(), 0)
    assert np.allclose(curve.lower(PROBABILITIES), PROBABILITIES, atol=1e-15)


# --- range and speed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("rounds", [1, 2000])
@pytest.mark.parametrize("size", [1, pytest.param(500, marks=pytest.mark.slow)])
def test_extreme_parameters_stay_finite(noise, rounds, size):
    for probability, relation in itertools.product((1e-3, 0.1, 0.9), Relation):
        lower = tradeoff(user(noise, probability, rounds), ThreatModel(relation=relation), size).lower(
            PROBABILITIES
        )
        assert np.all(np.isfinite(lower))
        assert np.all((lower >= 0) & (lower <= 1))


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("noise", [1e-4, 0.0135, 0.05])
def test_without_noise_the_sampling_alone_remains(noise, relation):
    # σ → 0: an adversary matters only when drawn, L(p) = p - (1 - w_0), w_0 = (1 - q)^(k T).
    for size, rounds in ((1, 1), (3, 1), (1, 2)):
        lower = tradeoff(user(noise, 0.125, rounds), ThreatModel(relation=relation), size).lower(
            [0.7, 0.9, 0.99]
        )
        none_drawn = (1 - 0.125) ** (size * rounds)
        assert lower == pytest.approx(np.array([0.7, 0.9, 0.99]) - (1 - none_drawn), abs=1e-5)


@pytest.mark.parametrize("relation", list(Relation))
def test_sixty_curves_take_two_seconds(relation):
    curve_of.cache_clear()
    start = time.process_time()
    for size in range(1, 61):
        tradeoff(user(1.8, 0.1, 3), ThreatModel(relation=relation), size)
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_the_largest_curves_need_less_than_a_gigabyte():
    code = (
        "from fedproof.accounting.tradeoff import curve_of; from fedproof.progress import peak_memory\n"
        "from fedproof.mechanisms import *; from fedproof.threat import Relation\n"
        "for noise in (0.3, 7.0):\n"
        "    query = Query(noise_multiplier=noise, sampling=Poisson(probability=0.1), count=2000)\n"
        "    curve_of((query,), Relation.REPLACE, 500, 40.0)\n"
        "print(peak_memory())"
    )
    done = finished([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1e9


def test_production_scale_takes_seconds():
    # 4 million users, cohort 6,500, 2,000 rounds, noise multiplier 7: at most 5 s for one curve.
    mechanism = user(7.0, 6500 / 4e6, 2000)
    for size in (1, 1000):
        curve_of.cache_clear()
        start = time.process_time()
        curve = tradeoff(mechanism, ThreatModel(relation="replace"), size)
        assert time.process_time() - start < 5  # of one core: others may be busy
        assert np.all(np.isfinite(curve.lower(PROBABILITIES)))


# --- bad input ---------------------------------------------------------------------------------------------


def test_nothing_is_said_where_a_cohort_could_not_be_drawn_without_the_adversaries():
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=FixedSize(cohort=2, users=10))
    curves = [tradeoff(mechanism, ThreatModel(relation="join"), size) for size in (8, 9, 11)]
    assert curves[0].lower(0.99) > 0
    for curve in curves[1:]:
        assert curve.lower([0.0, 0.5, 1.0]).tolist() == [0.0, 0.0, 0.0]
        assert curve.upper([0.0, 0.5, 1.0]).tolist() == [1.0, 1.0, 1.0]


def test_more_adversaries_than_users_are_refused():
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=FixedSize(cohort=2, users=10))
    with pytest.raises(ValueError, match="size = 11 must be at most the number of users = 10"):
        tradeoff(mechanism, ThreatModel(), 11)


def test_the_unit_must_be_the_mechanisms():
    with pytest.raises(ValueError, match="unit = 'instance' must be 'user'"):
        tradeoff(user(1.0, 0.1, 1), ThreatModel(unit="instance"), 1)


def test_relation_names_match_dp_accounting():
    assert {"ADD_OR_REMOVE_ONE", "REPLACE_ONE"} <= {relation.name for relation in NeighboringRelation}


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"rounds": 10**9}, 2, "1000000000 releases in sequence spread over more than 8388608 losses"),
        ({"rounds": 10**30}, 2, "rounds must be a whole number below 2"),
        ({}, 10**8, "size = 100000000 must be at most 10000000"),
    ],
)
def test_numbers_without_end_are_refused_before_memory_is_asked_for(changes, size, message):
    described = {"rounds": 3, "noise_multiplier": 1.5, "sampling": Poisson(probability=0.2)} | changes
    with pytest.raises(ValueError, match=message):
        tradeoff(UserFedAvg(**described), ThreatModel(), size)


def test_more_users_than_people_are_refused():
    with pytest.raises(ValueError, match="must be at most 10000000000, more than there are people"):
        FixedSize(cohort=10**10, users=10**12)
