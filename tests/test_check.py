"""Argument checks: seeds may be long, counts may not."""

import pytest

from fedproof import check, data


def test_a_seed_may_have_64_bits():
    check.not_negative_count(seed=2**64 - 1)
    assert data.load("digits", users=12, seed=2**64 - 1).num_users == 12


def test_a_count_fits_into_64_bits():
    check.count(rounds=2**63 - 1)
    with pytest.raises(ValueError, match="rounds must be a whole number below"):
        check.count(rounds=2**63)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_what_is_no_count_is_named(value):
    with pytest.raises(ValueError, match=f"rounds = {value!r} must be a whole number of at least 1"):
        check.count(rounds=value)
