"""A finite ensemble that is retrained under attack: it keeps the certified label as often as it is said to.

The adversary is explicit: everybody takes part in one round of noise σ, so the clean model is z ~ N(0, 1) and
k replaced users make it N(2k/σ, 1). Class 0 falls with z, which is the worst test there is for this pair.
"""

import json

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import binom, norm

from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates import (
    ApproximateDP,
    certify,
    certify_means,
    certify_sequentially,
    dumps,
    loads,
    verify,
)
from fedproof.certificates.document import checksum
from fedproof.certificates.tight import mean_sizes, served_gap
from fedproof.mechanisms import Bagging, Everyone, FixedSize, Partition, Poisson, UserFedAvg
from fedproof.mechanisms.codec import describe

SIGMA = 40.0
MECHANISM = UserFedAvg(rounds=1, noise_multiplier=SIGMA, sampling=Everyone())
REPLICAS, INPUTS, PSI, PSI_SERVED = 100, 1500, 0.02, 0.05
# 1,500 inputs are 1,500 experiments; one that fails with exactly ψ + ψ₂ trips this with FALSE_ALARM.
FALSE_ALARM = 1e-4
MOST = int(binom.isf(FALSE_ALARM, INPUTS, PSI + PSI_SERVED))


@pytest.mark.parametrize("num_replicas", [1, 2, 7, 30, 100, 1001])
@pytest.mark.parametrize("psi", [0.3, 0.05, 0.001])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_votes_with_exactly_that_lead_are_lost_rarely_enough(num_replicas, psi, num_classes):
    # votes for A or for one rival, the worst law with that lead: majority lost or tied
    rate = (1 + served_gap(num_replicas, num_classes, psi)) / 2
    assert binom.cdf(num_replicas // 2, num_replicas, rate) <= psi / (num_classes - 1) * (1 + 1e-9)


@pytest.mark.parametrize(("num_replicas", "psi"), [(30, 0.05), (100, 0.01), (1001, 0.001)])
def test_seven_tenths_of_that_lead_would_be_caught(num_replicas, psi):
    rate = (1 + 0.7 * served_gap(num_replicas, 2, psi)) / 2
    assert binom.cdf(num_replicas // 2, num_replicas, rate) > psi


def test_it_is_sharper_than_hoeffding_of_the_difference():
    for num_replicas in (5, 50, 5000):
        assert served_gap(num_replicas, 4, 0.01) < np.sqrt(2 * np.log(3 / 0.01) / num_replicas)
    assert served_gap(10**9, 2, 0.01) < 1e-4


def confidences(z, method):
    top = (z <= 1.3).astype(float) if method == "vote" else expit(4 * (1.3 - z))
    return np.stack([top, 0.9 * (1 - top), 0.1 * (1 - top)], axis=-1)


def failures(method, served=PSI_SERVED):
    """Inputs whose certified label an attacked, retrained ensemble of as many replicas does not give."""
    generator = np.random.default_rng(21)
    clean = confidences(generator.standard_normal((REPLICAS, INPUTS)), method)
    found = certify(
        clean, mechanism=MECHANISM, method=method, failure_probability=PSI, served=served, max_size=60
    )
    sizes = np.array([-1 if size is None else size for size in found.certified_size])
    attacked = confidences(generator.standard_normal((REPLICAS, INPUTS)) + 2 * sizes / SIGMA, method)
    label = attacked.mean(axis=0).argmax(axis=1)
    return found, int(np.sum((sizes >= 0) & (label != 0))), sizes


@pytest.mark.parametrize("method", ["mean", "margin", "vote"])
def test_the_attacked_ensemble_keeps_the_certified_label(method):
    found, lost, sizes = failures(method)
    assert lost <= MOST
    assert np.median(sizes) >= 5  # and it is no empty promise
    assert found.failure_probability == PSI + PSI_SERVED
    assert found.headline["served"] == PSI_SERVED


@pytest.mark.parametrize(("part", "kept"), [(1.0, True), (0.6, False), (0.0, False)])
def test_a_weaker_lead_is_caught(part, kept):
    # votes of known rate: nothing but the lead is left to go wrong, and the chance of that is exact
    rates, step = np.linspace(0.75, 0.99, 25), 1 / 500
    gap = part * served_gap(REPLICAS, 2, PSI_SERVED)
    sizes = mean_sizes(rates, 1 - rates, lambda k: GaussianTradeoff(shift=k * step), 3000, gap=gap)
    attacked = ndtr(norm.ppf(rates) - sizes * step)
    lost = binom.cdf(REPLICAS // 2, REPLICAS, attacked)
    assert np.all(lost <= PSI_SERVED) if kept else np.all(lost > PSI_SERVED)


def test_without_served_retrained_ensembles_may_lose_it():
    # the certificate of expected confidences, read as if it were about few retrained replicas
    rate = float(ndtr(1.3))
    largest = int((norm.ppf(rate)) * SIGMA / 2)  # its expectation still prefers class 0
    assert binom.cdf(5, 11, ndtr(1.3 - 2 * largest / SIGMA)) > 0.4


@pytest.mark.parametrize("method", ["mean", "margin", "vote"])
def test_served_certificates_are_smaller_and_come_back_from_files(scores, method):
    plain = certify(scores, mechanism=MECHANISM, method=method)
    served = certify(scores, mechanism=MECHANISM, method=method, served=0.01)
    for mine, other in zip(served.certified_size, plain.certified_size, strict=True):
        assert mine is None or mine <= other
    text = dumps(served)
    assert loads(text) == served
    assert verify(text, scores) == ()
    (told,) = [one for one in served.assumptions if one.code == "about-served"]
    assert told.arguments["replicas"] == 200
    assert "fails with at most 0.02" in told.sentence
    assert "about-served" not in {one.code for one in plain.assumptions}


def test_a_file_cannot_claim_to_be_about_a_served_ensemble(scores):
    document = json.loads(dumps(certify(scores, mechanism=MECHANISM, method="mean")))
    document["served"] = 0.01
    document["checksums"]["served"] = checksum(0.01)
    assert any(line.startswith("certified_size") for line in verify(json.dumps(document), scores))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "paper", "delta": 1e-3}, "served needs method mean, margin or vote"),
        ({"method": "renyi"}, "served needs method mean, margin or vote"),
        ({"served": 0.0}, "served"),
        ({"served": 1.0}, "served"),
        ({"served": True}, "served"),
        (
            {"mechanism": Partition(groups=200), "method": "vote"},
            "served must be None where nothing is estimated",
        ),
    ],
)
def test_what_is_refused(scores, settings, message):
    with pytest.raises(ValueError, match=message):
        certify(scores, **({"mechanism": MECHANISM, "served": 0.01} | settings))


