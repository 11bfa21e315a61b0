"""Verdicts by each rule: an ensemble that answers as certified is kept, one that surely does not is not."""

import numpy as np
import pytest

from fedproof.certificates import certify
from fedproof.mechanisms import Bagging, FixedSize, Partition
from fedproof.robustness.outcome import verdict

MODELS = {  # what each model says of three classes
    "first": (0.5, 0.3, 0.2),
    "second": (0.2, 0.5, 0.3),
    "third": (0.2, 0.3, 0.5),
}


def ensemble(**numbers):
    """Scores (models, inputs = 1, classes) of so many models of each kind."""
    return np.array([MODELS[kind] for kind, number in numbers.items() for _ in range(number)])[:, None]


@pytest.mark.parametrize("rule", ["plurality", "pairwise", "run-off"])
@pytest.mark.parametrize(
    "mechanism", [Partition(groups=400), Bagging(rounds=1, sampling=FixedSize(cohort=2, users=99))]
)
@pytest.mark.parametrize(
    ("attacked", "contradicted"),
    [
        ({"first": 300, "second": 100}, False),
        ({"first": 90, "second": 310}, True),  # the second has more votes, and is preferred
        ({"first": 20, "second": 190, "third": 190}, True),  # the first is not among the first two
    ],
)
def test_what_is_surely_lost_is_a_contradiction(rule, mechanism, attacked, contradicted):
    clean = ensemble(first=350, second=50)
    certificate = certify(clean, mechanism=mechanism, method="vote", rule=rule)
    assert certificate.certified_size[0] >= 1
    found = verdict(ensemble(**attacked), certificate, 1, failure_probability=1e-6)
    assert (found.certified, found.kept, found.contradicted) == (1, not contradicted, contradicted)


@pytest.mark.parametrize("rule", ["pairwise", "run-off"])
def test_a_near_tie_of_replicas_is_no_contradiction(rule):
    mechanism = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=99))
    certificate = certify(ensemble(first=350, second=50), mechanism=mechanism, method="vote", rule=rule)
    found = verdict(ensemble(first=198, second=202), certificate, 1, failure_probability=1e-6)
    assert (found.kept, found.contradicted) == (0, 0)
