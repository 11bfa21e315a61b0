"""The inverse problems: what is planned certifies, and a little less does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.accounting import account
from fedproof.accounting.epsilon import pld_epsilon
from fedproof.certificates import certify_means
from fedproof.certificates.planning import cohort_for_size, noise_for_epsilon, noise_for_size, rounds_for_size
from fedproof.mechanisms import Everyone, FixedSize, Poisson, UserFedAvg
from fedproof.threat import ThreatModel

TENTH = Poisson(probability=0.1)


def certified(noise, sampling, rounds, top, rival, relation):
    mechanism = UserFedAvg(rounds=rounds, noise_multiplier=noise, sampling=sampling)
    means = [[top, rival, 1 - top - rival]]
    return certify_means(means, mechanism=mechanism, threat=ThreatModel(relation=relation)).certified_size[0]


@settings(derandomize=True, deadline=None, max_examples=6)
@given(
    size=st.integers(1, 15),
    top=st.floats(0.7, 0.99),
    probability=st.floats(0.02, 0.5),
    rounds=st.integers(1, 10),
    relation=st.sampled_from(["join", "replace"]),
)
def test_planned_noise_certifies_and_less_does_not(size, top, probability, rounds, relation):
    sampling, rival = Poisson(probability=probability), (1 - top) * 0.9
    threat = ThreatModel(relation=relation)
    noise = noise_for_size(size=size, top=top, rival=rival, sampling=sampling, rounds=rounds, threat=threat)
    assert certified(noise, sampling, rounds, top, rival, relation) >= size
    if noise > 0.01:  # below, sampling alone certifies
        assert certified(noise * 0.995, sampling, rounds, top, rival, relation) < size


def test_without_sampling_the_answer_is_known():
    # Φ(Φ⁻¹(0.975) - 2k/σ) > 1/2 at equal and opposite confidences: σ > 2k / Φ⁻¹(0.975) = 2 · 5 / 1.95996.
    threat = ThreatModel(relation="replace")
    noise = noise_for_size(size=5, top=0.975, rival=0.025, sampling=Everyone(), rounds=1, threat=threat)
    assert noise == pytest.approx(10 / 1.959964, rel=3e-4)


def test_most_rounds_and_largest_cohort_are_the_last_that_certify():
    question = {"size": 10, "top": 0.95, "rival": 0.05, "threat": ThreatModel()}
    rounds = rounds_for_size(sampling=TENTH, noise_multiplier=3.0, **question)
    assert certified(3.0, TENTH, rounds, 0.95, 0.05, "replace") >= 10
    assert certified(3.0, TENTH, rounds + 1, 0.95, 0.05, "replace") < 10
    cohort = cohort_for_size(users=200, noise_multiplier=3.0, rounds=3, fixed=True, **question)
    for members, holds in ((cohort, True), (cohort + 1, False)):
        sampling = FixedSize(cohort=members, users=200)
        assert (certified(3.0, sampling, 3, 0.95, 0.05, "replace") >= 10) is holds


def test_what_cannot_be_certified_is_zero_rounds():
    question = {"size": 50, "top": 0.6, "rival": 0.4, "threat": ThreatModel()}
    assert rounds_for_size(sampling=Everyone(), noise_multiplier=1.0, **question) == 0


@pytest.mark.parametrize("accountant", ["paper", "rdp", "pld"])
def test_noise_for_epsilon_is_the_least_that_is_private(accountant):
    question = {"delta": 1e-5, "sampling": TENTH, "rounds": 20}
    noise = noise_for_epsilon(epsilon=0.8, accountant=accountant, **question)

    def epsilon(noise):
        mechanism = UserFedAvg(rounds=20, noise_multiplier=noise, sampling=TENTH)
        return account(mechanism, 1e-5, [accountant])[accountant]

    assert epsilon(noise) <= 0.8 < epsilon(noise * 0.998)


def test_noise_for_epsilon_inverts_the_accountant():
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=TENTH)
    epsilon = pld_epsilon(mechanism, 0.0029)
    assert noise_for_epsilon(epsilon=epsilon, delta=0.0029, sampling=TENTH, rounds=3) == pytest.approx(
        1.8, rel=1e-3
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size = 0 must be a whole number of at least 1"),
        ({"top": 1.2}, r"top = 1.2 must be in \[0, 1\]"),
        ({"top": 0.05}, "no noise certifies a tie"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_impossible_questions_are_named(change, message):
    question = {"size": 3, "top": 0.9, "rival": 0.05, "sampling": TENTH, "rounds": 3, "threat": ThreatModel()}
    with pytest.raises(ValueError, match=message):
        noise_for_size(**(question | change))


def test_an_unknown_accountant_is_named():
    with pytest.raises(ValueError, match="accountant = 'prv' must be one of"):
        noise_for_epsilon(epsilon=1.0, delta=1e-5, sampling=TENTH, rounds=1, accountant="prv")