def test_other_guarantees_serve_too(scores):
    known = ApproximateDP(epsilon=0.05, delta=1e-6, relation="replace")
    once = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=500))
    for source in ({"privacy": known}, {"mechanism": once}):
        found = certify(scores, method="mean", served=0.05, **source)
        assert max(size for size in found.certified_size if size is not None) > 0
    batches = [scores[:100], scores[100:]]
    assert certify_sequentially(batches, size=3, mechanism=MECHANISM, served=0.05).settings.served == 0.05


def test_means_are_of_no_number_of_replicas_that_could_be_served():
    means = np.array([[0.9, 0.1]])
    document = json.loads(dumps(certify_means(means, mechanism=MECHANISM))) | {"served": 0.05}
    body = {name: value for name, value in document.items() if name != "checksums"}
    text = json.dumps(body | {"checksums": {name: checksum(value) for name, value in body.items()}})
    (found,) = verify(text, means)
    assert found.startswith("served must be None for means")


def test_a_theorem_that_does_not_go_with_the_mechanism_is_told_in_a_sentence():
    scores = np.random.default_rng(3).dirichlet([9, 1], size=(30, 2))
    document = json.loads(dumps(certify(scores, mechanism=MECHANISM, method="renyi")))
    bagging = describe(Bagging(rounds=1, sampling=Poisson(probability=0.5)))
    body = {name: value for name, value in document.items() if name != "checksums"} | {"mechanism": bagging}
    text = json.dumps(body | {"checksums": {name: checksum(value) for name, value in body.items()}})
    assert any("no privacy guarantee" in sentence for sentence in verify(text, scores))
