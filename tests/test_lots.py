"""Random numbers that units draw by their identity."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedproof.mechanisms import Everyone, Poisson
from fedproof.rounds.randomness import draw
from fedproof.seeds import Lots, Purpose, _mixed, draw_cohorts, scattered

FALSE_ALARM = 1e-6


def test_elements_are_those_of_splitmix64():
    # The first outputs for the seed 1234567, as printed with many implementations of the generator.
    states = [(1234567 + number * 0x9E3779B97F4A7C15) % 2**64 for number in range(1, 4)]
    mixed = _mixed(np.array(states, dtype=np.uint64).view(np.int64)).view(np.uint64)
    assert mixed.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_arrays_and_tensors_draw_alike():
    lots, rng = Lots(5, Purpose.BATCH, range(3, 7)), np.random.default_rng(0)
    ids = rng.integers(0, 2**63 - 1, (4, 50))
    numbers, replica = np.array([0, 7, 7, 2]), np.array([0, 3, 1, 1])
    host = lots.draw(numbers, replica, ids)
    assert np.array_equal(draw(lots, numbers, replica, torch.from_numpy(ids)).numpy(), host)
    assert host.dtype == np.float64
    assert ((host >= 0) & (host < 1)).all()


def test_numbers_are_uniform_and_those_of_neighbours_unrelated():
    ids = np.arange(200_000)[None]
    first, second = (
        Lots(0, Purpose.COHORT, [r]).draw(np.zeros(1, int), np.zeros(1, int), ids)[0] for r in (0, 1)
    )
    assert kstest(first, "uniform").pvalue > FALSE_ALARM
    for other in (second, np.roll(first, 1), np.roll(first, 2)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 4.9 / np.sqrt(ids.size)
    assert kstest(first**1.02, "uniform").pvalue < FALSE_ALARM  # the test would see a chance 1 % too small


def test_nobodys_draw_depends_on_who_else_is_there():
    ids = np.array([4, 2**62, 17, 900])
    everybody = draw_cohorts(Poisson(probability=0.5), ids, 6, 3, range(8))
    for kept in ([1], [0, 2, 3], [3, 0]):
        assert np.array_equal(
            draw_cohorts(Poisson(probability=0.5), ids[kept], 6, 3, range(8)), everybody[:, :, kept]
        )
    assert draw_cohorts(Everyone(), ids, 2, 3, range(1)).all()


def test_scattered_identities_stay_apart():
    found = scattered(np.arange(100_000))
    assert len(np.unique(found)) == 100_000
    assert found.min() >= 0


@pytest.mark.parametrize("secure", [False, True])
def test_secure_numbers_are_fresh_and_others_repeat(secure):
    again = [
        Lots(1, Purpose.COHORT, range(1), secure=secure).draw(
            np.zeros(1, int), np.zeros(1, int), np.arange(9)[None]
        )
        for _ in range(2)
    ]
    assert np.array_equal(*again) is not secure
