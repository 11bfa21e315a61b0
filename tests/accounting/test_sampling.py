"""Cohorts drawn once: sampling alone and the hybrid, against closed forms and enumerated federations."""

import copy
import itertools
import math
import pickle

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent, UnsupportedEventError
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb, ndtr

from fedproof.accounting import account, event_of, queries_of, tradeoff
from fedproof.accounting.sampling import adversaries_drawn, joined_drawn
from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates import certify_means
from fedproof.mechanisms import Bagging, CohortOnce, Everyone, FixedSize, Poisson, Query, UserFedAvg
from fedproof.threat import Relation, ThreatModel

PROBABILITIES = np.linspace(0, 1, 201)
INNER = PROBABILITIES[1:-1]


def once(sampling, noise=0.0, rounds=1):
    if not noise:
        return Bagging(rounds=rounds, sampling=sampling)
    return CohortOnce(rounds=rounds, noise_multiplier=noise, sampling=sampling)


def fixed(cohort, users):
    return FixedSize(cohort=cohort, users=users)


def lower(mechanism, relation, size, at=PROBABILITIES):
    return tradeoff(mechanism, ThreatModel(relation=relation), size).lower(at)


# --- how many are drawn ------------------------------------------------------------------------------------


def exact_hypergeometric(users, size, cohort, drawn):
    def log_choose(n, k):
        return mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)

    return mpmath.exp(
        log_choose(size, drawn) + log_choose(users - size, cohort - drawn) - log_choose(users, cohort)
    )


def check_law(drawn, exact, none):
    """Every weight within its stated error, w_0 rounded down and 1 - w_0 up, both by a little only."""
    assert drawn.weights.sum() == pytest.approx(1, abs=1e-12)
    chosen = np.unique(np.linspace(0, len(drawn.numbers) - 1, 5).astype(int))
    for index in chosen:
        weight = exact(int(drawn.numbers[index]))
        assert abs(mpmath.mpf(float(drawn.weights[index])) / weight - 1) <= drawn.rounding + drawn.left_out
    assert drawn.rounding < 1e-10
    assert none * (1 - mpmath.mpf(1e-9)) - 1e-16 <= drawn.none <= none
    assert 1 - none <= drawn.any <= (1 - none) * (1 + mpmath.mpf(1e-10)) + 1e-16


@settings(derandomize=True, deadline=None, max_examples=150)
@given(log_users=st.floats(0, 10), log_size=st.floats(0, 7), log_cohort=st.floats(0, 10))
def test_the_law_of_a_cohort_to_fifty_digits(log_users, log_size, log_cohort):
    users = int(10**log_users)
    size, cohort = min(users, int(10**log_size)), min(users, int(10**log_cohort))
    with mpmath.workdps(50):
        none = exact_hypergeometric(users, size, cohort, 0) if size + cohort <= users else mpmath.mpf(0)
        check_law(
            adversaries_drawn(fixed(cohort, users), size),
            lambda drawn: exact_hypergeometric(users, size, cohort, drawn),
            none,
        )


@pytest.mark.parametrize("users", [10**6, 10**7, 10**8, 10**9, 10**10])
@pytest.mark.parametrize(
    ("size", "cohort"), [(1, 1), (3, 1), (1, 1000), (20, 10), (10**5, 10**5), (7, 10**6)]
)
def test_few_adversaries_among_many_users(users, size, cohort):
    with mpmath.workdps(50):
        none = exact_hypergeometric(users, size, cohort, 0) if size + cohort <= users else mpmath.mpf(0)
        drawn = adversaries_drawn(fixed(cohort, users), size)
        assert 1 - none <= drawn.any <= (1 - none) * (1 + mpmath.mpf(1e-12)) + 1e-17
        lost = 1 - mpmath.mpf(float(lower(once(fixed(cohort, users)), "replace", size, 0.5))) - 0.5
        assert min(0.5, 1 - none) - 1e-15 <= lost <= (1 - none) * (1 + mpmath.mpf(1e-9)) + 1e-15
        joined = joined_drawn(fixed(cohort, users), size)  # also beyond the largest federation
        come = exact_hypergeometric(users + size, size, cohort, 0)
        assert 1 - come <= joined.any <= (1 - come) * (1 + mpmath.mpf(1e-12)) + 1e-17


