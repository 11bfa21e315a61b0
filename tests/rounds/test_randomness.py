"""Everybody is drawn with the stated probability, and no two streams have anything in common.

Streams differ by purpose, replica, round and seed. Two keys that gave one state would give one sequence of
numbers: noise that is drawn twice is no noise. States are compared exactly, sequences by the audit's test of
dependence (FALSE_ALARM is its chance to fail).
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fedproof import seeds
from fedproof.attacks import attack
from fedproof.audit import dependence
from fedproof.ensemble import Task, train_replicas
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Partition,
    Poisson,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.rounds import randomness
from fedproof.rounds.randomness import Stream, data_order, noise
from fedproof.seeds import Purpose, draw_cohorts

FALSE_ALARM = 1e-6
CPU = torch.device("cpu")
POISSON, FIXED = Poisson(probability=0.5), FixedSize(cohort=4, users=10)
MECHANISMS = [
    UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=POISSON),
    InstanceFedAvg(rounds=2, local_steps=2, noise_multiplier=1.0, batch_probability=1.0),
    InstanceFedSGD(rounds=2, noise_multiplier=1.0, sampling=FIXED, batch_probability=0.5),
    Bagging(rounds=2, sampling=FIXED, pooled=True),
    CohortOnce(rounds=2, sampling=POISSON, noise_multiplier=1.0, pooled=True, unit="instance"),
    Partition(groups=3, rounds=2, pooled=True),
]
SECRET = (Purpose.COHORT, Purpose.NOISE, Purpose.BATCH)
LENGTHS = {
    "INITIAL": 0,
    "ORDER": 2,
    "COHORT": 1,
    "NOISE": 1,
    "BATCH": 1,
    "AUGMENT": 3,
    "GROUP": 1,
    "START": 1,
    "RELEASE": 1,
}


def state(seed, *key):
    """What a generator with this key starts from: 256 bits."""
    return np.random.SeedSequence(seed, spawn_key=key).generate_state(4, np.uint64).tobytes()


def keys():
    """Keys of a small federation, those of attacks and of Flower's newcomers included."""
    for purpose in Purpose:
        yield from ((int(purpose), *path) for path in product(range(4), repeat=LENGTHS[purpose.name]))
    yield from ((attack._KEY, *path) for path in [(), (1, 0), (1, 1), (2,)])


def test_purposes_have_numbers_of_their_own():
    assert len(Purpose) == len(Purpose.__members__) == len(set(map(int, Purpose)))  # an alias would share one
    assert attack._KEY not in set(Purpose)
    assert set(LENGTHS) == set(Purpose.__members__)


def test_no_two_keys_share_a_state():
    every = list(keys())
    assert len(set(every)) == len(every)
    seeds = [*range(40), 2**31, 2**32, 2**32 + 1, 2**63, 2**64]
    assert len({state(seed, *key) for seed in seeds for key in every}) == len(seeds) * len(every)


def test_replicas_far_apart_do_not_share_a_state():
    replicas = [*range(5000), 10**6, 2**31, 2**32 - 1]
    found = {state(0, int(purpose), replica) for purpose in SECRET for replica in replicas}
    assert len(found) == len(SECRET) * len(replicas)


def test_a_key_that_begins_another_does_not_share_its_state():
    # Flower's newcomers have keys (COHORT, replica, user), the cohorts of all others (COHORT, replica).
    every = [key for length in range(5) for key in product(range(3), repeat=length)]
    assert len({state(7, *key) for key in every}) == len(every)


@pytest.mark.parametrize("number", [9, 50, 99, 101])
def test_a_purpose_to_come_meets_none_that_is_there(number):
    assert number not in {key[0] for key in keys()}
    taken = {state(3, *key) for key in keys()}
    new = {state(3, number, *path) for length in range(4) for path in product(range(4), repeat=length)}
    assert not taken & new


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_a_training_opens_every_secret_stream_once(federation, monkeypatch, mechanism):
    opened = []

    def recorded(seed, purpose, *path):
        opened.append((purpose, path))
        return np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))

    monkeypatch.setattr(randomness, "sequence", recorded)
    monkeypatch.setattr(seeds, "sequence", recorded)
    task = Task(
        federation=federation,
        model=build("linear", federation),
        mechanism=mechanism,
        local=LocalTraining(epochs=2, batch_size=2),
    )
    train_replicas(task, range(3))
    assert {len(path) for purpose, path in opened if purpose in SECRET} == {1}
    assert all(len(path) == LENGTHS[purpose.name] for purpose, path in opened)
    secret = [key for key in opened if key[0] in SECRET]
    # Cohorts are looked at twice, before round one too: who is in none need not train. Each look is the same.
    once = [key for key in secret if key[0] is not Purpose.COHORT]
    assert len(set(once)) == len(once)
    assert {path for purpose, path in secret if purpose is Purpose.NOISE} == {(0,), (1,), (2,)}


def normal(stream, count):
    """Normal numbers of a stream."""
    scale = torch.full((1, 1), 2.0**24, dtype=torch.float64)
    return noise([stream], [1], count, scale)[0] * 2.0**-24


def sequences(count, *, seeds=(0, 1), replicas=range(12), rounds=3, words=False):
    """Normal numbers `(streams, count)` of every purpose, replica and seed, and of later rounds of each."""
    dtype = torch.int64 if words else torch.float64
    rows = torch.empty(len(seeds) * len(SECRET) * len(replicas) * rounds, count, dtype=dtype)
    places = iter(rows)
    for seed, purpose, replica in product(seeds, SECRET, replicas):
        stream = Stream(seed, purpose, replica, CPU)
        for _ in range(rounds):
            row = next(places)
            if words:
                stream.words_(row)
            else:
                row.copy_(normal(stream, count))
    return rows.numpy()


