"""One statement about all inputs: the failure probability is that any of them is wrong."""

import json

import numpy as np
import pytest
from scipy.stats import binom

from fedproof.certificates import certify, certify_sequentially, dumps, loads, verify
from fedproof.mechanisms import Bagging, FixedSize, Partition

FALSE_ALARM = 1e-6
MECHANISM = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=99))
PSI, INPUTS, TRIALS = 0.2, 30, 150


def wrong_anywhere(simultaneous, method):
    """In how many trials some input of 30 is certified for the class that truly comes second."""
    generator, count = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        votes = (generator.random((80, INPUTS)) < 0.5).astype(np.float64)
        scores = np.stack([1 - votes, votes], axis=2)
        found = certify(
            scores,
            mechanism=MECHANISM,
            method=method,
            failure_probability=PSI,
            max_size=0,
            simultaneous=simultaneous,
        )
        count += any(label is not None for label in found.prediction)  # a tie: every claim is false
    return count


@pytest.mark.parametrize("method", ["vote", "mean", "margin"])
def test_all_inputs_hold_together_as_often_as_promised(method):
    most = binom.isf(FALSE_ALARM, TRIALS, PSI)
    assert wrong_anywhere(True, method) <= most


def test_each_input_by_itself_does_not_promise_that():
    assert wrong_anywhere(False, "vote") > binom.isf(FALSE_ALARM, TRIALS, PSI)


@pytest.fixture(scope="module")
def scores():
    return np.random.default_rng(1).dirichlet([8, 2, 1], size=(200, 12)).astype(np.float32)


@pytest.mark.parametrize("method", ["vote", "mean", "margin"])
@pytest.mark.parametrize("served", [None, 0.06])
def test_it_is_each_input_at_its_share(scores, method, served):
    asked = {"mechanism": MECHANISM, "method": method}
    together = certify(scores, failure_probability=0.12, served=served, simultaneous=True, **asked)
    alone = certify(scores, failure_probability=0.01, served=served and 0.005, **asked)
    assert together.certified_size == alone.certified_size
    assert together.failure_probability == 0.12 + (served or 0)
    assert together.headline["simultaneous"]
    assert "about-all-inputs" in {one.code for one in together.assumptions}


def test_files_say_it_and_verify(scores):
    certificate = certify(scores, mechanism=MECHANISM, method="vote", simultaneous=True)
    text = dumps(certificate)
    assert loads(text) == certificate
    assert verify(text, scores) == ()
    document = json.loads(text)
    del document["simultaneous"]
    with pytest.raises(ValueError, match="missing or unknown fields: simultaneous"):
        verify(json.dumps(document), scores)
    document["simultaneous"] = False
    assert any(line.startswith("certified_size") for line in verify(json.dumps(document), scores))
    document["simultaneous"] = 1
    assert any(
        "simultaneous = 1 must be one of bool" in line for line in verify(json.dumps(document), scores)
    )


def test_what_is_certain_is_certain_together(scores):
    asked = {"mechanism": Partition(groups=200), "method": "vote"}
    together, alone = certify(scores, simultaneous=True, **asked), certify(scores, **asked)
    assert together.certified_size == alone.certified_size
    assert together.failure_probability == 0


def test_replicas_can_be_added_until_all_is_decided_together(scores):
    batches = [scores[first : first + 50] for first in range(0, 200, 50)]
    asked = {"size": 3, "mechanism": MECHANISM, "method": "vote"}
    found = certify_sequentially(batches, simultaneous=True, **asked)
    assert found.settings.simultaneous
    assert found.num_replicas >= certify_sequentially(batches, **asked).num_replicas
