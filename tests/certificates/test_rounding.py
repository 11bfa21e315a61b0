"""Numbers of few bits: what is certified of them is certified of what they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.certificates import Rule, certify, certify_means, collective
from fedproof.mechanisms import Everyone, Partition, Poisson, UserFedAvg
from fedproof.statements import sentences

SHARP = UserFedAvg(rounds=1, noise_multiplier=20.0, sampling=Everyone())
POISSON = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))


def size(means, dtype, **more):
    [found] = certify_means(
        np.array([means], dtype=dtype), mechanism=SHARP, max_size=500, **more
    ).certified_size
    return -1 if found is None else found


def test_a_mean_of_one_in_half_precision_is_not_exact():
    # 0.9998 is stored as 1 in float16: certified must be what holds for 0.9998
    assert np.float16(0.9998) == 1
    assert size([1.0, 0.0], np.float16) <= size([0.9998, 0.0002], np.float64) < 100


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_type_certifies_without_end(dtype):
    assert size([1.0, 0.0], dtype) < 500


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.floats(0.5, 1),
    st.floats(0, 1),
    st.sampled_from([np.float16, np.float32]),
    st.sampled_from(["mean", "paper"]),
)
def test_rounding_never_certifies_more(top, split, dtype, method):
    exact = np.array([top, (1 - top) * split, 1 - top - (1 - top) * split])
    known = {"method": method, "delta": 1e-3 if method == "paper" else None}
    assert size(exact, dtype, **known) <= size(exact, np.float64, **known)


def test_a_row_that_misses_one_counts_against_itself():
    # nobody knows which of the two numbers is wrong by 0.0015
    right, wrong = size([0.97, 0.03], np.float16), size([0.9715, 0.03], np.float16)
    assert wrong <= right
    found = certify_means(np.array([[0.9715, 0.03]], dtype=np.float16), mechanism=POISSON)
    assert found.top_lower[0] < 0.9705
    assert found.rival_upper[0] > 0.031
    assert "up to the rounding of float16 and what a row misses one by" in found.assumptions[0].sentence


def test_numbers_of_64_bits_certify_what_they_did():
    # theory.md section 3, the readings of the mean certificate
    for top, expected in ((0.80, 4), (0.97, 11), (0.995, 15)):
        assert certify_means([[top, 1 - top]], mechanism=POISSON).certified_size == (expected,)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("mean", "confidences are the float16 numbers as they are stored"),
        ("margin", "confidences are the float16 numbers as they are stored"),
        ("vote", "votes are those of the float16 numbers as they are stored, the first of equal ones"),
    ],
)
def test_the_predictor_of_replicas_is_the_one_of_the_stored_numbers(scores, method, sentence):
    """Rounding is part of the model then: what is bounded is its expectation, not that of other numbers."""
    half = scores.astype(np.float16)
    found = certify(half, mechanism=POISSON, method=method)
    assert any(line.startswith(sentence) for line in sentences(found.assumptions))


@pytest.mark.parametrize("rule", ["plurality", "pairwise", "run-off"])
@pytest.mark.parametrize("kind", [Partition(groups=40), POISSON])
def test_of_two_classes_a_model_votes_for_the_one_that_is_stored_as_larger(kind, rule):
    """One minus the second class's confidence is equal to it here, and the first of equal ones would win."""
    stored = np.float32([np.nextafter(np.float32(0.5), np.float32(0)), 0.5])
    assert stored[1] > stored[0]
    assert 1 - stored[1] == stored[1]
    replicas = np.broadcast_to(stored, (40, 1, 2))
    assert certify(replicas, mechanism=kind, method="vote", rule=rule).prediction == (1,)
    if kind.kind == "partition" and rule != "run-off":
        assert collective(replicas, [19, 20], rule=Rule(rule)) == {19: 0, 20: 1}
