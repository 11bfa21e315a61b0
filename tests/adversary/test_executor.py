"""The real engine under hostile units: what did not draw them stays, and no certified prediction flips.

A certificate rests on "k units touch only what drew them". Attacks are run against it here, not the engine
against itself: any replica that feels a unit it has not drawn, and any certified prediction that changes, is
a false certificate.
"""

import os
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings

from fedproof.attacks import build_series, units
from fedproof.certificates import certify
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, NoisyPartition, Partition
from fedproof.robustness.outcome import run_attack, train, verdict
from fedproof.threat import Relation, ThreatModel, Unit
from tests.adversary.hostile import (
    CLASSES,
    LAYOUTS,
    LIMIT,
    SHAPE,
    USERS,
    Hold,
    Watched,
    by_instance,
    disturbed_by_joining,
    federation,
    holds,
    task,
)

EXAMPLES = max(2, int(os.environ.get("FEDPROOF_FUZZ_TRIALS", 2500)) // 1000)
FALSE_ALARM = 1e-6
MODELS = {"linear": LAYOUTS, "mlp": LAYOUTS, "module": ("users", "groups, pooled", "instance training")}


def units_of(one):
    last = (len(one.federation.labels) if by_instance(one.mechanism) else USERS) - 1
    return (0, last)


@pytest.mark.parametrize(
    ("layout", "model"), [(layout, model) for model, layouts in MODELS.items() for layout in layouts]
)
def test_a_hostile_unit_is_felt_by_those_who_drew_it(layout, model):
    one = task(LAYOUTS[layout], model)
    for unit in units_of(one):
        watched = Watched(one, unit)
        assert not watched.drawn.all()
        for number in (3e38, np.nan, 1e-45):
            for count in (1, LIMIT):
                assert watched.disturbed(Hold((number,), count)) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_it_holds(layout):
    watched = Watched(task(LAYOUTS[layout]), 0)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(hold=holds)
    def check(hold):
        assert watched.disturbed(hold) == []

    check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_joins_is_felt_by_those_who_drew_it(layout):
    one = task(LAYOUTS[layout])
    for hold, host in ((Hold((1.0, 0.0), 2, 1), 0), (Hold((3e38,), 1), USERS - 1)):
        assert disturbed_by_joining(one, hold, host=host) == []


# --- planted mistakes ---------------------------------------------------------------------------------------


def plain_training(one, members, padding):
    """A linear model on the pooled rows of `members`, in batches of one width.

    With `padding` "first" a short batch is filled with the first row of all, times zero; with "own" what is
    missing is left out.
    """
    data, width = one.federation, 4
    weights = np.zeros((CLASSES, SHAPE[0]))
    rows = np.concatenate([np.empty(0, int), *(units.rows_of_users(data)[user] for user in members)]).astype(
        int
    )
    for begin in range(0, len(rows), width):
        mine = rows[begin : begin + width]
        factor = np.ones(len(mine))
        if padding == "first":
            factor = np.concatenate((factor, np.zeros(width - len(mine))))
            mine = np.concatenate((mine, np.zeros(width - len(mine), int)))
        features = data.features[mine].astype(float)
        with np.errstate(all="ignore"):
            errors = np.exp(features @ weights.T)
            errors = errors / errors.sum(axis=1, keepdims=True) - np.eye(CLASSES)[data.labels[mine]]
            weights = weights - 0.1 * (errors * factor[:, None]).T @ features
    return weights.ravel().astype(np.float32)


def grouped(padding):
    """An engine for disjoint groups."""

    def train(one):
        members = [range(group, one.federation.num_users, 6) for group in range(6)]
        return np.stack([plain_training(one, who, padding) for who in members])

    return train


def drawn_by(how):
    """An engine for cohorts, drawn with chances that follow the number of users, or with constants."""

    def train(one):
        count, models = one.federation.num_users, []
        for replica in range(24):
            if how == "number":
                who = np.flatnonzero(np.random.default_rng(replica).random(count) < 2 / count)
            else:
                who = [u for u in range(count) if np.random.default_rng((replica, u)).random() < 2 / USERS]
            models.append(plain_training(one, who, "own"))
        return np.stack(models)

    return train


def test_padding_with_the_first_row_is_found():
    one = task(LAYOUTS["groups, pooled"])
    assert Watched(one, 0, grouped("first")).disturbed(Hold((3e38,), 1)) != []
    assert Watched(one, 0, grouped("own")).disturbed(Hold((3e38,), 1)) == []
    assert Watched(one, 5, grouped("first")).disturbed(Hold((3e38,), 1)) == []  # it is the first row alone


def test_chances_that_follow_the_number_of_users_are_found():
    one, hold = task(LAYOUTS["once"]), Hold((1.0,), 2, 0)
    assert disturbed_by_joining(one, hold, drawn_by("number")) != []
    assert disturbed_by_joining(one, hold, drawn_by("constant")) == []


# --- certificates -------------------------------------------------------------------------------------------


ATTACKS = ("hostile", "worst-case", "label-flip")
GROUPS = [
    Partition(groups=25),
    Partition(groups=25, pooled=True),
    Partition(groups=25, pooled=True, unit=Unit.INSTANCE),
    Partition(pooled=True),
    NoisyPartition(groups=25, noise_multiplier=0.05, population=100),
]


@cache
def attacked_later(mechanism):
    """The task of groups, and the scores of its honest models."""
    one = task(mechanism, data=federation(users=50))
    return one, train(one, mechanism.models(50), []).scores


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("mechanism", GROUPS, ids=["users", "pooled", "instances", "one vote", "noise"])
def test_no_vote_of_other_groups_is_bought(mechanism, kind, relation):
    one, clean = attacked_later(mechanism)
    threat = ThreatModel(unit=mechanism.unit, relation=relation)
    certificate = certify(clean, mechanism=mechanism, threat=threat, method="vote")
    assert certificate.sound
    assert max(certificate.certified_size) >= 4
    for seed in range(2):  # of who attacks
        for name, attack in build_series(
            kind,
            (1, 4),
            num_users=50,
            unit=mechanism.unit,
            relation=relation,
            by_data=mechanism.pooled,
            spread=10 if mechanism.unit is Unit.INSTANCE else None,
            seed=seed,
        ):
            scores = run_attack(one, attack, mechanism.models(50)).scores
            found = verdict(scores, certificate, attack.size, failure_probability=FALSE_ALARM)
            touched = (scores[: len(clean)] != clean).any(axis=(1, 2)).sum() + len(scores) - len(clean)
            assert touched <= attack.size, f"{name}: {attack.size} units touched {touched} groups"
            assert found.contradicted == 0


COHORTS = [
    Bagging(rounds=1, sampling=FixedSize(cohort=3, users=50)),
    Bagging(rounds=1, sampling=FixedSize(cohort=3, users=50), pooled=True),
    CohortOnce(rounds=2, sampling=FixedSize(cohort=12, users=50), noise_multiplier=3.0),
]


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("mechanism", COHORTS, ids=["users", "pooled", "noise"])
def test_no_certified_prediction_of_cohorts_flips(mechanism, kind):
    one = task(mechanism, data=federation(users=50))
    clean = train(one, 300, []).scores
    certificate = certify(clean, mechanism=mechanism, method="vote", failure_probability=FALSE_ALARM)
    assert certificate.sound
    assert max(size or 0 for size in certificate.certified_size) >= 2
    for name, attack in build_series(kind, (1, 2, 4), num_users=50, by_data=mechanism.pooled):
        scores = run_attack(one, attack, 300).scores
        found = verdict(scores, certificate, attack.size, failure_probability=FALSE_ALARM)
        assert found.contradicted == 0, f"{name}: {found}"
        if attack.size <= 2:
            assert found.kept == found.certified  # with many replicas and few units there are no near ties


@pytest.mark.parametrize("mechanism", [COHORTS[1], *GROUPS[1:3]], ids=["cohorts", "groups", "instances"])
def test_a_huge_number_in_the_first_row_is_not_felt_elsewhere(mechanism):
    assert Watched(task(mechanism, data=federation(users=50)), 0).disturbed(Hold((3e38,), 1)) == []
