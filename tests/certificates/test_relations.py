"""What ε was proved for, and what one unit is: asked for where it is not known, never guessed."""

import json

import dp_accounting as dp
import numpy as np
import pytest

from fedproof.certificates import ApproximateDP, certify, certify_means, dumps, inefficacy, verify
from fedproof.certificates.comparison import compare
from fedproof.certificates.document import checksum
from fedproof.certificates.privacy import approximate_curve
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, Poisson, UserFedAvg
from fedproof.statements import Statement, sentences
from fedproof.threat import Relation, ThreatModel
from tests.certificates.conftest import JOIN, REPLACE

EVENT = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(4.0)), 3)
ADDED = ApproximateDP(epsilon=0.1, delta=1e-5, relation="join")
REPLACED = ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")
COSTS = np.random.default_rng(0).uniform(0.1, 0.3, size=100)
FIXED = FixedSize(cohort=5, users=50)
EVEN = np.tile(
    [[[0.75, 0.25]] * 3, [[0.25, 0.75]] * 3], (10, 1, 1)
)  # every input abstains, so that no curve is ever asked


def all_three(scores, **given):
    """The same question to every function that takes a guarantee."""
    means = scores.astype(np.float64).mean(axis=0)
    means /= means.sum(axis=1, keepdims=True)
    return [
        lambda: certify(scores, **given),
        lambda: certify_means(means, **given),
        lambda: inefficacy(COSTS, cost_bound=0.5, **given),
    ]


def test_an_event_needs_to_be_told_what_one_unit_is(scores):
    for ask in all_three(scores, mechanism=EVENT):
        with pytest.raises(ValueError, match=r"^threat = None: an event does not say what one unit is"):
            ask()
    for ask in all_three(scores, mechanism=EVENT, threat=ThreatModel(unit="instance")):
        assert ask().settings.mechanism.unit == "instance"


def test_noise_of_an_event_is_read_over_the_norm_of_one_unit(scores):
    """Which is how dp_accounting defines it; the certificate says so."""
    found = certify(scores, mechanism=EVENT, threat=REPLACE, method="mean")
    same = UserFedAvg(rounds=3, noise_multiplier=4.0, sampling=Poisson(probability=0.1))
    assert found.certified_size == certify(scores, mechanism=same, method="mean").certified_size
    sentence = (
        "a noise multiplier is the noise's standard deviation over the largest norm of what one user adds"
    )
    assert any(line.startswith(sentence) for line in sentences(found.assumptions))


def test_epsilon_alone_is_not_enough():
    with pytest.raises(TypeError, match="relation"):
        ApproximateDP(epsilon=0.1, delta=1e-5)
    for unknown in (None, "zero-out"):
        with pytest.raises(ValueError, match=f"relation = {unknown!r} must be one of join, replace"):
            ApproximateDP(epsilon=0.1, delta=1e-5, relation=unknown)


def test_replacing_a_unit_takes_two_steps_of_an_epsilon_for_added_or_removed_ones():
    means = [[0.97, 0.03]]
    joined = certify_means(means, privacy=ADDED, threat=JOIN, method="paper")
    replaced = certify_means(means, privacy=ADDED, threat=REPLACE, method="paper")
    assert replaced.real_size[0] == pytest.approx(joined.real_size[0] / 2, rel=1e-12)
    assert replaced.certified_size[0] == int(np.ceil(joined.real_size[0] / 2)) - 1
    direct = certify_means(means, privacy=REPLACED, threat=REPLACE, method="paper")
    assert direct.certified_size == joined.certified_size
    stepped = Statement.of("proved-in-two-steps", unit="user")
    assert stepped in replaced.assumptions
    assert stepped not in direct.assumptions + joined.assumptions


def test_two_steps_are_one_step_of_group_privacy():
    # k replaced units are 2k steps: (2kε, δ (e^{2kε} - 1)/(e^ε - 1))
    epsilon, delta = ADDED.under(Relation.REPLACE)
    for size in (1, 3, 10):
        found = approximate_curve(epsilon, delta, size)
        assert found.epsilons == pytest.approx(2 * size * 0.1)
        assert found.forward == pytest.approx(1e-5 * np.expm1(2 * size * 0.1) / np.expm1(0.1))


