"""Units have identities and a public limit; what is wrong with them is named in one line."""

from dataclasses import replace

import numpy as np
import pytest

from fedproof.ensemble.task import Task, unmet_by
from fedproof.federation import Federation, by_place, identities
from fedproof.mechanisms import Bagging, InstanceFedAvg, LocalTraining, Partition, Poisson, UserFedAvg
from fedproof.models import build
from fedproof.seeds import scattered
from fedproof.threat import Relation, Unit


def federation(sizes=(2, 3, 1), **more):
    many = sum(sizes)
    plain = {
        "features": np.zeros((many, 4), dtype=np.float32),
        "labels": np.arange(many) % 2,
        "offsets": np.concatenate([[0], np.cumsum(sizes)]),
        "test_features": np.zeros((2, 4), dtype=np.float32),
        "test_labels": np.zeros(2, dtype=np.int64),
        "class_names": ("a", "b"),
        "name": "tiny",
    }
    return Federation(**plain | more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"user_ids": np.array([5, 7, 5])}, "tiny: users 0 and 2 have the same identity 5"),
        ({"user_ids": np.array([5, 7])}, r"identities of users have shape \(2,\).*must be \(3,\)"),
        ({"user_ids": np.array([5.0, 7.0, 8.0])}, "type float64, must be .* int64"),
        ({"user_ids": np.array([5, -7, 8])}, "identities of users must be 0 or above, found -7"),
        ({"instance_ids": np.array([1, 2, 3, 3, 4, 5])}, "instances 2 and 3 have the same identity 3"),
        ({"most_instances": 2}, "user 1 holds 3 instances, more than most_instances = 2"),
        ({"most_instances": 0}, "most_instances = 0 must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_with_units_is_named(more, message):
    with pytest.raises(ValueError, match=message) as caught:
        federation(**more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"labels": np.array([0.0, 1.0, 1.0])},
            "labels must be a NumPy array of integers, one row of them, not",
        ),
        ({"labels": [0, 1, 1]}, "labels must be a NumPy array of integers, .* not list of int64"),
        ({"offsets": [0, 1, 3]}, "offsets must be a NumPy array of integers"),
        ({"test_labels": np.array([[0]])}, r"test_labels must be .* with shape \(1, 1\)"),
        ({"class_names": "ab"}, "class_names = 'ab' must be a tuple of names"),
    ],
)
def test_arrays_of_another_kind_are_named(more, message):
    with pytest.raises(ValueError, match=message):
        federation(**more)


def test_a_newcomer_under_a_large_number_changes_no_identity_of_others():
    """A number of 39 bits or more leaves no room for a place: it alone is scattered."""
    before = federation(user_ids=np.array([5, 7, 8]))
    after = federation((2, 3, 1, 2), user_ids=np.array([5, 7, 8, 2**62]))
    np.testing.assert_array_equal(after.which[:6], before.which)
    assert len(set(after.which.tolist())) == 8


def test_instances_that_would_be_drawn_together_are_refused():
    large = 2**62
    same = int(scattered(np.array([large]))[0] >> 24)  # a small number that the large one is scattered to
    with pytest.raises(ValueError, match="two users would be known by the same number"):
        assert federation(user_ids=np.array([large, same, 8])).which is None
    with pytest.raises(ValueError, match="a user holds more than 16,777,216 instances"):
        by_place(np.array([1, 1]), np.array([0, 2**24]))


def test_positions_are_identities_where_the_data_tell_none():
    plain = federation()
    assert plain.who.tolist() == [0, 1, 2]
    grown = federation((2, 5, 1))
    kept = np.isin(grown.which, plain.which)
    assert kept.tolist() == [True] * 5 + [False] * 2 + [True]  # what others hold moves nobody's instances
    assert plain.by_instance().who.tolist() == plain.which.tolist()


def test_hashed_users_have_instances_of_their_own():
    named = federation(user_ids=identities(["ann", "bob", "eve"]))
    assert len(set(named.which.tolist())) == 6
    again = federation((3, 1), user_ids=identities(["bob", "eve"]))
    assert again.which.tolist() == named.which[2:].tolist()


def task(data, mechanism):
    return Task(
        federation=data, model=build("linear", data), mechanism=mechanism, local=LocalTraining(batch_size=2)
    )


def test_what_data_or_rates_cannot_give_is_said_of_join_alone():
    noisy = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.5))
    named = federation(user_ids=np.arange(3), instance_ids=np.arange(6))
    declared = replace(noisy, population=3)
    assert unmet_by(task(named, declared), Relation.JOIN) == ()
    assert unmet_by(task(federation(), noisy), Relation.REPLACE) == ()
    (no_identity,) = unmet_by(task(federation(), declared), Relation.JOIN)
    assert "users have no identities" in no_identity.sentence
    (no_population,) = unmet_by(task(named, noisy), Relation.JOIN)
    assert "declare a population" in no_population.sentence
    (instances,) = unmet_by(
        task(federation(user_ids=np.arange(3)), Partition(groups=2, pooled=True, unit="instance")),
        Relation.JOIN,
    )
    assert "instances have no identities" in instances.sentence
    left_out = replace(named, left_out=1)  # its numbers of instances are places, and no identities
    (places,) = unmet_by(task(left_out, Partition(groups=2, pooled=True, unit="instance")), Relation.JOIN)
    assert places == instances
    unsettled = replace(named, unsettled=frozenset({(Unit.USER, Relation.REPLACE)}))
    assert [one.code for one in unmet_by(task(unsettled, declared), Relation.REPLACE)] == ["unsettled"]
    assert unmet_by(task(unsettled, declared), Relation.JOIN) == ()
    by_size = InstanceFedAvg(
        rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=1.0, by_size=True
    )
    tested = replace(named, tested_only=True)  # a label that nobody tests makes its user hold one less
    (chance,) = unmet_by(task(tested, by_size), Relation.REPLACE)
    assert "changes the chances of others" in chance.sentence
    assert unmet_by(task(tested, replace(by_size, by_size=False)), Relation.REPLACE) == ()
    assert unmet_by(task(named, by_size), Relation.REPLACE) == ()
    alone = Bagging(rounds=1, sampling=Poisson(probability=0.5))  # nothing is summed and divided
    assert unmet_by(task(named, alone), Relation.JOIN) == ()
