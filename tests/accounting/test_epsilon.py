"""ε under every accountant: the paper's tables, reference readings, dp_accounting's own answers."""

import math
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedproof.accounting import account, account_delta, ensemble_account, event_of, queries_of, user_accounts
from fedproof.accounting.epsilon import (
    PAPER_ORDERS,
    dopamine_epsilon,
    paper_epsilon,
    pld_delta,
    pld_epsilon,
    poisson_rdp,
    rdp,
    rdp_epsilon,
    round_up,
)
from fedproof.mechanisms import (
    Everyone,
    FedAvg,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.threat import Relation
from paper.published import Published

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def user(noise, probability, rounds):
    return UserFedAvg(rounds=rounds, noise_multiplier=noise, sampling=Poisson(probability=probability))


def test_every_published_epsilon_to_four_decimals():
    cases = Published.read(EXPERIMENTS).budgets()
    assert len(cases) == 81
    for case in cases:
        assert round(paper_epsilon(case.mechanism, case.delta), 4) == case.epsilon, case


@pytest.mark.parametrize("order", [2, 3, 7, 20, 63, 256])
@pytest.mark.parametrize(("noise", "probability"), [(0.3, 0.5), (0.5, 0.1), (1.8, 0.1), (50.0, 0.001)])
def test_renyi_divergence_is_the_binomial_sum_at_integer_orders(order, noise, probability):
    terms = [
        mpmath.binomial(order, j)
        * mpmath.mpf(probability) ** j
        * mpmath.mpf(1 - probability) ** (order - j)
        * mpmath.exp(mpmath.mpf(j * (j - 1)) / (2 * mpmath.mpf(noise) ** 2))
        for j in range(order + 1)
    ]
    with mpmath.workdps(50):
        exact = float(mpmath.log(mpmath.fsum(terms)) / (order - 1))
    assert poisson_rdp(probability, noise, order) == pytest.approx(exact, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("probability", [1e-8, 1e-4, 0.1, 0.9])
@pytest.mark.parametrize("noise", [0.3, 1.0, 6.0, 1000.0])
def test_renyi_divergences_are_rounded_up(probability, noise):
    q, variance = mpmath.mpf(probability), mpmath.mpf(noise) ** 2
    orders = [2, 3, 9, 33, 128]
    found = rdp(user(noise, probability, 1000), [float(order) for order in orders])
    with mpmath.workdps(50):
        for order, divergence in zip(orders, found, strict=True):
            moment = mpmath.fsum(
                mpmath.binomial(order, j)
                * q**j
                * (1 - q) ** (order - j)
                * mpmath.exp(mpmath.mpf(j * (j - 1)) / (2 * variance))
                for j in range(order + 1)
            )
            exact = 1000 * mpmath.log(moment) / (order - 1)
            assert exact <= divergence <= exact * (1 + mpmath.mpf(1e-10)) + 1e-10


@pytest.mark.parametrize("order", [1.5, 2, 9, 40])
@pytest.mark.parametrize(("noise", "probability"), [(0.4, 0.5), (1.0, 0.99), (2.0, 0.1), (20.0, 0.01)])
def test_the_renyi_divergence_of_a_replaced_unit_is_the_integral(order, noise, probability):
    q, variance = mpmath.mpf(probability), mpmath.mpf(noise) ** 2

    def density(z):
        def mixed(x):
            return (1 - q) + q * mpmath.exp((2 * x - 1) / (2 * variance))

        return mixed(z) ** order * mixed(-z) ** (1 - order) * mpmath.exp(-(z**2) / (2 * variance))

    # The trapezoidal rule misses exp(-2π a / step) of a function that is analytic up to a distance of a from
    # the real line, here π variance, and exp(-2 (π noise / step)²) of a normal density.
    step = min(noise / 2, noise**2 / 4)
    with mpmath.workdps(30):
        places = range(round(-14 * noise / step), round((2 * order + 14 * noise) / step) + 1)
        moment = step * mpmath.fsum(density(mpmath.mpf(place * step)) for place in places)
        moment /= mpmath.sqrt(2 * mpmath.pi * variance)
        exact = float(mpmath.log(moment) / (order - 1))
    assert poisson_rdp(probability, noise, order, replaced=True) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("probability", [0.01, 0.5, 1.0])
def test_beside_cohorts_of_fixed_size_a_unit_is_replaced_in_every_query(probability):
    """Adding a unit to a Poisson sample, and replacing it in the other query, is the ε of nothing."""
    drawn = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(1.0))
    hardly = dp.SampledWithoutReplacementDpEvent(10**6, 1, dp.GaussianDpEvent(100.0))
    mixed = dp.ComposedDpEvent([dp.SelfComposedDpEvent(drawn, 3), hardly])
    spent = account(mixed, 1e-5, ["rdp", "pld"])
    assert spent["pld"] <= spent["rdp"] <= 4 * spent["pld"]


@pytest.mark.parametrize("replaced", [False, True])
def test_divergences_of_little_noise_are_bounded_without_an_integral(replaced, monkeypatch):
    """The bound lies above the integral, and close to it where it takes its place."""
    asked = [(q, 0.3, order) for q in (1e-6, 0.1, 0.9) for order in (1.5, 20.0, 500.0)]
    exact = [poisson_rdp(*each, replaced) for each in asked]
    monkeypatch.setattr("fedproof.accounting.epsilon._MOST_STEPS", 0)
    bounds = [poisson_rdp.__wrapped__(*each, replaced) for each in asked]
    assert all(bound >= divergence * (1 - 1e-12) for bound, divergence in zip(bounds, exact, strict=True))
    assert bounds[-1] <= 1.01 * exact[-1]
    monkeypatch.undo()
    assert math.isfinite(poisson_rdp(0.1, 1e-3, 8192.0, replaced))


def test_the_papers_orders():
    assert len(PAPER_ORDERS) == 99 + 52
    assert (PAPER_ORDERS[0], PAPER_ORDERS[98], PAPER_ORDERS[99], PAPER_ORDERS[-1]) == (1.1, 10.9, 12.0, 63.0)


@pytest.mark.parametrize(
    ("mechanism", "delta", "epsilon"),
    [
        (user(1.8, 0.1, 3), 0.0029, 0.2113),
        (user(6.0, 0.2, 1), 0.0029, 0.0364),
        (user(2.0, 10 / 805, 3), 1e-6, 0.0739),
        (InstanceFedAvg(rounds=1, local_steps=100, noise_multiplier=4, batch_probability=0.05), 1e-5, 0.4618),
    ],
)
def test_reference_readings_of_the_loss_distribution(mechanism, delta, epsilon):
    assert pld_epsilon(mechanism, delta) == pytest.approx(epsilon, rel=0.005)


def test_cost_of_the_whole_ensemble():
    cifar = ensemble_account(user(6.0, 0.2, 1), 0.0029, replicas=70)
    assert cifar["paper"] == pytest.approx(10.15, rel=0.002)
    assert cifar["pld"] == pytest.approx(0.58, rel=0.02)
    mnist = ensemble_account(user(1.8, 0.1, 3), 0.0029, replicas=1000)
    assert mnist["paper"] == pytest.approx(629.8, rel=0.001)
    assert mnist["pld"] == pytest.approx(13.7, rel=0.02)


@settings(derandomize=True, deadline=None, max_examples=12)
@given(
    noise=st.floats(0.6, 8),
    probability=st.floats(0.01, 1.0),
    rounds=st.integers(1, 100),
    log_delta=st.floats(-8, -2),
)
def test_one_unit_is_dp_accountings_own_answer(noise, probability, rounds, log_delta):
    delta = 10**log_delta
    mechanism = user(noise, probability, rounds)
    reference = PLDAccountant().compose(event_of(mechanism)).get_epsilon(delta)
    assert pld_epsilon(mechanism, delta) == pytest.approx(reference, rel=5e-3, abs=1e-3)


@pytest.mark.parametrize(("cohort", "users"), [(10, 10), (20, 200), (1, 50)])
@pytest.mark.parametrize("noise", [0.7, 2.0, 9.0])
def test_the_event_of_fixed_cohorts_is_for_the_distance_of_two_updates(cohort, users, noise):
    """Of a replaced user what it sent is taken away and something else added: two clip norms."""
    sampling = FixedSize(cohort=cohort, users=users)
    mechanism = UserFedAvg(rounds=3, noise_multiplier=noise, sampling=sampling)
    theirs = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    epsilon = theirs.compose(event_of(mechanism)).get_epsilon(1e-3)
    assert epsilon >= account(mechanism, 1e-3, ["pld"])["pld"]
    if cohort == users:  # the Gaussian mechanism: H_α is known in closed form
        shift = 2 * math.sqrt(3) / noise
        far = norm.cdf(-shift / 2 - epsilon / shift)
        assert norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * far <= 1e-3


@settings(derandomize=True, deadline=None, max_examples=12)
@given(noise=st.floats(0.6, 8), probability=st.floats(0.01, 0.9), rounds=st.integers(1, 100))
def test_accountants_are_ordered(noise, probability, rounds):
    epsilon = account(user(noise, probability, rounds), delta=1e-5)
    assert epsilon["pld"] <= epsilon["rdp"] + 1e-9
    assert epsilon["rdp"] <= epsilon["paper"] + 1e-9


def test_the_order_grid_sets_no_floor():
    # With much noise the paper's grid stops at order 63: log(1/δ)/62 is the least it can say.
    mechanism = user(50.0, 0.01, 1)
    floor = math.log(1e6) / 62
    assert paper_epsilon(mechanism, 1e-6) >= floor
    assert rdp_epsilon(mechanism, 1e-6) < 0.05 * floor


def test_delta_and_epsilon_invert_each_other():
    mechanism = user(1.8, 0.1, 3)
    assert pld_delta(mechanism, pld_epsilon(mechanism, 1e-4)) == pytest.approx(1e-4, rel=1e-6)


@pytest.mark.parametrize("accountant", ["paper", "rdp", "pld"])
def test_delta_for_an_epsilon_inverts_every_accountant(accountant):
    mechanism = user(1.8, 0.1, 30)
    epsilon = account(mechanism, 1e-4, [accountant])[accountant]
    assert account_delta(mechanism, epsilon)[accountant] == pytest.approx(1e-4, rel=1e-3)


def test_fedsgd_against_dopamine():
    # Published: 0.87 against 2.70 at T=200, σ=3, p=0.4, q=10/30; its δ is not stated, the ratio is ~3.1.
    mechanism = InstanceFedSGD(
        rounds=200, noise_multiplier=3.0, sampling=FixedSize(cohort=10, users=30), batch_probability=0.4
    )
    ratio = dopamine_epsilon(mechanism, 1e-5) / paper_epsilon(mechanism, 1e-5)
    assert ratio == pytest.approx(2.70 / 0.87, rel=0.02)
    sound = account(mechanism, 1e-5)
    assert sound["paper"] < sound["pld"] < dopamine_epsilon(mechanism, 1e-5)


def test_without_replacement_is_the_propositions_bound():
    # Its own formula at one order, by hand: α = 2 leaves the pair term only.
    noise, q, delta = 2.0, 0.1, 1e-5
    mechanism = user(noise, q, 1)
    e2 = 2 / (2 * noise**2)
    rdp_two = math.log(1 + q**2 * min(4 * math.expm1(e2), 2 * math.exp(e2)))
    at_two = rdp_two + math.log(1 / 2) - (math.log(delta) + math.log(2)) / 1
    epsilon = account(mechanism, delta, ["rdp-without-replacement"])["rdp-without-replacement"]
    assert epsilon <= at_two
    assert (
        account(user(noise, q, 50), delta, ["rdp-without-replacement"])["rdp-without-replacement"] > epsilon
    )


def test_per_user_accounts_and_parallel_composition():
    declared = InstanceFedAvg(rounds=3, local_steps=10, noise_multiplier=3, batch_probability=0.1)
    by_size = replace(declared, by_size=True)
    users = {"user_sizes": [500, 1000, 1000, 40], "batch_size": 50, "participation": [3, 3, 1, 0]}
    spent = user_accounts(by_size, 1e-5, **users)
    assert spent[0] > spent[1] > spent[2] > spent[3] == 0
    assert max(spent) == account(declared, 1e-5)["pld"]  # the smallest user decides: 50 / 500
    with pytest.raises(ValueError, match=r"batch_probability = 0\.1 must be at least"):
        user_accounts(by_size, 1e-5, **users | {"user_sizes": [499, 1000, 1000, 40]})
    # Where the chance is declared, it is everybody's: a large user is not drawn less often.
    spent = user_accounts(declared, 1e-5, **users)
    assert spent[0] == spent[1] == max(spent) > spent[2] > spent[3] == 0


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (Flat(), 2.0),
        (PerLayer(num_layers=4), 1.0),
        (Median(), 2.0),
        (Quantile(count_noise_std=1.0), (2.0**-2 + 2.0**-2) ** -0.5),
    ],
)
def test_clipping_changes_the_effective_noise(clipping, expected):
    mechanism = UserFedAvg(
        rounds=1, noise_multiplier=2.0, sampling=Poisson(probability=0.1), clipping=clipping
    )
    assert mechanism.queries[0].noise_multiplier == pytest.approx(expected)
    assert bool(mechanism.unmet(Relation.JOIN)) == isinstance(clipping, Median)