@pytest.mark.parametrize("method", ["mean", "margin", "vote", "paper"])
def test_every_method_counts_them(scores, method):
    def sizes(privacy, threat):
        found = certify(scores, privacy=privacy, threat=threat, method=method).certified_size
        return np.array([-1 if size is None else size for size in found])

    joined, replaced = sizes(ADDED, JOIN), sizes(ADDED, REPLACE)
    assert np.all(replaced <= np.maximum(joined // 2, joined.clip(max=0)))
    assert replaced.max() >= joined.max() // 2 - 1


@pytest.mark.parametrize("method", ["mean", "paper"])
def test_costs_count_them(method):
    known = {"cost_bound": 0.5, "method": method, "tau": 2.0}
    joined = inefficacy(COSTS, privacy=ADDED, threat=JOIN, sizes=[0, 2, 4], **known)
    replaced = inefficacy(COSTS, privacy=ADDED, threat=REPLACE, sizes=[0, 1, 2], **known)
    assert replaced.lower == pytest.approx(joined.lower)
    assert replaced.upper == pytest.approx(joined.upper)
    assert replaced.needed == pytest.approx(joined.needed / 2, abs=0.5 if method == "mean" else 1e-9)
    assert replaced.assumptions[-1].code == "proved-in-two-steps"


def test_an_epsilon_for_replaced_units_says_nothing_of_units_that_join(scores):
    """Publishing how many users there are is private for `replace`, and tells `join` all."""
    for ask in all_three(scores, privacy=REPLACED, threat=JOIN):
        with pytest.raises(ValueError, match="relation = 'join' does not follow from an epsilon for units"):
            ask()


def test_a_delta_that_two_steps_make_too_large_certifies_nothing():
    large = ApproximateDP(epsilon=1.0, delta=0.4, relation="join")
    assert certify_means([[0.999, 0.001]], privacy=large, threat=REPLACE).certified_size == (0,)
    assert certify_means([[0.999, 0.001]], privacy=large, threat=REPLACE, method="paper").certified_size == (
        0,
    )


def test_a_file_says_which_relation_and_cannot_change_it(scores):
    text = dumps(certify(scores, privacy=ADDED, threat=REPLACE, method="mean"))
    assert verify(text, scores) == ()
    document = json.loads(text)
    assert document["privacy"]["relation"] == "join"
    document["privacy"]["relation"] = "replace"
    document["checksums"]["privacy"] = checksum(document["privacy"])
    assert any(line.startswith("certified_size") for line in verify(json.dumps(document), scores))
    del document["privacy"]["relation"]
    document["checksums"]["privacy"] = checksum(document["privacy"])
    assert verify(json.dumps(document), scores)[0].endswith("missing or unknown fields: relation")


@pytest.mark.parametrize("rounds", [UserFedAvg, CohortOnce])
def test_renyi_curves_say_nothing_of_who_joins_cohorts_of_fixed_size(rounds):
    fixed = rounds(rounds=1, noise_multiplier=2.0, sampling=FIXED)
    said = "^relation = 'join' is not defined for cohorts of fixed size and method renyi: use 'replace', or"
    with pytest.raises(ValueError, match=said):
        certify(EVEN, mechanism=fixed, threat=JOIN, method="renyi")
    with pytest.raises(ValueError, match=said):
        certify_means(EVEN.mean(axis=0), mechanism=fixed, threat=JOIN, method="renyi")
    assert certify(EVEN, mechanism=fixed, threat=REPLACE, method="renyi").prediction == (None,) * 3


@pytest.mark.parametrize("method", ["margin", "mean", "vote"])
@pytest.mark.parametrize("rounds", [UserFedAvg, CohortOnce])
def test_who_joins_noised_cohorts_of_fixed_size_is_certified(method, rounds):
    fixed = rounds(rounds=1, noise_multiplier=2.0, sampling=FIXED)
    scores = np.tile([[[0.97, 0.03]]], (400, 1, 1)) + np.linspace(0, 0.01, 400)[:, None, None] * [1, -1]
    joined, replaced = (
        certify(scores, mechanism=fixed, threat=threat, method=method) for threat in (JOIN, REPLACE)
    )
    assert joined.certified_size[0] >= replaced.certified_size[0] > 0
    assert verify(dumps(joined), scores) == ()


def test_joining_cohorts_of_fixed_size_means_something_without_noise_and_in_the_paper():
    """Sampling alone knows what joining does; the paper accounts Poisson cohorts, and a reason says so."""
    once = Bagging(rounds=1, sampling=FIXED)
    assert certify(EVEN, mechanism=once, threat=JOIN).sound
    noised = UserFedAvg(rounds=1, noise_multiplier=2.0, sampling=FIXED)
    paper = certify(EVEN[:, :2], mechanism=noised, threat=JOIN, method="paper", delta=1e-5)
    assert [one.code for one in paper.unmet] == ["fixed-size"]


def test_the_comparison_ends_where_everybody_is_replaced():
    """Strong noise and few users: no input is ever lost, and there is nobody left to replace."""
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1000.0, sampling=FixedSize(cohort=2, users=5))
    scores = np.tile([[[1.0, 0.0]]], (300, 1, 1))
    tight = compare(scores, np.zeros(1, dtype=np.int64), mechanism=mechanism, delta=1e-3)[-1]
    assert tight.accuracy == (*[1.0] * 6, 0.0)
