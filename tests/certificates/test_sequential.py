"""Stopping early: it stops, it is valid whatever the rule, and it says what the whole data would."""

import numpy as np
import pytest

from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates import ApproximateDP, certify, certify_sequentially, dumps, verify
from fedproof.certificates.confidence import Bound
from fedproof.certificates.tight import class_bounds, mean_sizes

KNOWN = ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")


def batches(strength, num=20, size=50, seed=0):
    """Counts how many batches were asked for."""
    generator = np.random.default_rng(seed)
    for _ in range(num):
        yield generator.dirichlet(strength, size=(size, 5))


def test_clear_inputs_stop_early_and_verify():
    asked = []

    def counted():
        for batch in batches([50, 1, 1]):
            asked.append(batch)
            yield batch

    found = certify_sequentially(counted(), [0] * 5, size=3, privacy=KNOWN)
    assert found.num_replicas == 50 * len(asked) < 1000
    assert all(size >= 3 for size in found.certified_size)
    assert verify(dumps(found), np.concatenate(asked)) == ()


def test_hopeless_inputs_stop_early_too():
    found = certify_sequentially(batches([3, 2, 2]), size=12, privacy=KNOWN)
    assert found.num_replicas < 1000
    assert all(size is None or size < 12 for size in found.certified_size)


def test_votes_can_be_added_step_by_step():
    found = certify_sequentially(batches([50, 1, 1]), size=3, privacy=KNOWN, method="vote")
    assert found.num_replicas < 1000


def test_undecided_inputs_use_all_batches():
    found = certify_sequentially(batches([2, 2, 1], num=3), size=0, privacy=KNOWN)
    assert found.num_replicas == 150


def test_fewer_inputs_need_fewer_replicas():
    generator = np.random.default_rng(1)
    mixed = [
        np.concatenate(
            [generator.dirichlet([60, 1, 1], size=(50, 4)), generator.dirichlet([2, 2, 1], size=(50, 1))],
            axis=1,
        )
        for _ in range(10)
    ]
    most = certify_sequentially(mixed, size=2, enough=0.8, privacy=KNOWN)
    assert most.num_replicas < certify_sequentially(mixed, size=2, privacy=KNOWN).num_replicas


def test_stopping_at_the_first_success_keeps_the_failure_probability():
    # Truth at the edge: size 5 is just false. Looking after every 25 replicas and stopping at the first claim
    # is the worst rule there is; 2,000 inputs are 2,000 experiments.
    failure_probability, curve = 0.05, lambda k: GaussianTradeoff(shift=k / 5)
    edge = float(GaussianTradeoff(shift=1.0).upper(0.5))
    draws = (np.random.default_rng(2).random((200, 2000)) < edge).astype(float)
    scores = np.stack([draws, 1 - draws], axis=2)
    ever = np.zeros(2000, dtype=bool)
    for seen in range(25, 201, 25):
        bounds = class_bounds(scores[:seen], Bound.BETTING, failure_probability / 2)
        ever |= mean_sizes(bounds.top_lower, bounds.rival_upper, curve, 5) >= 5
    assert ever.mean() <= failure_probability + 3 * np.sqrt(failure_probability * 0.95 / 2000)


def test_looking_often_at_a_fixed_size_bound_is_caught():
    # the same rule with exact bounds for a fixed number of replicas must exceed the limit: power of the test
    edge, failure_probability = 0.84, 0.05
    draws = (np.random.default_rng(2).random((200, 2000)) < edge).astype(float)
    from fedproof.certificates.confidence import mean_lower

    ever = np.zeros(2000, dtype=bool)
    for seen in range(10, 201, 5):
        ever |= mean_lower(draws[:seen], Bound.CLOPPER_PEARSON, failure_probability) > edge
    assert ever.mean() > 2 * failure_probability


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "margin"}, "margin"),
        ({"enough": 0.0}, "enough"),
        ({"size": -1}, "size"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        certify_sequentially(batches([50, 1, 1]), **({"size": 1, "privacy": KNOWN} | settings))


def test_batches_must_fit_together():
    first = np.random.default_rng(0).dirichlet([1, 1, 1], size=(50, 5))
    with pytest.raises(ValueError, match="batch has shape"):
        certify_sequentially([first, first[:, :4]], size=1, privacy=KNOWN)
    with pytest.raises(ValueError, match="empty"):
        certify_sequentially([], size=1, privacy=KNOWN)


def test_adding_replicas_step_by_step_costs_nothing(scores):
    fixed = certify(scores, privacy=KNOWN, method="mean")
    anytime = certify(scores, privacy=KNOWN, method="mean", sequential=True)
    assert fixed.top_lower == anytime.top_lower
    assert fixed.certified_size == anytime.certified_size