# --- events -------------------------------------------------------------------------------------------------


def test_events_of_other_libraries_are_read():
    gaussian = dp.GaussianDpEvent(2.0)
    event = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, gaussian), 3),
            dp.PoissonSampledDpEvent(0.1, gaussian),
        ]
    )
    assert queries_of(event) == user(2.0, 0.1, 4).queries
    fixed = dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(100, 10, gaussian), 2)
    assert queries_of(fixed)[0].sampling == FixedSize(cohort=10, users=100)
    twice = dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(gaussian, 4))
    assert queries_of(twice)[0].noise_multiplier == pytest.approx(1.0)


@pytest.mark.parametrize("sampling", [Poisson(probability=0.2), FixedSize(cohort=3, users=9), Everyone()])
def test_a_mechanism_and_its_event_are_the_same_queries(sampling):
    mechanism = UserFedAvg(rounds=5, noise_multiplier=1.5, sampling=sampling)
    read = 0.75 if sampling.closed else 1.5  # an event has noise over the sensitivity, replaced or added
    expected = replace(mechanism, noise_multiplier=read)
    assert queries_of(event_of(mechanism)) == expected.queries


@pytest.mark.parametrize(
    "event",
    [
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.9),
        dp.SampledWithoutReplacementDpEvent(100, 10.9, dp.GaussianDpEvent(1.0)),
        dp.SelfComposedDpEvent(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -3), -2),
    ],
)
def test_counts_of_events_are_whole_and_never_cut_off(event):
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        account(event, 1e-5)


