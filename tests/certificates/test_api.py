"""`certify` end to end: methods, reasons, abstention, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from fedproof.certificates import ApproximateDP, Bound, Method, certify, certify_means, dumps
from fedproof.certificates.paper_theorems import real_size
from fedproof.mechanisms import FedAvg, FixedSize, InstanceFedSGD, Median, Poisson, UserFedAvg
from fedproof.statements import sentences
from fedproof.threat import ThreatModel
from tests.certificates.conftest import JOIN, REPLACE

KNOWN = ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")
FIXED = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=FixedSize(cohort=20, users=200))


def sizes(certificate):
    return np.array([-1 if size is None else size for size in certificate.certified_size])


@pytest.mark.parametrize("relation", ["join", "replace"])
def test_tight_methods_beat_the_paper(scores, poisson_mechanism, relation):
    threat = ThreatModel(unit="user", relation=relation)
    found = {
        method: sizes(
            certify(scores, mechanism=poisson_mechanism, threat=threat, method=method, delta=0.0029)
        )
        for method in Method
        if method is not Method.EXACT
    }
    assert np.all(found[Method.MEAN] >= found[Method.PAPER])
    assert found[Method.MARGIN].mean() > found[Method.MEAN].mean()
    assert np.all(found[Method.VOTE] >= found[Method.RENYI])


def test_the_papers_size_from_a_mechanism(poisson_mechanism):
    found = certify_means(
        [[0.97, 0.03]], [0], mechanism=poisson_mechanism, threat=JOIN, method="paper", delta=0.0029
    )
    assert found.settings.privacy.epsilon == pytest.approx(0.6298, abs=5e-5)  # the paper's MNIST table
    assert found.real_size[0] == pytest.approx(2.68, abs=0.005)
    assert found.certified_size == (2,)
    assert found.sound


def test_the_papers_monte_carlo(scores):
    # Hoeffding with ψ on each of the two bounds: F_A - sqrt(log(1/ψ)/2O), F_B + the same
    found = certify(scores, privacy=KNOWN, method="paper", bound="hoeffding", spending="paper")
    means = scores.astype(np.float64).mean(axis=0)
    width = np.sqrt(np.log(100) / 400)
    top, rival = np.sort(means, axis=1)[:, -1] - width, np.sort(means, axis=1)[:, -2] + width
    expected = real_size(np.maximum(top, 0), np.minimum(rival, 1), epsilon=0.1, delta=1e-5)
    assert np.allclose(found.real_size, expected)
    assert "spending" in {one.code for one in found.unmet}


def test_ties_and_open_predictions_abstain():
    tied = np.full((50, 1, 2), 0.5)
    for method in set(Method) - {Method.EXACT}:
        if method is not Method.RENYI:
            found = certify(tied, [0], privacy=KNOWN, method=method)
            if method is not Method.VOTE:  # equal confidences are a vote for the first class
                assert found.prediction == (None,)
                assert found.certified_size == (None,)
                assert found.certified_accuracy([0]) == [0.0]
                assert found.accuracy == 0.0
    halves = np.zeros((50, 1, 2))
    halves[:25, :, 0] = halves[25:, :, 1] = 1.0
    assert certify(halves, privacy=KNOWN, method="vote").prediction == (None,)


def test_two_replicas_are_enough_to_run_and_not_to_certify():
    scores = np.zeros((2, 1, 2))
    scores[..., 0] = 1.0
    for method in ("mean", "margin", "vote", "paper"):
        assert certify(scores, privacy=KNOWN, method=method).certified_size == (None,)


def test_accuracy_is_that_of_the_ensemble(scores):
    labels = [0] * 6 + [1] * 6
    for method in ("mean", "margin"):
        found = certify(scores, labels, privacy=KNOWN, method=method)
        leaders = scores.astype(np.float64).mean(axis=0).argmax(axis=1)
        assert found.accuracy == np.mean(leaders == np.array(labels))


def test_paths_and_arrays_give_the_same_file(tmp_path, scores):
    np.save(tmp_path / "scores.npy", scores)
    np.save(tmp_path / "labels.npy", np.zeros(12, dtype=np.int32))
    from_files = certify(tmp_path / "scores.npy", str(tmp_path / "labels.npy"), privacy=KNOWN)
    assert dumps(from_files) == dumps(certify(scores, [0] * 12, privacy=KNOWN))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mechanism": FIXED, "method": "paper", "delta": 0.0029}, "Poisson sampling is accounted"),
        ({"mechanism": FIXED, "method": "paper", "delta": 0.0029}, "units are replaced"),
        ({"privacy": KNOWN, "method": "mean", "spending": "paper"}, "neither both together"),
        ({"privacy": KNOWN, "method": "mean", "bound": "none"}, "taken as exact"),
        (
            {
                "mechanism": UserFedAvg(
                    rounds=1, noise_multiplier=9.0, sampling=Poisson(probability=0.1), clipping=Median()
                )
            },
            "median of the cohort",
        ),
        (
            {
                "mechanism": InstanceFedSGD(
                    rounds=2,
                    noise_multiplier=2.0,
                    sampling=FixedSize(cohort=3, users=10),
                    batch_probability=0.1,
                ),
                "threat": ThreatModel(unit="instance"),
                "method": "paper",
                "delta": 1e-5,
            },
            "drawn by itself",
        ),
        (
            {
                "mechanism": UserFedAvg(rounds=1, noise_multiplier=9.0, sampling=Poisson(probability=0.1)),
                "method": "renyi",
                "group": "paper",
            },
            "units are replaced",
        ),
    ],
)
def test_heuristics_say_why(scores, settings, reason):
    found = certify(scores, **settings)
    assert not found.sound
    assert any(reason in line for line in sentences(found.unmet))


@pytest.mark.parametrize("method", ["mean", "margin", "vote", "renyi"])
def test_the_defaults_are_sound(scores, method, poisson_mechanism):
    for mechanism in (poisson_mechanism, FIXED):
        assert certify(scores, mechanism=mechanism, method=method).sound


def test_assumptions_are_stated(scores, poisson_mechanism):
    known = certify(scores, privacy=KNOWN).assumptions
    assert known[-1].sentence == "epsilon and delta were proved for one user replaced by another"
    stated = {one.code for one in certify(scores, mechanism=poisson_mechanism).assumptions}
    assert {"predictor-confidences", "divisor"} <= stated
    assert certify_means([[0.9, 0.1]], privacy=KNOWN).assumptions[0].code == "means-exact"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "privacy"),
        ({"privacy": KNOWN, "mechanism": FIXED}, "must not be given together"),
        ({"privacy": KNOWN, "method": "renyi"}, "renyi"),
        ({"mechanism": FIXED, "method": "paper"}, "delta"),
        ({"mechanism": FIXED, "method": "paper", "delta": 1.5}, "delta"),
        ({"mechanism": FIXED, "threat": ThreatModel(unit="instance")}, "unit"),
        ({"mechanism": FIXED, "threat": JOIN, "method": "renyi"}, "join"),
        ({"privacy": KNOWN, "method": "median"}, "median"),
        ({"privacy": KNOWN, "bound": "chernoff"}, "chernoff"),
        ({"privacy": KNOWN, "method": "margin", "bound": "hoeffding"}, "hoeffding"),
        ({"privacy": KNOWN, "method": "mean", "bound": "levels"}, "levels"),
        ({"privacy": KNOWN, "method": "mean", "bound": "clopper-pearson"}, "clopper-pearson"),
        ({"privacy": KNOWN, "method": "margin", "spending": "paper"}, "spending"),
        ({"privacy": KNOWN, "failure_probability": 0.0}, "failure_probability"),
        ({"privacy": KNOWN, "failure_probability": 1.0}, "failure_probability"),
        ({"privacy": KNOWN, "max_size": -1}, "max_size"),
        ({"privacy": KNOWN, "sequential": True}, "sequential"),
    ],
)
def test_bad_settings_are_refused(scores, settings, message):
    with pytest.raises(ValueError, match=message):
        certify(scores, **settings)


def test_no_noise_no_certificate(scores):
    from dp_accounting import UnsupportedEventError

    with pytest.raises(UnsupportedEventError, match="no noise"):
        certify(scores, mechanism=FedAvg(rounds=1, sampling=Poisson(probability=0.1)))


def test_means_are_checked():
    for means, message in (
        ([[0.9, 0.2]], "sum to"),
        ([0.9, 0.1], "shape"),
        ([[1.0]], "shape"),
        ([[np.nan, 1.0]], "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            certify_means(means, privacy=KNOWN)
    with pytest.raises(ValueError, match="margin"):
        certify_means([[0.9, 0.1]], privacy=KNOWN, method="margin")


@pytest.mark.parametrize("bound", [Bound.HOEFFDING, Bound.EMPIRICAL_BERNSTEIN, Bound.BETTING])
@pytest.mark.parametrize("method", ["mean", "vote", "paper"])
def test_every_bound_certifies_confident_models(bound, method):
    generator = np.random.default_rng(3)
    scores = generator.dirichlet([80, 1, 1], size=(600, 5))
    found = certify(scores, [0] * 5, privacy=KNOWN, method=method, bound=bound)
    assert all(size > 0 for size in found.certified_size)
    assert found.certified_accuracy([1]) == [1.0]


def test_smaller_failure_probability_never_certifies_more(scores):
    for method in ("mean", "vote"):
        loose, strict = (
            sizes(certify(scores, privacy=KNOWN, threat=REPLACE, method=method, failure_probability=p))
            for p in (0.05, 0.001)
        )
        assert np.all(strict <= loose)


def test_certificates_do_not_need_torch():
    code = "import sys, fedproof.certificates; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
