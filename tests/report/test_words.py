"""The result in one sentence, and a fix for every condition that is not met."""

import itertools
from dataclasses import replace

import pytest

from fedproof.certificates import Bound, Group, Method, Spending
from fedproof.certificates.certificate import Settings
from fedproof.certificates.soundness import unmet_by
from fedproof.mechanisms import FedAvg, FixedSize, InstanceFedSGD, Median, PerLayerMedian, Poisson, UserFedAvg
from fedproof.report.words import SPACE, chosen_size, headline
from fedproof.summary import RunSummary
from fedproof.threat import Relation, ThreatModel

SUMMARY = RunSummary(
    data="digits",
    users=96,
    inputs=72,
    replicas=1000,
    accuracy=0.95,
    replica_accuracy=0.9,
    seconds={},
    certified_accuracy={"0": 0.95, "4": 0.92, "5": 0.91, "6": 0.4},
    failure_probability=0.01,
    sound=True,
    unmet=(),
    threat=ThreatModel(),
)


def said(**changes):
    return headline(replace(SUMMARY, **changes)).replace("\u00a0", " ")


def test_the_headline_of_the_issue():
    assert said() == (
        "91.0 % of the test inputs are correct and certified against up to 5 of 96 users. With 99 % "
        "confidence for each input, honest training puts the same label first in expectation."
    )


def test_what_is_counted_is_certain():
    assert said(failure_probability=0.0) == (
        "91.0 % of the test inputs keep their correct label whatever up to 5 of 96 users do, with certainty."
    )


def test_the_headline_speaks_of_the_threat():
    assert "against up to 5 malicious users who join" in said(threat=ThreatModel(relation="join"))
    assert "against up to 5 poisoned training instances" in said(threat=ThreatModel(unit="instance"))
    assert "if no user is poisoned" in said(certified_accuracy={"0": 0.4, "1": 0.0})
    counted = {"failure_probability": 0.0}
    assert "even if up to 5 malicious users join" in said(threat=ThreatModel(relation="join"), **counted)
    assert "up to 5 training instances are poisoned" in said(threat=ThreatModel(unit="instance"), **counted)


def test_the_headline_is_about_the_served_ensemble_where_that_is_certified_alone():
    """What honest users would have been answered is more than what they are expected to be answered."""
    assert "in expectation" in said()
    told = said(served=0.01, failure_probability=0.02)
    assert "With 98 % confidence for each input, as many models of honest users would have given" in told
    assert "expectation" not in told


def test_the_headline_claims_no_more_than_is_proved():
    assert "would be correct and certified" in said(sound=False)
    assert "no test input is certified" in said(certified_accuracy={"0": 0.0})
    assert "nothing is certified" in said(certified_accuracy=None)


def test_the_headline_names_no_confidence_where_none_covers_the_error():
    assert said(bound="none", sound=False) == (
        "91.0 % of the test inputs would be correct and certified against up to 5 of 96 users. "
        "Honest training puts the same label first in expectation, if means were exact."
    )
    assert "with certainty" in said(bound="none", failure_probability=0.0)


def test_the_headline_rounds_what_is_certified_down():
    assert "99.9 % of the test inputs are" in said(certified_accuracy={"0": 1.0, "4": 0.9996})
    assert "66.6 % of the test inputs are" in said(certified_accuracy={"0": 0.7, "4": 2 / 3})
    assert "29.0 % of the test inputs are" in said(certified_accuracy={"0": 0.3, "4": 0.29})


def test_all_is_said_of_all_alone():
    curve = {"0": 0.9999, "1": 0.9997, "2": 0.0}
    some = replace(SUMMARY, certified_accuracy=curve, inputs=10_000)
    assert "99.9 % of the test inputs are" in headline(some).replace(SPACE, " ")
    every = replace(SUMMARY, certified_accuracy=curve | {"1": 1.0})
    assert "100.0 % of the test inputs are" in headline(every).replace(SPACE, " ")


def test_the_chosen_size_keeps_three_quarters():
    assert chosen_size({"0": 0.8, "1": 0.7, "2": 0.61, "3": 0.59}) == 2
    assert chosen_size({"0": 0.8, "1": 0.1, "2": 0.0}) == 1
    assert chosen_size({"0": 0.0}) == 0


MECHANISMS = (
    UserFedAvg(rounds=2, noise_multiplier=2.0, sampling=Poisson(probability=0.1), clipping=Median()),
    UserFedAvg(
        rounds=2,
        noise_multiplier=2.0,
        sampling=FixedSize(cohort=5, users=50),
        clipping=PerLayerMedian(num_layers=2),
    ),
    InstanceFedSGD(
        rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=5, users=50), batch_probability=0.1
    ),
)
WAYS = (
    (Method.PAPER, Bound.HOEFFDING, Spending.PAPER),
    (Method.PAPER, Bound.NONE, Spending.SOUND),
    (Method.RENYI, Bound.CLOPPER_PEARSON, Spending.SOUND),
)


@pytest.mark.parametrize(("mechanism", "way"), list(itertools.product(MECHANISMS, WAYS)), ids=str)
def test_every_condition_has_a_fix(mechanism, way):
    method, bound, spending = way
    settings = Settings(
        mechanism=mechanism,
        privacy=None,
        threat=ThreatModel(unit=mechanism.unit),
        method=method,
        bound=bound,
        failure_probability=0.01,
        spending=spending,
        group=Group.PAPER,
        max_size=10,
        sequential=False,
    )
    for statement in unmet_by(settings):
        assert statement.fix, statement


def test_what_has_no_noise_has_a_fix():
    [statement] = FedAvg(rounds=1, sampling=Poisson(probability=0.5)).unmet(Relation.REPLACE)
    assert "user-fedavg" in statement.fix