@settings(derandomize=True, deadline=None, max_examples=150)
@given(log_size=st.floats(0, 7), log_probability=st.floats(-18, -1e-9))
def test_the_law_of_poisson_sampling_to_fifty_digits(log_size, log_probability):
    size, probability = int(10**log_size), 10**log_probability
    with mpmath.workdps(50):
        q = mpmath.mpf(probability)
        check_law(
            adversaries_drawn(Poisson(probability=probability), size),
            lambda drawn: mpmath.exp(
                mpmath.log(mpmath.binomial(size, drawn))
                + drawn * mpmath.log(q)
                + (size - drawn) * mpmath.log1p(-q)
            ),
            (1 - q) ** size,
        )


def test_the_largest_cohorts_take_no_memory():
    # A number for each member would be 80 gigabytes.
    found = lower(once(fixed(10**10 - 10**7, 10**10)), "join", 5, [0.5, 1.0])
    assert np.all(found <= 1e-14)
    noisy = lower(once(fixed(10**9, 10**10), noise=20.0, rounds=4), "replace", 10**4, INNER)
    assert np.all(noisy < 1e-3)


def test_a_chance_in_ten_billion_is_counted():
    # One of 10^10 users, cohort one: half of the chance would be twice the promise.
    found = lower(once(fixed(1, 10**10), noise=1e-3), "replace", 1, [0.5, 0.9])
    assert np.all(np.array([0.5, 0.9]) - found >= 1e-10)
    assert np.all(np.array([0.5, 0.9]) - found <= 1.2e-10)


# --- sampling alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "none"),
    [
        (fixed(5, 1000), comb(980, 5) / comb(1000, 5)),
        (fixed(10, 1000), comb(980, 10) / comb(1000, 10)),
        (Poisson(probability=0.01), 0.99**20),
    ],
)
def test_replace_is_the_line_of_the_theory(sampling, none):
    found = lower(once(sampling), "replace", 20)
    assert found == pytest.approx(np.maximum(0, PROBABILITIES - (1 - none)), abs=1e-9)


def test_a_lead_of_twice_the_chance_of_a_draw_is_certified_and_no_less():
    # F_A - F_B > 2 (1 - w_0) with w_0 = C(980, 5)/C(1000, 5) = 0.9037 (theory.md, section 3)
    gap = 2 * (1 - comb(980, 5) / comb(1000, 5))
    means = [[0.5 + part / 2, 0.5 - part / 2] for part in (gap * 1.001, gap * 0.999)]
    sizes = certify_means(means, mechanism=once(fixed(5, 1000)), method="vote").certified_size
    assert sizes == (20, 19)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(data=st.data())
