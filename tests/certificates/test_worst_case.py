"""`certify` end to end against a poisoned distribution written out: no method may claim a size that flips.

Clean models are z ~ N(0, σ²); with k adversaries, each drawn with probability q, one round gives the mixture
Σ Bin(k, q)(j) N(j, σ²). The confidence of class 0 falls with z, which is what such an adversary aims at.
"""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

from fedproof.certificates import certify
from fedproof.mechanisms import Poisson, UserFedAvg
from tests.certificates.conftest import JOIN

SIGMA, PROBABILITY = 4.0, 0.2
MECHANISM = UserFedAvg(rounds=1, noise_multiplier=SIGMA, sampling=Poisson(probability=PROBABILITY))
POINTS = SIGMA * norm.ppf((np.arange(40_000) + 0.5) / 40_000)
FAILURE_PROBABILITY = 0.05
INPUTS = 1000


def confidences(z):
    top = expit((5.0 - z) / 2)
    return np.stack([top, 0.7 * (1 - top), 0.3 * (1 - top)], axis=-1)


def votes(z):
    scores = confidences(z)
    return np.arange(3) == scores.argmax(axis=-1)[..., None]


def poisoned_mean(statistic, size):
    """Expected statistic when `size` adversaries join, by quadrature over the mixture."""
    drawn = np.arange(size + 1)
    parts = np.array([statistic(POINTS + j).mean(axis=0) for j in drawn])
    return binom.pmf(drawn, size, PROBABILITY) @ parts


def true_size(statistic):
    """Largest size that does not flip the prediction."""
    size = 0
    while poisoned_mean(statistic, size + 1).argmax() == 0:
        size += 1
    return size


@pytest.fixture(scope="module")
def scores():
    return confidences(SIGMA * np.random.default_rng(12).standard_normal((300, INPUTS)))


@pytest.mark.parametrize(
    ("method", "bound"),
    [
        ("mean", "betting"),
        ("mean", "hoeffding"),
        ("mean", "empirical-bernstein"),
        ("margin", "betting"),
        ("margin", "levels"),
        ("vote", "clopper-pearson"),
        ("paper", "betting"),
        ("renyi", "clopper-pearson"),
    ],
)
def test_no_claim_beyond_the_worst_case(scores, method, bound):
    found = certify(
        scores,
        mechanism=MECHANISM,
        threat=JOIN,
        method=method,
        bound=bound,
        failure_probability=FAILURE_PROBABILITY,
        delta=1e-3,
    )
    truth = true_size(votes if method in ("vote", "renyi") else confidences)
    sizes = np.array([-1 if size is None else size for size in found.certified_size])
    # 1,000 inputs are 1,000 experiments: at most ψ and three standard errors may be wrong
    limit = FAILURE_PROBABILITY + 3 * np.sqrt(FAILURE_PROBABILITY * (1 - FAILURE_PROBABILITY) / INPUTS)
    assert np.mean(sizes > truth) <= limit
    assert np.median(sizes) >= 0


def test_means_without_error_reach_the_worst_case_of_votes():
    # votes are the worst test itself: the certificate is tight, no size below the truth is missed
    from fedproof.certificates import certify_means

    exact = votes(POINTS).mean(axis=0)
    found = certify_means(exact[None], mechanism=MECHANISM, threat=JOIN, method="vote").certified_size[0]
    assert found == true_size(votes) or found == true_size(votes) - 1  # `join` is read both ways
