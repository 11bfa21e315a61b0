"""Planning across mechanisms: what certificates need is exact, what is expected of them is only that."""

from dataclasses import replace

import numpy as np
import pytest

from fedproof.accounting import account
from fedproof.certificates import certify
from fedproof.certificates.choosing import (
    Known,
    Question,
    choose,
    expected_certified,
    spread,
    votes_needed,
)
from fedproof.certificates.tight import exact_sizes
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, OneRound, Partition, UserFedAvg
from fedproof.mechanisms.uploads import Anchors
from fedproof.threat import ThreatModel

QUESTION = Question(size=4, threat=ThreatModel(), replicas=200)
MECHANISMS = [
    Partition(groups=200),
    Partition(),
    Bagging(rounds=1, sampling=FixedSize(cohort=3, users=100)),
    CohortOnce(rounds=1, sampling=FixedSize(cohort=3, users=100), noise_multiplier=0.5),
]


def ballots(right, models, classes):
    """Scores of models of which `right` vote for class 1 and all others for class 0, the first of equals."""
    scores = np.zeros((models, 1, classes))
    scores[:right, :, 1] = scores[right:, :, 0] = 1
    return scores


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=["partition", "one vote", "alone", "hybrid"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("relation", ["replace", "join"])
def test_the_votes_needed_are_the_fewest_that_certify(mechanism, classes, relation):
    if relation == "join" and getattr(mechanism, "noise_multiplier", 0):
        pytest.skip("cohorts of a fixed size with noise are certified for replace only")
    question = Question(size=4, threat=ThreatModel(relation=relation), replicas=200)
    votes = votes_needed(mechanism, question, 200, classes)

    def certified(right):
        found = certify(
            ballots(right, 200, classes), [1], mechanism=mechanism, threat=question.threat, method="vote"
        )
        return found.certified_accuracy([4])[0]

    assert certified(votes) == 1
    assert certified(votes - 1) == 0


def test_what_no_share_of_votes_certifies_is_expected_to_certify_nothing():
    mechanism = Partition(groups=8)
    assert votes_needed(mechanism, QUESTION, 8, 2) is None
    assert expected_certified(spread(0.9), None, 8) == 0


def test_the_estimate_is_right_where_its_assumption_holds():
    generator = np.random.default_rng(0)
    chances, models = spread(0.8, points=1000), 200
    right = generator.random((models, 1000)) < chances
    scores = np.stack([~right, right], axis=2).astype(float)
    mechanism = Partition(groups=models)
    measured = certify(scores, np.ones(1000, dtype=int), mechanism=mechanism, method="vote")
    votes = votes_needed(mechanism, QUESTION, models, 2)
    expected = expected_certified(chances, votes, models)
    assert measured.certified_accuracy([4])[0] == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(1000))
    assert 0.5 < expected < 0.95


@pytest.mark.parametrize("correlation", [0.05, 0.4, 0.8])
def test_the_spread_has_the_accuracy_and_the_correlation_it_is_given(correlation):
    chances = spread(0.7, correlation, points=20_000)
    assert chances.mean() == pytest.approx(0.7, abs=1e-3)
    assert chances.var() == pytest.approx(correlation * 0.7 * 0.3, rel=1e-2)


def test_options_are_ranked_and_privacy_is_kept():
    known = Known(units=500, num_classes=10, shares={2: spread(0.6), 5: spread(0.8)})
    found = choose(known, Question(size=10, threat=ThreatModel()))
    estimates = [option.estimate for option in found]
    assert estimates == sorted(estimates, reverse=True)
    assert {type(option.mechanism) for option in found} == {Bagging, Partition}
    assert not any(option.noisy for option in found)
    private = choose(known, Question(size=10, threat=ThreatModel(), epsilon=2.0, delta=1e-3, rounds=3))
    assert {type(option.mechanism) for option in private} == {CohortOnce, UserFedAvg}
    for option in private:
        assert option.noisy
        assert account(option.mechanism, 1e-3, ["pld"])["pld"] <= 2.0 * (1 + 1e-9)