def test_sequences_are_uncorrelated():
    rows = sequences(5000)
    assert dependence(rows) > FALSE_ALARM
    # and the test would see one stream in another, a fifth of it at that
    mixed = rows.copy()
    mixed[-1] = np.sqrt(0.8) * rows[-1] + np.sqrt(0.2) * rows[0]
    assert dependence(mixed) < FALSE_ALARM


def test_no_sequence_is_a_later_stretch_of_another():
    # 216 streams of 1,000 words of 64 bits: an accidental pair has chance 2e-9.
    rows = sequences(1000, words=True)
    assert np.unique(rows).size == rows.size


def test_uniform_numbers_that_choose_say_nothing_about_the_noise():
    count = 200_000
    chosen = draw_cohorts(Poisson(probability=0.3), np.arange(count), 1, 0, range(1))[0, 0]
    noise, batch = normal(Stream(0, Purpose.NOISE, 0, CPU), count), torch.empty(count, dtype=torch.float64)
    Stream(0, Purpose.BATCH, 0, CPU).uniform_(batch)
    bound = 4.9 / np.sqrt(count)  # standard normal beyond 4.9 with probability 1e-6, on both sides
    for first, second in [(chosen, noise.numpy()), (batch.numpy(), noise.numpy()), (chosen, batch.numpy())]:
        assert abs(np.corrcoef(first, second)[0, 1]) < bound


def test_a_users_order_depends_on_neither_the_others_nor_other_rounds():
    few, many = np.array([0, 6, 12]), np.array([0, 6, 12, 15, 60])
    for_few, for_many = data_order(1, 0, few, 3, np.arange(2)), data_order(1, 0, many, 3, np.arange(4))
    np.testing.assert_array_equal(for_few, for_many[:, :12])
    # Two users of one size, and two rounds of one user: each has an order of its own.
    long = np.arange(9) * 50
    orders = [
        tuple(order[0, start : start + 50] - start)
        for order in (data_order(1, round, long, 1, np.arange(8)) for round in range(20))
        for start in range(0, 400, 50)
    ]
    assert len(set(orders)) == 20 * 8


USERS, ROUNDS, REPLICAS = 20, 5, range(600)
IDS = np.arange(USERS)


def assert_frequency(count, trials, probability, tests=1):
    low, high = binom.interval(1 - FALSE_ALARM / tests, trials, probability)
    assert low <= count <= high


@pytest.mark.parametrize("sampling", [Poisson(probability=0.1), FixedSize(cohort=2, users=USERS)])
def test_every_user_is_drawn_with_the_stated_probability(sampling):
    chosen = draw_cohorts(sampling, IDS, ROUNDS, 7, REPLICAS)
    trials = len(REPLICAS) * ROUNDS
    for count in chosen.sum((0, 1)):
        assert_frequency(count, trials, 0.1, tests=USERS)
    # A sampler that draws 20 % too few would be caught on the total.
    if isinstance(sampling, Poisson):
        assert_frequency(chosen.sum(), trials * USERS, 0.1)
        assert binom.ppf(FALSE_ALARM, trials * USERS, 0.1) > trials * USERS * 0.08


def test_poisson_draws_are_independent():
    chosen = draw_cohorts(Poisson(probability=0.3), IDS, ROUNDS, 7, REPLICAS)
    trials = len(REPLICAS) * ROUNDS
    for first, second in [(0, 1), (3, 17), (18, 19)]:
        assert_frequency((chosen[..., first] & chosen[..., second]).sum(), trials, 0.09, tests=4)
    # the same user in neighbouring rounds
    again = (chosen[:, 1:, 0] & chosen[:, :-1, 0]).sum()
    assert_frequency(again, len(REPLICAS) * (ROUNDS - 1), 0.09, tests=4)


def test_fixed_cohorts_have_their_size_and_uniform_pairs():
    chosen = draw_cohorts(FixedSize(cohort=5, users=USERS), IDS, ROUNDS, 7, REPLICAS)
    assert (chosen.sum(2) == 5).all()
    pair = (5 * 4) / (USERS * (USERS - 1))
    for first, second in [(0, 1), (4, 9), (0, 19)]:
        together = (chosen[..., first] & chosen[..., second]).sum()
        assert_frequency(together, len(REPLICAS) * ROUNDS, pair, tests=3)


def test_everyone_takes_part():
    assert draw_cohorts(Everyone(), np.arange(3), 2, 0, range(2)).all()
    assert Everyone().expected(3) == 3


def test_a_fixed_cohort_of_another_federation_is_refused():
    with pytest.raises(ValueError, match=r"sampling.users = 5 must be the number of users = 4"):
        draw_cohorts(FixedSize(cohort=2, users=5), np.arange(4), 1, 0, range(1))


def test_a_replica_draws_the_same_whatever_is_drawn_beside_it():
    sampling = Poisson(probability=0.5)
    alone = draw_cohorts(sampling, IDS, ROUNDS, 7, range(5, 6))
    assert (alone[0] == draw_cohorts(sampling, IDS, ROUNDS, 7, range(10))[5]).all()


def test_orders_are_permutations_of_each_users_rows():
    offsets = np.array([0, 3, 4, 9])
    order = data_order(1, 0, offsets, 4, np.arange(3))
    for start, stop in ((0, 3), (3, 4), (4, 9)):
        assert (np.sort(order[:, start:stop], axis=1) == np.arange(start, stop)).all()
    assert not (order == data_order(1, 1, offsets, 4, np.arange(3))).all()
    # A user's order depends on itself, not on how much the others own.
    moved = data_order(1, 0, np.array([0, 5, 6, 11]), 4, np.arange(3))
    assert (moved[:, 6:] - 6 == order[:, 4:] - 4).all()
