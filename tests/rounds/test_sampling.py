"""Cohorts and batches are drawn with the stated probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fedproof.lots import Lots, Purpose, draw_cohorts
from fedproof.mechanisms import Everyone, FixedSize, InstanceFedAvg, Poisson
from fedproof.rounds.instance import PrivateTraining, _draws, _Rows
from fedproof.rounds.randomness import data_order
from fedproof.rounds.state import cohort_of

FALSE_ALARM = 1e-6
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


def test_instances_enter_batches_with_their_users_probability(setting):
    chances = np.linspace(0.1, 1.0, 10)
    training = PrivateTraining(steps=1, clip_norm=1.0, noise_std=1.0, batch_probability=chances)
    cohort = cohort_of(np.ones((2000, 10), dtype=np.bool_))
    cpu = torch.device("cpu")
    rows = _Rows.of(setting.users, cohort, cpu)
    [(draw, divisors)] = _draws(training, setting, rows, 0, Lots(0, Purpose.BATCH, range(2000)))
    assert (divisors == setting.local.batch_size).all()
    counts = draw.counts.reshape(2000, 10).sum(0)
    for count, chance in zip(counts.tolist(), chances, strict=True):
        assert_frequency(count, 2000 * 4, chance, tests=10)
    [(rows, mask)] = draw.batches(torch.arange(10), torch.ones(10, dtype=torch.bool), 4)
    owners = rows // 4
    assert (owners == torch.arange(10)[:, None])[mask].all()
    for row, kept in zip(rows, mask, strict=True):
        assert len(set(row[kept].tolist())) == int(kept.sum())


def test_shuffled_passes_take_every_instance_once(setting):
    setting = replace(setting, local=replace(setting.local, batch_size=3))
    training = PrivateTraining(
        steps=4, clip_norm=1.0, noise_std=1.0, batch_probability=np.ones(10), shuffled=True
    )
    cohort = cohort_of(np.ones((50, 10), dtype=np.bool_))
    cpu = torch.device("cpu")
    rows = _Rows.of(setting.users, cohort, cpu)
    steps = list(_draws(training, setting, rows, 0, Lots(0, Purpose.BATCH, range(50))))
    # Users hold four instances: three and one, twice.
    assert [set(draw.counts.tolist()) for draw, _ in steps] == [{3}, {1}, {3}, {1}]
    assert all((divisors[:, 0] == draw.counts).all() for draw, divisors in steps)
    passes = [
        torch.cat([draw.rows[:-1].view(500, -1) for draw, _ in half], dim=1)
        for half in (steps[:2], steps[2:])
    ]
    for one in passes:
        assert (one.sort(dim=1).values == 4 * torch.from_numpy(cohort.user)[:, None] + torch.arange(4)).all()
    assert (passes[0] != passes[1]).any(dim=1).float().mean() > 0.8
    first = (passes[0][:, 0] % 4).tolist()
    for place in range(4):
        assert_frequency(first.count(place), 500, 0.25, tests=4)


def test_batches_must_not_exceed_the_accounted_probability():
    mechanism = InstanceFedAvg(
        by_size=True, rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=0.2
    )
    sizes = np.array([10, 8])
    assert mechanism.batch_probabilities(sizes, 1).tolist() == [0.1, 0.125]
    with pytest.raises(ValueError, match=r"batch_probability = 0.2 must be at least .* 2/8 = 0.25"):
        mechanism.batch_probabilities(sizes, 2)


def test_orders_are_permutations_of_each_users_rows():
    offsets = np.array([0, 3, 4, 9])
    order = data_order(1, 0, offsets, 4, np.arange(3))
    for start, stop in ((0, 3), (3, 4), (4, 9)):
        assert (np.sort(order[:, start:stop], axis=1) == np.arange(start, stop)).all()
    assert not (order == data_order(1, 1, offsets, 4, np.arange(3))).all()
    # A user's order depends on itself, not on how much the others own.
    moved = data_order(1, 0, np.array([0, 5, 6, 11]), 4, np.arange(3))
    assert (moved[:, 6:] - 6 == order[:, 4:] - 4).all()
