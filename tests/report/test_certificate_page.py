"""The page of a certificate alone: its numbers, on what its soundness depends, and where it is written."""

import re
from dataclasses import replace

import numpy as np
import pytest

import fedproof as fp
from fedproof.accounting.ledger import save_ledger
from fedproof.certificates import dumps
from fedproof.report.certificate_page import (
    certificate_charts,
    certificate_in,
    write_certificate_page,
    write_certificate_report,
)
from fedproof.report.words import percent

MECHANISM = fp.UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=fp.Poisson(probability=0.1))
RIGHT = [0, 1, 1, 0]
COMMAND = "fedproof verify mine.json --scores scores.npy"


def scores(replicas=400):
    """Confident on three inputs, undecided on the last."""
    generator = np.random.default_rng(0)
    top = generator.uniform(0.8, 1.0, (replicas, 4))
    top[:, 3] = generator.uniform(0.0, 1.0, replicas)
    return np.stack(
        [
            np.where([True, False, False, True], top, 1 - top),
            np.where([True, False, False, True], 1 - top, top),
        ],
        axis=2,
    )


def certificate(labels=RIGHT, **settings):
    return fp.certify(scores(), labels, **({"mechanism": MECHANISM} | settings))


def written(folder, found):
    """The file of a certificate, beside its scores."""
    np.save(folder / "scores.npy", scores())
    (folder / "certificate.json").write_text(dumps(found))
    return folder / "certificate.json"


