"""What one unit holds, and whether it is there at all, changes a released sum by its own vector alone.

The hostile units are those of `tests/rounds/test_isolation.py`.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedproof.ensemble import one_round
from fedproof.federation import Federation
from fedproof.mechanisms import Local, LocalTraining, OneRound
from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Pairs, Rows
from fedproof.release import summed
from fedproof.threat import Unit
from tests.rounds.test_isolation import (
    LOGISTIC,
    MOST,
    RIDGE,
    SGD,
    Case,
    changed,
    contents,
    drive,
    honest,
    task_of,
)

HEAD, NEAR = {"features": 12, "classes": 3}, {"anchors": 9, "classes": 3, "sharpness": 2.0}
SUMS, GRADIENT = LocalTraining(solver="sums", balanced=True), LocalTraining(solver="gradient")


def once_each(upload, unit="user"):
    return OneRound(upload=upload, noise_multiplier=1.0, unit=unit)


RELEASED = {
    "anchors, mlp": Case(mechanism=once_each(Anchors(**NEAR)), model="mlp", local=SGD),
    "anchors, ridge": Case(mechanism=once_each(Anchors(**NEAR)), local=RIDGE),
    "rows, sums": Case(mechanism=once_each(Rows(**HEAD)), local=SUMS),
    "pairs, logistic": Case(mechanism=once_each(Pairs(**HEAD)), local=LOGISTIC, limited=False),
    "ball, gradient": Case(mechanism=once_each(Ball(**HEAD)), local=GRADIENT),
    "non-negative, ridge": Case(mechanism=once_each(NonNegative(**NEAR)), local=RIDGE),
    "local anchors": Case(
        mechanism=Local(upload=Anchors(**NEAR), noise_multiplier=0.3, honest=2), local=RIDGE
    ),
    "local rows": Case(mechanism=Local(upload=Rows(**HEAD), noise_multiplier=0.3, honest=2), local=SUMS),
    "local ball": Case(mechanism=Local(upload=Ball(**HEAD), noise_multiplier=0.3, honest=2), local=GRADIENT),
    "rows of instances": Case(mechanism=once_each(Rows(**HEAD), "instance"), local=GRADIENT),
    "non-negative of instances": Case(mechanism=once_each(NonNegative(**NEAR), "instance"), local=SUMS),
}


@cache
def released(name, seed):
    """The task on honest data, what each unit sends, by its identity, and the released sum."""
    federation = honest(RELEASED[name], seed)
    public = np.random.default_rng(seed).normal(size=(NEAR["anchors"], *federation.features.shape[1:]))
    task = task_of(RELEASED[name], replace(federation, public_features=public.astype(np.float32)), seed)
    return task, *sent_and_sum(task)


def sent_and_sum(task):
    sent = np.concatenate(list(one_round.uploads_of(task)))
    return dict(zip(task.units.who.tolist(), sent, strict=True)), one_round.release(task).total


@pytest.mark.parametrize("name", RELEASED)
def test_a_unit_changes_a_released_sum_by_its_own_vector_alone(name):
    moved = []

    def holds(seed, change):
        task, sent, total = released(name, seed)
        other = replace(task, federation=changed(task.federation, change))
        sends, after = sent_and_sum(other)
        held, holding = contents(task.units), contents(other.units)
        differ = {who for who in held.keys() | holding.keys() if held.get(who) != holding.get(who)}
        assert len(differ) <= (1 if task.mechanism.unit is Unit.USER else 2 * MOST)
        assert all(np.array_equal(sent[who], sends[who]) for who in held.keys() - differ)
        old, new = (
            summed(task.mechanism, np.array([found[who] for who in sorted(differ & found.keys())]))
            for found in (sent, sends)
        )
        np.testing.assert_array_equal(after - total, new - old)  # the noise cancels
        moved.append((new != old).any())

    drive(RELEASED[name], holds)
    assert any(moved)


@pytest.mark.parametrize("joining", [3, 6, 39, 333])
@pytest.mark.parametrize("first", [True, False])
def test_how_many_instances_others_hold_changes_no_bit_of_a_wide_upload(joining, first):
    # Products of wide matrices depend on their number of rows, in the last bits.
    rows = np.abs(np.random.default_rng(0).normal(size=(9 + joining + 64, 40))).astype(np.float32)
    own, others, public = np.split(rows, [9, 9 + joining])
    case = Case(mechanism=once_each(NonNegative(anchors=64, classes=3, sharpness=16.0)), local=RIDGE)

    def sent(sizes, held):
        federation = Federation(
            features=held,
            labels=np.arange(len(held)) % 3,
            offsets=np.cumsum([0, *sizes]),
            test_features=held[:1],
            test_labels=np.zeros(1, dtype=np.int64),
            class_names=("a", "b", "c"),
            name="wide",
            public_features=public,
        )
        return np.concatenate(list(one_round.uploads_of(task_of(case, federation, 0))))

    if first:
        beside = sent([joining, 3, 3, 3], np.concatenate([others, own]))[1:]
    else:
        beside = sent([3, 3, 3, joining], np.concatenate([own, others]))[:3]
    np.testing.assert_array_equal(sent([3, 3, 3], own), beside)
