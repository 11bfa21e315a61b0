"""Argument checks: seeds may be long, counts may not."""

import pytest

from fedproof import check, data
from fedproof.config.sections import PretrainSection
from fedproof.mechanisms import LocalTraining


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


@pytest.mark.parametrize("key", ["learning_rate", "weight_decay"])
def test_a_factor_that_float32_does_not_hold_is_refused_before_training(key):
    LocalTraining(**{key: 1e30})
    with pytest.raises(
        ValueError, match=rf"{key} = 1e\+39 must be at most 1e\+30: float32 holds little more"
    ):
        LocalTraining(**{key: 1e39})
    with pytest.raises(ValueError, match="less than or equal to 1000"):
        PretrainSection(**{key: 1e39})