def test_several_queries_compose():
    both = dp.ComposedDpEvent(
        [
            dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5)),
            dp.PoissonSampledDpEvent(0.3, dp.GaussianDpEvent(3.0)),
        ]
    )
    reference = PLDAccountant().compose(both).get_epsilon(1e-4)
    assert pld_epsilon(both, 1e-4) == pytest.approx(reference, rel=5e-3)


def test_queries_of_very_different_width_share_a_grid():
    # The grid of the first alone would have 10^12 cells over the losses of the second.
    narrow = dp.PoissonSampledDpEvent(1e-6, dp.GaussianDpEvent(1000.0))
    wide = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.5))
    both = pld_epsilon(dp.ComposedDpEvent([dp.SelfComposedDpEvent(narrow, 1000), wide]), 1e-4)
    alone = pld_epsilon(wide, 1e-4)
    assert alone * (1 - 1e-5) <= both <= alone * 1.05  # another grid rounds differently


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp.LaplaceDpEvent(1.0), "LaplaceDpEvent cannot be analysed"),
        (dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)), "LaplaceDpEvent cannot be analysed"),
        (dp.NonPrivateDpEvent(), "NonPrivateDpEvent cannot be analysed"),
        (dp.GaussianDpEvent(0.0), "noise_multiplier 0"),
        (dp.NoOpDpEvent(), "releases nothing"),
        (
            dp.PoissonSampledDpEvent(0.1, dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))),
            "must consist of",
        ),
        (FedAvg(rounds=1, sampling=Everyone()), "FedAvg adds no noise"),
    ],
)
def test_what_cannot_be_analysed_is_refused(event, words):
    with pytest.raises(dp.UnsupportedEventError, match=words):
        account(event, 1e-5)


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_delta_must_be_a_probability(delta):
    with pytest.raises(ValueError, match=r"delta = .* must be in \(0, 1\)"):
        account(user(1.0, 0.1, 1), delta)


def test_an_unknown_accountant_is_named():
    with pytest.raises(ValueError, match="accountant = 'prv' must be one of paper"):
        account(user(1.0, 0.1, 1), 1e-5, ["prv"])


@pytest.mark.parametrize(
    "build",
    [
        lambda: user(0.0, 0.1, 1),
        lambda: user(1.0, 0.0, 1),
        lambda: user(1.0, 1.1, 1),
        lambda: user(1.0, 0.1, 0),
        lambda: FixedSize(cohort=11, users=10),
        lambda: InstanceFedSGD(
            rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.5), batch_probability=0.1
        ),
    ],
)
def test_impossible_mechanisms_are_refused(build):
    with pytest.raises(ValueError, match="must be"):
        build()


@given(st.floats(0, 1e4))
@settings(derandomize=True)
@example(234.42837894040002)  # one digit more than ten, which a product with 10^10 drops
@example(1e300)
def test_epsilon_is_rounded_up(value):
    assert value <= round_up(value) <= value + 1.1e-10
