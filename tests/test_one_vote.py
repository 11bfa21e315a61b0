"""Runs of disjoint groups, from a configuration to files and attacks: one vote each, and noise in groups."""

from dataclasses import replace

import numpy as np
import pytest

from fedproof.accounting import account
from fedproof.accounting.ledger import load_ledger
from fedproof.attacks import build_series
from fedproof.certificates import certify, verify
from fedproof.config import parse_config
from fedproof.digests import of_all, of_each
from fedproof.ensemble import store, train_replicas
from fedproof.ensemble.task import unmet_by
from fedproof.experiment import make_task, run
from fedproof.mechanisms import Partition
from fedproof.mechanisms.codec import describe
from fedproof.report.run_page import write_report
from fedproof.robustness.outcome import run_attack, verdict
from fedproof.serving import linear_scores, predict
from fedproof.serving.ensembles import answers_of
from fedproof.statements import sentences
from fedproof.threat import Relation, Unit
from tests.tiny import by_accountant

ONE_VOTE = """
[data]
name = "digits"
users = 40
test_limit = 30
[model]
name = "linear"
[mechanism]
kind = "partition"
pooled = true
solver = "ridge"
[ensemble]
seed = 1
[certificate]
method = "vote"
"""
NOISY = """
[data]
name = "digits"
users = 40
test_limit = 30
[model]
name = "logistic"
[mechanism]
kind = "noisy-partition"
groups = 4
rounds = 2
noise_multiplier = 3.0
delta = 1e-3
[certificate]
method = "vote"
"""


def config(text, *overrides):
    return parse_config(text, "test", list(overrides))


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_a_run_of_one_vote_each_is_certified_verified_and_served(tmp_path, relation):
    result = run(config(ONE_VOTE, f"threat.relation={relation}"), tmp_path / "run")
    assert (result.summary.replicas, result.summary.communication.uploads) == (40, 40)
    assert result.summary.privacy == ()
    assert result.certificate.sound
    scores = np.load(tmp_path / "run" / "scores.npy")
    text = (tmp_path / "run" / "certificate.json").read_text()
    assert verify(text, scores, result.federation.test_labels) == ()
    again = predict(tmp_path / "run", result.federation.test_features)
    assert again.certified_size == result.certificate.certified_size
    assert "No noise was added" in (tmp_path / "run" / "PUBLISH.txt").read_text()


def test_whoever_joins_or_leaves_adds_or_takes_a_model(tmp_path):
    task = make_task(config(ONE_VOTE, "threat.relation=join"), "cpu")
    users = task.federation.num_users
    clean = train_replicas(task, range(users))
    certificate = run(config(ONE_VOTE, "threat.relation=join"), tmp_path / "run").certificate
    asked = {
        "unit": Unit.USER,
        "relation": Relation.JOIN,
        "by_data": True,
        "num_users": users,
        "seed": 0,
        "scale": 1.0,
    }
    for name, attack in build_series("label-flip", [1, 3, 6], **asked):
        attacked = run_attack(task, attack, users)
        assert len(attacked.scores) == users + attack.size, name
        assert np.array_equal(attacked.scores[:users], clean.scores)
        found = verdict(attacked.scores, certificate, attack.size, failure_probability=1e-3)
        assert found.contradicted == 0


def test_what_a_model_answers_does_not_depend_on_how_many_stand_before_it(tmp_path, monkeypatch):
    """Whoever joins moves all others by a place, and where a model lies in memory decides last bits."""
    asked = config(ONE_VOTE, "threat.relation=join")
    inputs = run(asked, tmp_path).federation.test_features
    task, read = make_task(asked, "cpu", seed=1), store.read_models
    answers = [answers_of(task, tmp_path, 40, one[None])[0] for one in inputs]
    for places in (1, 2, 3):
        moved = lambda *part, by=places: {key: each.roll(by, 0) for key, each in read(*part).items()}  # noqa: E731
        monkeypatch.setattr(store, "read_models", moved)
        for one, answer in zip(inputs, answers, strict=True):
            found, _ = answers_of(task, tmp_path, 40, one[None])
            assert np.array_equal(np.roll(found, -places, 0), answer)


@pytest.mark.parametrize("features", [64, 75])
def test_what_a_node_s_model_answers_does_not_depend_on_how_many_stand_before_it(features, tmp_path):
    rng = np.random.default_rng(features)
    known = certify(rng.dirichlet(np.ones(7), size=(20, 1)), mechanism=Partition(pooled=True), method="vote")
    models = {"weight": rng.normal(size=(20, 7, features)), "bias": rng.normal(size=(20, 7))}
    inputs, found = rng.normal(size=(12, 1, features)), []
    for places in range(4):
        path = tmp_path / f"{places}.npz"
        moved = {key: np.roll(each, places, 0) for key, each in models.items()}
        np.savez(path, **moved)
        about = replace(known, models_sha256=of_all(describe(known.mechanism), of_each(moved)))
        found.append([np.roll(linear_scores([path], one, about), -places, 0) for one in inputs])
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize("unit", ["user", "instance"])
def test_a_run_with_noise_in_groups_costs_what_one_model_costs(tmp_path, unit):
    more = ["mechanism.pooled=true", "mechanism.population=2000"] if unit == "instance" else []
    result = run(config(NOISY, f"threat.unit={unit}", *more), tmp_path / "run")
    summary, mechanism = result.summary, result.certificate.mechanism
    one = account(mechanism, 1e-3)
    whole = by_accountant(summary.privacy, "ensemble")
    assert by_accountant(summary.privacy, "model") == one
    assert whole == {name: one[name] for name in ("paper", "pld")}
    assert load_ledger(tmp_path / "run" / "ledger.json").epsilon == whole
    assert (summary.one.relation, summary.paper_certified_accuracy) == ("join", None)
    assert result.certificate.sound
    assert result.certificate.failure_probability == 0
    assert "no privacy" not in " ".join(sentences(result.certificate.assumptions))
    assert "everything else here may be published" in (tmp_path / "run" / "PUBLISH.txt").read_text()
    page = write_report(tmp_path / "run").read_text()
    assert f"one {unit} is behind one model alone, so all of them cost together what one costs" in page
    assert "multiplies by the number of models" not in page


def test_noise_in_groups_says_what_it_needs(tmp_path):
    joined = make_task(config(NOISY, "threat.relation=join"), "cpu")
    assert joined.mechanism.population == 40
    nameless = replace(joined, mechanism=replace(joined.mechanism, population=None))
    assert [one.code for one in unmet_by(nameless, Relation.JOIN)] == ["population"]
    assert unmet_by(joined, Relation.JOIN) == ()
    for overrides, said in (
        (["mechanism.noise_multiplier=0"], "without noise use kind = 'partition'"),
        (["mechanism.pooled=true"], r"noise_multiplier = 3\.0 must be 0 where pooled = true"),
        (["certificate.method=paper"], "must be vote for a partition"),
        (["mechanism.solver=ridge"], "solver = 'ridge' belongs to kind|is not used by kind"),
    ):
        with pytest.raises(ValueError, match=said):
            config(NOISY, *overrides)
    with pytest.raises(ValueError, match="groups is missing: kind = 'noisy-partition' needs it"):
        config(NOISY.replace("groups = 4\n", ""))
    with pytest.raises(ValueError, match=r"max_epsilon = 0\.01 pays for 0 replicas"):
        run(config(NOISY, "ensemble.max_epsilon=0.01"), tmp_path / "run")
    assert run(config(NOISY, "ensemble.max_epsilon=5.0"), tmp_path / "run").summary.replicas == 4