def text_of(page):
    """What a reader sees, without marks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.read_text()).replace("\u00a0", " "))


def test_the_page_has_the_certificates_numbers(tmp_path):
    found = certificate()
    text = text_of(
        write_certificate_page(found, tmp_path / "page.html", command=f"{COMMAND} --labels mine.npy")
    )
    assert percent(found.accuracy).replace("\u00a0", " ") in text
    assert "abstains on 1 of 4 inputs" in text
    assert "75.0 % of the test inputs are correct and certified against up to" in text
    assert (
        "Sound if the training did exactly this: 400 independent trainings on the same data, each of 3 rounds"
        in text
    )
    assert "fedproof verify mine.json --scores scores.npy --labels mine.npy" in text
    assert found.scores_sha256 in text


def test_without_labels_nothing_is_called_correct(tmp_path):
    text = text_of(write_certificate_page(certificate(None), tmp_path / "page.html", command=COMMAND))
    assert "75.0 % of the test inputs are certified against up to" in text
    assert "correct" not in text
    assert [chart.name for chart in certificate_charts(certificate(None))] == ["certified-sizes"]


def test_what_is_not_met_stands_beside_what_was_executed(tmp_path):
    median = fp.UserFedAvg(
        rounds=3, noise_multiplier=1.8, sampling=fp.Poisson(probability=0.1), clipping=fp.Median()
    )
    text = text_of(
        write_certificate_page(certificate(mechanism=median), tmp_path / "page.html", command=COMMAND)
    )
    assert "Heuristic, not a proof" in text
    assert "Sound if" not in text
    assert "would be correct and certified" in text
    assert "Taken to have been executed: 400 independent trainings" in text


@pytest.mark.parametrize(
    "settings",
    [
        {
            "mechanism": None,
            "privacy": fp.ApproximateDP(epsilon=0.2, delta=1e-5, relation="replace"),
            "method": "paper",
        },
        {"mechanism": fp.Partition(groups=400, rounds=3), "method": "vote"},
        {"served": 0.01},
        {"threat": fp.ThreatModel(relation="join")},
    ],
    ids=str,
)
def test_every_kind_of_certificate_has_a_page(tmp_path, settings):
    text = text_of(write_certificate_page(certificate(**settings), tmp_path / "page.html", command=COMMAND))
    assert "Sound if the training did exactly this" in text
    assert ("400 independent trainings" in text) == (not isinstance(settings.get("mechanism"), fp.Partition))


def test_a_folder_of_a_federation_gets_a_report_with_its_ledger(tmp_path):
    written(tmp_path, certificate())
    save_ledger(fp.Ledger.of(MECHANISM, delta=0.0029).spend(400), tmp_path / "ledger.json")
    page = write_certificate_report(tmp_path)
    assert page == tmp_path / "report.html"
    assert "ε of all 400 models" in text_of(page)
    assert "0.2114" in text_of(page)  # 0.2113 by `fedproof account`, here rounded up
    assert "δ = 0.0029, for one user added or removed, as ledger.json has it" in text_of(page)
    assert "no bound here" not in text_of(page)


def test_the_epsilon_of_a_ledger_says_what_it_is_for(tmp_path):
    fixed = fp.UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=fp.FixedSize(cohort=10, users=100))
    written(tmp_path, certificate(mechanism=fixed))
    save_ledger(fp.Ledger.of(fixed, delta=0.0029).spend(400), tmp_path / "ledger.json")
    text = text_of(write_certificate_report(tmp_path))
    assert "for one user replaced, as ledger.json has it" in text
    assert "ε is as published, and no bound here" in text


def test_means_taken_as_exact_have_no_confidence(tmp_path):
    found = certificate(method="mean", bound="none")
    text = text_of(write_certificate_page(found, tmp_path / "page.html", command=COMMAND))
    assert "this certificate, exact means" in text
    assert "99 %" not in text
    assert "certainty" not in text


def test_a_page_is_no_surer_than_its_certificate(tmp_path):
    found = certificate(served=0.04, simultaneous=True)
    text = text_of(write_certificate_page(found, tmp_path / "page.html", command=COMMAND))
    assert "With 95 % confidence for all inputs together" in text
    assert "this certificate, 95 % confidence" in text
    assert "99 %" not in text


def test_a_run_keeps_its_own_report(tmp_path):
    file = written(tmp_path, certificate())
    assert certificate_in(tmp_path) == file
    (tmp_path / "config.toml").write_text("")
    assert certificate_in(tmp_path) is None
    assert write_certificate_report(file) == tmp_path / "certificate.html"


def test_a_page_does_not_take_the_place_of_its_certificate(tmp_path):
    file = tmp_path / "certificate.html"
    file.write_text(dumps(certificate()))
    with pytest.raises(ValueError, match=r"a certificate may not be called \.html, its page is"):
        write_certificate_report(file)
    assert file.read_text() == dumps(certificate())


def test_what_is_no_certificate_is_named(tmp_path):
    (tmp_path / "certificate.json").write_text(
        dumps(certificate()).replace('"max_size": 100', '"max_size": 101')
    )
    with pytest.raises(ValueError, match=r"certificate\.json: certificate was altered"):
        write_certificate_report(tmp_path)


def test_a_page_shows_only_what_follows_from_the_scores_beside_it(tmp_path):
    file = written(tmp_path, certificate())
    forged = replace(certificate(), certified_size=(99,) * 4)
    file.write_text(dumps(forged))
    with pytest.raises(ValueError, match=r"certificate\.json: certified_size: the file says 99 at index 0"):
        write_certificate_report(tmp_path)
    file.write_text(dumps(certificate()))
    (tmp_path / "scores.npy").rename(tmp_path / "mine.npy")
    with pytest.raises(ValueError, match=r"scores\.npy is not there, from which .* --scores"):
        write_certificate_report(tmp_path)
    assert "mine.npy" in write_certificate_report(file, tmp_path / "mine.npy").read_text()
    np.save(tmp_path / "labels.npy", np.array([1, 1, 1, 0]))
    np.save(tmp_path / "scores.npy", scores())
    with pytest.raises(ValueError, match=r"labels"):
        write_certificate_report(tmp_path)


def test_a_ledger_of_another_training_is_not_shown(tmp_path):
    written(tmp_path, certificate())
    for other in (
        fp.Ledger.of(MECHANISM, delta=0.0029).spend(399),
        fp.Ledger.of(replace(MECHANISM, noise_multiplier=99.0), delta=0.0029).spend(400),
    ):
        save_ledger(other, tmp_path / "ledger.json")
        with pytest.raises(ValueError, match=r"ledger\.json counts .* models, .* is about 400"):
            write_certificate_report(tmp_path)
