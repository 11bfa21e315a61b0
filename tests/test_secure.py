"""Numbers from the operating system: their law, their only source, and that nothing repeats them.

They cannot be seeded: FALSE_ALARM is the chance that a right generator fails a test, each time it runs.
"""

import os

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest, norm

from fedproof import exact, seeds
from fedproof.seeds import SecureGenerator

FALSE_ALARM = 1e-6
COUNT = 400_000
DTYPES = [np.float32, np.float64]


def normal(count):
    """Normal numbers from the operating system's bits."""
    return exact.drawn(SecureGenerator(), count, 2.0**24) * 2.0**-24


def test_normal_numbers_have_the_normal_law():
    numbers = normal(COUNT)
    assert kstest(numbers, "norm").pvalue > FALSE_ALARM
    for wrong in (0.95 * numbers, numbers + 0.03):  # and the test would see it
        assert kstest(wrong, "norm").pvalue < FALSE_ALARM
    # The law far out, of which the test above sees nothing.
    low, high = binom.interval(1 - FALSE_ALARM, COUNT, 2 * norm.sf(3.5))
    assert low <= np.count_nonzero(np.abs(numbers) > 3.5) <= high


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform_numbers_have_the_uniform_law(dtype):
    numbers = SecureGenerator().random(COUNT, dtype=dtype)
    assert numbers.dtype == dtype
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert kstest(numbers.astype(np.float64), "uniform").pvalue > FALSE_ALARM


def test_no_bits_round_up_to_one(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * count)
    for dtype in DTYPES:
        assert SecureGenerator().random(3, dtype=dtype).max() == 1 - np.finfo(dtype).epsneg


def test_neighbours_are_independent():
    numbers = normal(COUNT)
    bound = norm.isf(FALSE_ALARM / 2 / 6) / np.sqrt(COUNT)
    for values in (numbers, numbers**2):  # radii that are shared would show in the squares
        standard = (values - values.mean()) / values.std()
        for lag in (1, 2, seeds._BLOCK):
            assert abs(np.mean(standard[lag:] * standard[:-lag])) < 1.1 * bound


def test_the_operating_system_is_the_only_source(known_bits):
    found = []
    for key in ("a", "a", "b"):
        known_bits(key)
        found.append(normal(50_000))
    assert (found[0] == found[1]).all()
    assert np.mean(found[0] == found[2]) < 1e-3


def test_every_number_takes_bits_of_its_own(known_bits):
    asked = known_bits("a")
    SecureGenerator().words(7000)
    assert sum(asked) == 8 * 7000
    asked.clear()
    SecureGenerator().random(10)
    assert sum(asked) == 80


def test_global_generators_are_neither_read_nor_moved():
    np_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = SecureGenerator().words(1000)
    assert (np.random.get_state()[1] == np_state).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert not (first == SecureGenerator().words(1000)).any()


@pytest.mark.parametrize("size", [(), 0, 1, 5, (3, 4), seeds._BLOCK, seeds._BLOCK + 1, 3 * seeds._BLOCK])
def test_every_entry_is_filled(size):
    draw = SecureGenerator().random
    assert draw(size).shape == np.empty(size).shape
    out = np.full(size, np.nan, dtype=np.float32)
    assert draw(dtype=np.float32, out=out) is out
    assert np.isfinite(out).all()