def test_no_training_beats_the_line_of_replace(exact_curve, data):
    """Every cohort of a tiny federation may end in any of four models, and in any other when poisoned."""
    users = data.draw(st.integers(2, 5))
    cohort, size = data.draw(st.integers(1, users)), data.draw(st.integers(1, users))
    cohorts = list(itertools.combinations(range(users), cohort))
    outcome = st.integers(0, 3)
    clean, poisoned = np.zeros(4), np.zeros(4)
    for members in cohorts:
        model = data.draw(outcome)
        clean[model] += 1 / len(cohorts)
        poisoned[data.draw(outcome) if min(members) < size else model] += 1 / len(cohorts)
    exact = exact_curve(clean, poisoned, PROBABILITIES)
    assert np.all(lower(once(fixed(cohort, users)), "replace", size) <= exact + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(data=st.data())
def test_no_training_beats_the_curve_of_join_in_either_reading(exact_curve, data):
    users, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    cohort = data.draw(st.integers(1, users))
    outcome = st.integers(0, 3)
    everybody = list(itertools.combinations(range(users + size), cohort))
    honest = [members for members in everybody if max(members) < users]
    without, joined = np.zeros(4), np.zeros(4)
    for members in everybody:
        model = data.draw(outcome)
        joined[model] += 1 / len(everybody)
        if members in honest:
            without[model] += 1 / len(honest)
    come = lower(once(fixed(cohort, users)), "join", size)
    assert np.all(come <= exact_curve(without, joined, PROBABILITIES) + 1e-9)
    gone = lower(once(fixed(cohort, users + size)), "join", size)
    assert np.all(gone <= exact_curve(joined, without, PROBABILITIES) + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    users=st.integers(2, 300),
    share=st.floats(0, 1),
    size=st.integers(0, 40),
    relation=st.sampled_from(Relation),
)
def test_curves_are_convex_increasing_and_fall_with_the_size(users, share, size, relation):
    mechanism = once(fixed(max(1, int(share * users)), users))
    size = min(size, users - 1)
    now, worse = (lower(mechanism, relation, k) for k in (size, size + 1))
    assert now[0] == 0
    assert np.all(np.diff(now) >= -1e-12)
    assert np.all(np.diff(now, 2) >= -1e-9)
    assert np.all(worse <= now + 1e-12)


@pytest.mark.parametrize("relation", list(Relation))
def test_tangents_lie_below_and_touch(relation):
    curve = tradeoff(once(fixed(3, 50)), ThreatModel(relation=relation), 4)
    for at in (0.05, 0.3, 0.8, 0.999):
        slope, intercept = curve.tangent(np.array([at]))
        assert np.all(slope * PROBABILITIES + intercept <= curve.lower(PROBABILITIES) + 1e-12)
        assert float(slope[0] * at + intercept[0]) == pytest.approx(float(curve.lower(at)), abs=1e-12)


# --- the hybrid --------------------------------------------------------------------------------------------


def test_rounds_on_one_sample_are_one_query():
    mechanism = once(Poisson(probability=0.1), noise=6.0, rounds=9)
    assert queries_of(mechanism) == (Query(noise_multiplier=2.0, sampling=Poisson(probability=0.1), count=1),)
    single = UserFedAvg(rounds=1, noise_multiplier=2.0, sampling=Poisson(probability=0.1))
    assert account(mechanism, 1e-3) == account(single, 1e-3)
    assert event_of(mechanism) == event_of(single)


@pytest.mark.parametrize(("noise", "rounds"), [(1.5, 1), (3.0, 4), (8.0, 25)])
@pytest.mark.parametrize("unit", ["user", "instance"])
def test_one_sample_is_what_dp_accounting_knows_as_many_queries_on_one(noise, rounds, unit):
    mechanism = CohortOnce(
        rounds=rounds,
        noise_multiplier=noise,
        sampling=Poisson(probability=0.01),
        unit=unit,
        pooled=unit == "instance",
    )
    together = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), rounds)  # the sample stays the same
    event = dp.PoissonSampledDpEvent(0.01, together)
    theirs, ours = (
        dp.rdp.RdpAccountant().compose(one).get_epsilon(1e-5) for one in (event, event_of(mechanism))
    )
    assert ours == pytest.approx(theirs, rel=1e-9)
    exact = PLDAccountant().compose(event_of(mechanism)).get_epsilon(1e-5)
    assert account(mechanism, 1e-5, ["pld"])["pld"] == pytest.approx(exact, rel=5e-3)
    assert exact < theirs
    assert queries_of(event) == queries_of(mechanism)


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (Poisson(probability=0.02), "replace"),
        (Poisson(probability=0.02), "join"),
        (fixed(4, 200), "replace"),
    ],
)
def test_without_noise_the_hybrid_is_sampling_alone(sampling, relation):
    for size in (1, 10):
        limit = lower(once(sampling, noise=0.01, rounds=5), relation, size, INNER)
        assert limit == pytest.approx(lower(once(sampling), relation, size, INNER), abs=1e-5)


def test_a_cohort_of_everybody_is_the_gaussian_mechanism():
    found = lower(once(fixed(30, 30), noise=20.0, rounds=4), "replace", 3)
    exact = GaussianTradeoff(shift=2 * 3 * math.sqrt(4) / 20.0).lower(PROBABILITIES)
    assert np.all(found <= exact + 1e-9)
    assert found == pytest.approx(exact, abs=2e-3)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    noise=st.floats(0.3, 20), rounds=st.integers(1, 20), size=st.integers(1, 30), cohort=st.integers(1, 40)
)
def test_noise_never_hurts_and_composition_on_one_sample_beats_sampling_alone(noise, rounds, size, cohort):
    hybrid = lower(once(fixed(cohort, 100), noise, rounds), "replace", size)
    assert np.all(hybrid >= lower(once(fixed(cohort, 100)), "replace", size) - 2e-3)


