"""Composition of privacy losses."""

import numpy as np
import pytest
from dp_accounting.pld import common

from fedproof.accounting.loss import self_convolve


@pytest.mark.parametrize(("size", "count"), [(3, 2), (50, 7), (769, 100), (4885, 1000)])
def test_sums_of_losses_are_those_of_dp_accounting(size, count):
    masses = np.random.default_rng(0).random(size) ** 4
    masses /= masses.sum()
    first, expected = common.self_convolve(masses, count, 1e-15)
    low, found = self_convolve(masses, count)
    # The range may differ by one where a bound is rounded; the mass there is below the tail.
    assert abs(low - first) <= 1
    assert abs(low + len(found) - first - len(expected)) <= 1
    both = slice(max(low, first), min(low + len(found), first + len(expected)))
    np.testing.assert_allclose(
        found[both.start - low : both.stop - low],
        np.asarray(expected)[both.start - first : both.stop - first],
        atol=1e-15,
    )
    assert found.sum() == pytest.approx(1, abs=1e-12)