def test_one_user_behind_a_model_is_one_vote():
    known = Known(units=500, num_classes=10, shares={1: spread(0.6)})
    joined, replaced = (
        next(
            option
            for option in choose(known, Question(size=10, threat=ThreatModel(relation=relation)))
            if isinstance(option.mechanism, Partition)
        )
        for relation in ("join", "replace")
    )
    assert joined.mechanism.apart
    assert joined.models == 500
    assert joined.needed < replaced.needed


def test_one_round_is_planned_as_votes_with_noise():
    question = Question(size=10, threat=ThreatModel(), epsilon=0.5, delta=5e-4)
    chances, generator = spread(0.6, points=1000), np.random.default_rng(0)
    found = choose(Known(units=500, num_classes=10, shares={1: chances, 5: spread(0.8)}), question)
    (option,) = (option for option in found if isinstance(option.mechanism, OneRound))
    assert account(option.mechanism, 5e-4, ["pld"])["pld"] <= 0.5
    assert (option.cohort, option.models, option.noisy) == (1, 1, False)
    noise = np.sqrt(2 * 9) * option.mechanism.noise_multiplier * generator.normal(size=1000)
    leads = 2 * generator.binomial(500, chances) - 500 + noise
    sizes = exact_sizes(np.stack([leads, np.zeros(1000)], axis=1), question.threat.relation)[1]
    measured = ((sizes >= 10) & (leads > 0)).mean()
    assert option.estimate == pytest.approx(measured, abs=5 * 0.5 / np.sqrt(1000))
    assert (
        0.2 < option.estimate < expected_certified(chances, votes_needed(Partition(), question, 500, 10), 500)
    )
    joined = replace(question, threat=ThreatModel(relation="join"))
    assert votes_needed(option.mechanism, joined, 500, 10) < votes_needed(option.mechanism, question, 500, 10)


def test_noise_on_a_lead_is_what_the_plan_takes_it_for():
    # Even weights on one of ten of the anchors: the noise of the release, read through them.
    upload = Anchors(anchors=200, classes=10)
    mechanism = OneRound(upload=upload, noise_multiplier=5.0)
    normal = np.random.default_rng(0).normal(size=(4000, 20, 2))  # twenty near anchors, two classes
    scale = mechanism.noise_multiplier * upload.norm
    leads = scale * (normal[:, :, 0] - normal[:, :, 1]).mean(axis=1)
    assert leads.std() == pytest.approx(5 * np.sqrt(2 * 9), rel=5 / np.sqrt(2 * 4000))


def test_instances_are_planned_for_alike():
    threat = ThreatModel(unit="instance")
    found = choose(Known(units=300, num_classes=2, shares={3: spread(0.8)}), Question(size=5, threat=threat))
    assert {option.mechanism.unit for option in found} == {"instance"}


def test_with_privacy_instances_are_drawn_by_the_hybrid():
    question = Question(size=5, threat=ThreatModel(unit="instance"), epsilon=1.0, delta=1e-3, rounds=4)
    known = Known(units=300, num_classes=2, shares={3: spread(0.8), 10: spread(0.9)})
    for option in choose(known, question):
        assert isinstance(option.mechanism, CohortOnce)
        assert (option.mechanism.unit, option.mechanism.rounds, option.noisy) == ("instance", 4, True)
        assert account(option.mechanism, 1e-3, ["pld"])["pld"] <= 1.0 * (1 + 1e-9)


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="cohort = 20 must be at most the number of units = 10"):
        Known(units=10, num_classes=2, shares={20: spread(0.8)})
    with pytest.raises(ValueError, match="shares are empty"):
        Known(units=10, num_classes=2, shares={})
    with pytest.raises(ValueError, match=r"accuracy = 1\.5 must be in"):
        spread(1.5)