def two_rounds(contributions, cohorts, weights, noise, edges):
    """Masses of two rounds in which members move by values that depend on the sign of the first output."""
    total = np.zeros((len(edges) - 1, len(edges) - 1))
    negative = edges[1:] <= 0
    for cohort, weight in zip(cohorts, weights, strict=True):
        first, left, right = (sum(contributions[i][part] for i in cohort) / noise for part in range(3))
        one, two_left, two_right = (np.diff(ndtr(edges - mean)) for mean in (first, left, right))
        total += weight * one[:, None] * np.where(negative[:, None], two_left, two_right)
    return total.ravel()


@settings(derandomize=True, deadline=None, max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_no_adaptive_contributions_beat_the_hybrid(exact_curve, kind, data):
    value = st.tuples(*[st.sampled_from([-1.0, -0.5, 0.0, 1.0])] * 3)
    users = data.draw(st.integers(2, 4))
    size = data.draw(st.integers(1, 2))
    noise = data.draw(st.floats(0.5, 3))
    before = data.draw(st.lists(value, min_size=users, max_size=users))
    after = data.draw(st.lists(value, min_size=size, max_size=size)) + before[size:]
    if kind == "poisson":
        chance = data.draw(st.floats(0.1, 0.9))
        cohorts = [c for n in range(users + 1) for c in itertools.combinations(range(users), n)]
        weights = [chance ** len(c) * (1 - chance) ** (users - len(c)) for c in cohorts]
        mechanism = once(Poisson(probability=chance), noise, rounds=2)
    else:
        cohort = data.draw(st.integers(1, users))
        cohorts = list(itertools.combinations(range(users), cohort))
        weights = [1 / len(cohorts)] * len(cohorts)
        mechanism = once(fixed(cohort, users), noise, rounds=2)
    edges = np.concatenate(([-np.inf], np.linspace(-16, 16, 129), [np.inf]))
    clean, poisoned = (two_rounds(values, cohorts, weights, noise, edges) for values in (before, after))
    # Cells coarsen the outputs, which can only raise the exact curve.
    assert np.all(lower(mechanism, "replace", size, INNER) <= exact_curve(clean, poisoned, INNER) + 1e-9)


# --- bad input ---------------------------------------------------------------------------------------------


def test_there_is_no_privacy_without_noise():
    mechanism = once(fixed(2, 10))
    assert event_of(mechanism) == NonPrivateDpEvent()
    with pytest.raises(UnsupportedEventError, match="Bagging has no privacy guarantee"):
        account(mechanism, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling": Everyone()}, "must be Poisson or FixedSize"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0 must be a positive number"),
        ({"pooled": True}, "must be 0 for pooled training"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    values = {"rounds": 1, "sampling": fixed(2, 10), "noise_multiplier": 1.0} | arguments
    with pytest.raises(ValueError, match=message):
        CohortOnce(**values)


def test_a_copy_of_a_description_is_the_same():
    noisy = CohortOnce(rounds=2, sampling=fixed(2, 10), noise_multiplier=1.0)
    assert pickle.loads(pickle.dumps(noisy)) == copy.copy(noisy) == noisy


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="size = 11 must be at most the number of users = 10"):
        lower(once(fixed(2, 10)), "replace", 11)


@pytest.mark.parametrize(("cohort", "users", "size"), [(5, 10, 6), (1, 1, 1), (3, 3, 7), (2, 40, 39)])
def test_nothing_is_said_where_no_cohort_is_left_without_the_adversaries(cohort, users, size):
    """Every cohort that was seen holds an adversary: what always happened need never happen without."""
    threat = ThreatModel(relation="join")
    curve = tradeoff(once(FixedSize(cohort=cohort, users=users)), threat, size)
    assert curve.lower([0.0, 0.5, 1.0]).tolist() == [0.0, 0.0, 0.0]
    assert curve.upper([0.0, 0.5, 1.0]).tolist() == [1.0, 1.0, 1.0]
