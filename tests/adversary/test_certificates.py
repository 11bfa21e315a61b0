"""Whole certificates against the adversaries of `worlds`: what is certified for k stays the answer.

A test of level p is a model that answers "yes" with probability p. The adversary's best tests are certified
like any ensemble's means or votes; those certified against its k units must keep their majority.
"""

import os

import numpy as np
import pytest

from fedproof.certificates import certify_means
from tests.adversary.laws import NUMERICAL_ERROR, best_tests
from tests.adversary.worlds import KINDS

TRIALS = int(os.environ.get("FEDPROOF_FUZZ_TRIALS", 2500)) // 5
SEED, LARGEST = 23, 8
METHODS = {
    "mean": list(KINDS),
    "vote": list(KINDS),
    "renyi": [kind for kind in KINDS if "alone" not in kind and "fixed" not in kind],
    "paper": ["user poisson", "user everyone", "user quantile", "instance fedavg", "queries"],
}


def certified(world, tests, method, delta):
    """Which tests are certified against all units of the world, None where the certificate is not sound."""
    means = np.stack((tests[:, 0], 1 - tests[:, 0]), axis=1)
    certificate = certify_means(
        means, mechanism=world.mechanism, threat=world.threat, method=method, delta=delta, max_size=world.size
    )
    if not certificate.sound:
        return None
    return np.array([size is not None and size >= world.size for size in certificate.certified_size])


@pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for method in METHODS for kind in METHODS[method]]
)
def test_what_is_certified_keeps_its_majority(method, kind, record_property):
    rng, trials, proved = np.random.default_rng(SEED), 0, 0
    for _ in range(50 * TRIALS):
        if trials >= TRIALS:
            break
        make = KINDS[kind](rng)
        for world in (make(), make()):
            if world.size > LARGEST:
                break
            for pair in world.sides:
                tests = best_tests(pair)
                delta = float(np.exp(rng.uniform(np.log(1e-6), np.log(0.05)))) if method == "paper" else None
                claimed = certified(world, tests, method, delta) if len(tests) else None
                if claimed is None:
                    continue
                after = np.where(tests[:, 0] > 0.5, tests[:, 1], 1 - tests[:, 1])
                assert (after[claimed] > 0.5 - NUMERICAL_ERROR).all(), str(world)
                trials, proved = trials + len(tests), proved + int(claimed.sum())
    record_property("trials", trials)
    record_property("certified", proved)
    assert trials >= TRIALS
    assert proved > 0 or method in ("renyi", "paper")  # which prove little where an adversary tells much
