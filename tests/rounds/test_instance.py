"""Batches of DP-SGD are drawn with the stated probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fedproof.mechanisms import InstanceFedAvg
from fedproof.rounds.instance import _draws, _poisson, _Rows
from fedproof.rounds.state import cohort_of
from fedproof.seeds import Lots, Purpose

FALSE_ALARM = 1e-6


def assert_frequency(count, trials, probability, tests=1):
    low, high = binom.interval(1 - FALSE_ALARM / tests, trials, probability)
    assert low <= count <= high


def test_instances_enter_batches_with_their_users_probability(setting):
    chances = np.linspace(0.1, 1.0, 10)
    cohort = cohort_of(np.ones((2000, 10), dtype=np.bool_))
    cpu = torch.device("cpu")
    rows = _Rows.of(setting.users, cohort, cpu)
    [(draw, divisors)] = _poisson(chances, setting, rows, range(1), Lots(0, Purpose.BATCH, range(2000)))
    assert (divisors == setting.local.batch_size).all()
    counts = draw.counts.reshape(2000, 10).sum(0)
    for count, chance in zip(counts.tolist(), chances, strict=True):
        assert_frequency(count, 2000 * 4, chance, tests=10)
    rows, mask = draw.batch(torch.arange(10), 0, 4)
    owners = rows // 4
    assert (owners == torch.arange(10)[:, None])[mask].all()
    for row, kept in zip(rows, mask, strict=True):
        assert len(set(row[kept].tolist())) == int(kept.sum())


def test_shuffled_passes_take_every_instance_once(setting):
    setting = replace(setting, local=replace(setting.local, batch_size=3))
    mechanism = InstanceFedAvg(
        rounds=1, local_steps=4, noise_multiplier=1.0, batch_probability=1.0, shuffled=True
    )
    cohort = cohort_of(np.ones((50, 10), dtype=np.bool_))
    cpu = torch.device("cpu")
    rows = _Rows.of(setting.users, cohort, cpu)
    steps = list(_draws(mechanism, setting, rows, 0, Lots(0, Purpose.BATCH, range(50))))
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
