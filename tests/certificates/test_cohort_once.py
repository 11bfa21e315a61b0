"""Certificates of ensembles whose cohorts are drawn once: files, soundness, all methods."""

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import UnsupportedEventError

from fedproof.certificates import certify, dumps, loads, verify
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, Poisson
from fedproof.statements import sentences
from fedproof.threat import ThreatModel

ALONE = Bagging(rounds=2, sampling=FixedSize(cohort=5, users=1000))
HYBRID = CohortOnce(rounds=2, sampling=Poisson(probability=0.01), noise_multiplier=3.0, clip_norm=0.5)


@pytest.fixture(scope="module")
def scores():
    generator = np.random.default_rng(0)
    return generator.dirichlet([30, 1, 1], size=(300, 2))


BAGGING = Bagging(rounds=2, sampling=FixedSize(cohort=5, users=1000), pooled=True, unit="instance")
DRAWN = replace(HYBRID, pooled=True, unit="instance")


@pytest.mark.parametrize(
    "mechanism", [ALONE, HYBRID, BAGGING, DRAWN], ids=["alone", "hybrid", "bagging", "hybrid instances"]
)
@pytest.mark.parametrize("method", ["vote", "mean", "margin"])
def test_every_tight_method_certifies_and_verifies(scores, mechanism, method):
    threat = ThreatModel(unit=mechanism.unit)
    certificate = certify(scores, [0, 0], mechanism=mechanism, threat=threat, method=method, max_size=22)
    assert certificate.sound
    assert all(size is not None and size >= 20 for size in certificate.certified_size)
    text = dumps(certificate)
    assert loads(text) == certificate
    assert verify(text, scores) == ()


def test_the_certificate_says_whether_privacy_is_claimed(scores):
    alone, hybrid = (
        sentences(certify(scores, mechanism=mechanism).assumptions) for mechanism in (ALONE, HYBRID)
    )
    assert any("no privacy is claimed" in line for line in alone)
    assert not any("no privacy is claimed" in line for line in hybrid)
    bagged = sentences(certify(scores, mechanism=BAGGING, threat=ThreatModel(unit="instance")).assumptions)
    drawn = certify(scores, mechanism=DRAWN, threat=ThreatModel(unit="instance"), max_size=2)
    drawn = sentences(drawn.assumptions)
    assert drawn == hybrid
    assert "instances were drawn at random and no other was trained on; no privacy" in bagged[-1]


def test_a_guarantee_for_instances_is_none_for_users(scores):
    with pytest.raises(ValueError, match="unit = 'user' must be 'instance', what the mechanism protects"):
        certify(scores, mechanism=DRAWN, threat=ThreatModel(unit="user"))


@pytest.mark.parametrize("method", ["paper", "renyi"])
def test_methods_that_need_privacy_refuse_sampling_alone(scores, method):
    with pytest.raises(UnsupportedEventError, match="has no privacy guarantee"):
        certify(scores, mechanism=ALONE, method=method, delta=1e-5)
