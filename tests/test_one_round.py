"""One round, one release, from a configuration to what lies in the folder."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from fedproof.certificates import certify, dumps, loads
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.mechanisms import Local, OneRound
from fedproof.mechanisms.uploads import Ball, Rows
from fedproof.release import Release, check_units
from fedproof.report.run_page import write_report
from fedproof.serving import predict
from tests.commands import fedproof

ANCHORS = """
[data]
name = "digits"
users = 30
public = 60
test_limit = 50
[mechanism]
kind = "one-round"
noise_multiplier = 1.0
anchors = 40
solver = "ridge"
[ensemble]
seed = 1
[certificate]
max_size = 30
observed = true
"""


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["mechanism.upload=rows"],
        ["data.users=6", "mechanism.upload=pairs"],
    ],
)
def test_observed_influence_lies_in_private_and_is_never_below_the_certificate(changes, tmp_path):
    result = run(parse_config(ANCHORS, "test", changes), tmp_path / "run")
    rows = rows_of(tmp_path / "run" / "private" / "observed.csv")
    assert {(row["method"], row["relation"]) for row in rows} == {("observed", "replace")}
    curve = {row["size"]: float(row["certified_accuracy"]) for row in rows}
    for size, share in result.summary.certified_accuracy.items():
        assert curve.get(size, 0.0) >= share
    assert sum(curve.values()) > sum(result.summary.certified_accuracy.values())


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        (np.zeros((2, 63)), r"inputs have shape \(2, 63\), must be \(inputs, 64\), or as models see them"),
        (np.float32(3), r"inputs have shape \(\), must be \(inputs, 64\), or as models see them"),
        (np.zeros((2, 64), dtype=np.uint8), "inputs are bytes"),
        (np.full((2, 64), np.nan), "not finite, in input 0"),
        (np.full((2, 16), np.inf), "not finite, in input 0"),
    ],
)
def test_a_release_answers_numbers_alone(inputs, answer, projected):
    with pytest.raises(ValueError, match=answer):
        predict(projected, inputs)


@pytest.fixture(scope="module")
def projected(tmp_path_factory):
    """The folder of a run whose inputs are projected, and not encoded."""
    folder = tmp_path_factory.mktemp("projected") / "run"
    return run(parse_config(ANCHORS, "test", ["data.project=16"]), folder).folder


def test_too_few_public_instances_are_said_before_anybody_trains(tmp_path, monkeypatch):
    monkeypatch.setattr("fedproof.ensemble.one_round.train_replicas", lambda *_: pytest.fail("has trained"))
    config = parse_config(ANCHORS, "test", ["data.public=30"])
    with pytest.raises(ValueError, match="anchors = 40 must be at most the number of public instances = 30"):
        run(config, tmp_path / "run")


def test_nothing_else_knows_of_observed_influence(tmp_path):
    """What may be published is the same, byte for byte, whether the server looked or not."""
    for name, said in (("with", "true"), ("without", "false")):
        run(parse_config(ANCHORS, "test", [f"certificate.observed={said}"]), tmp_path / name)
        write_report(tmp_path / name)
    texts = [(tmp_path / name / "certificate.json").read_text() for name in ("with", "without")]
    found, other = (loads(text) for text in texts)
    assert replace(found, config_sha256=None) == replace(other, config_sha256=None)
    for name in ("metrics.csv", "release.npz", "ledger.json"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    assert not (tmp_path / "without" / "private" / "observed.csv").exists()
    assert "observed.csv" not in (tmp_path / "with" / "report.html").read_text()
    assert "private/observed.csv" in (tmp_path / "with" / "PUBLISH.txt").read_text()


def test_the_terminal_says_what_it_is(tmp_path):
    (tmp_path / "one.toml").write_text(ANCHORS)
    told = fedproof("run", tmp_path / "one.toml", "--out", tmp_path / "run")
    assert "by what each unit was seen to send: " in told.stdout
    assert "ε does not cover these numbers, they are not in the certificate, and must not be" in told.stdout
    told = fedproof("run", tmp_path / "one.toml", "--out", tmp_path / "run", "--resume", "--json")
    assert "observed" not in json.dumps(json.loads(told.stdout))


@pytest.mark.parametrize(
    "changes",
    [
        ["threat.relation=join"],
        ["mechanism.kind=partition", "mechanism.solver=sgd"],
        ["mechanism.kind=fedavg", "mechanism.solver=sgd"],
    ],
)
def test_observed_influence_belongs_to_replaced_users_of_one_release(changes):
    changes = [*changes, "mechanism.cohort=5"] if "mechanism.kind=fedavg" in changes else changes
    with pytest.raises(
        ValueError, match=r"certificate.observed = true belongs to kind = 'one-round' and thr"
    ):
        parse_config(ANCHORS, "test", changes)


LOCAL = ["mechanism.kind=local", "mechanism.noise_multiplier=0.5", "certificate.observed=false"]


@pytest.mark.parametrize("upload", ["anchors", "rows"])
@pytest.mark.parametrize("secure", ["true", "false"])
def test_users_own_noise_is_told_apart_from_that_of_the_sum(upload, secure, tmp_path):
    heads = ["mechanism.upload=rows"] if upload == "rows" else []
    noise = [f"ensemble.secure_noise={secure}", "mechanism.delta=1e-3"]
    summary = run(parse_config(ANCHORS, "test", [*LOCAL, *heads, *noise]), tmp_path / "run").summary
    sums = {one.relation: one.epsilon for one in summary.privacy if one.covers == "sum"}
    joined, replaced = summary.all.epsilon, summary.all_if_replaced.epsilon
    assert replaced > joined > 5  # towards the server
    if upload == "rows":
        assert sums["join"] < joined / 3 > sums["replace"] / 3  # the noise of half of 30 users
    else:
        assert sums == {"join": joined, "replace": replaced}
    page = write_report(tmp_path / "run").read_text()
    assert "Privacy towards the server" in page
    told = "the noise of 15 users adds up" if upload == "rows" else "sum of votes nothing smaller is shown"
    assert told in page
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert {"code": "noise-of-honest", "arguments": {"honest": 15}} in certificate["assumptions"]
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["epsilon"]["pld"] == joined


def test_a_run_with_users_own_noise_predicts_and_is_told_at_the_terminal(tmp_path):
    (tmp_path / "one.toml").write_text(ANCHORS)
    changes = [word for change in LOCAL for word in ("--set", change)]
    told = fedproof("run", tmp_path / "one.toml", "--out", tmp_path / "run", *changes)
    assert "ε towards the server, one user replaced" in " ".join(told.stdout.replace("│", " ").split())
    np.save(tmp_path / "inputs.npy", np.ones((2, 64), dtype=np.float32))
    found = fedproof("predict", tmp_path / "run", "--inputs", tmp_path / "inputs.npy", "--json")
    assert len(json.loads(found.stdout)["prediction"]) == 2


SMOOTHED = """
[data]
name = "digits"
classes = [0, 1]
users = 24
test_limit = 30
[model]
name = "mlp"
hidden = [8]
[mechanism]
kind = "smoothed"
noise_multiplier = 1.0
smoothing = 2.0
learning_rate = 0.5
local_epochs = 5
batch_size = 4
[ensemble]
replicas = 60
part_size = 20
secure_noise = true
[certificate]
method = "vote"
"""


def test_one_release_is_kept_and_missing_draws_are_made_around_it(tmp_path):
    config = parse_config(SMOOTHED, "test")
    first = run(config, tmp_path / "run")
    assert first.summary.communication.uploads == 24
    assert first.summary.one is first.summary.all
    assert first.summary.all_if_replaced.epsilon > first.summary.one.epsilon
    release = (tmp_path / "run" / "release.npz").read_bytes()
    kept = (tmp_path / "run" / "parts" / "part-00000.safetensors").read_bytes()
    (tmp_path / "run" / "parts" / "part-00001.safetensors").unlink()
    second = run(config, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "release.npz").read_bytes() == release
    assert (tmp_path / "run" / "parts" / "part-00000.safetensors").read_bytes() == kept
    assert second.summary.privacy == first.summary.privacy
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["epsilon"]["pld"] == first.summary.all.epsilon
    made, waiting = (tmp_path / "run" / folder / "release.npz" for folder in (".", "private"))
    made.rename(waiting)  # killed before it was published
    run(config, tmp_path / "run", resume=True)
    assert made.read_bytes() == release
    made.rename(tmp_path / "elsewhere.npz")
    with pytest.raises(
        ValueError, match=r"release.npz was made, and is missing or was altered; its noise must"
    ):
        run(config, tmp_path / "run", resume=True)
    record = tmp_path / "run" / "private" / "release.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"mark": "of something else"}))
    with pytest.raises(ValueError, match=r"made of something else .* its noise must not be used again"):
        run(config, tmp_path / "run", resume=True)


def test_epsilon_of_draws_is_bought_once_and_their_number_is_free(tmp_path):
    changes = ["ensemble.max_epsilon=3.6", "mechanism.delta=1e-3"]
    few, many = (
        run(parse_config(SMOOTHED, "test", [*changes, f"ensemble.replicas={count}"]), tmp_path / str(count))
        for count in (20, 80)
    )
    assert few.summary.privacy == many.summary.privacy
    assert many.summary.replicas == 80
    with pytest.raises(ValueError, match=r"ensemble.max_epsilon = 0.5 pays for 0 replicas"):
        run(parse_config(SMOOTHED, "test", ["ensemble.max_epsilon=0.5"]), tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("certificate.method=paper", "certificate.method = 'paper' must be margin, mean or vote"),
        ("certificate.method=exact", "certificate.method = 'exact' belongs to kind = 'one-round'"),
        ("mechanism.noise_multiplier=0", "noise_multiplier = 0 must be positive for kind = 'smoothed'"),
        ("mechanism.kind=user-fedavg", "smoothing = 2.0 belongs to kind = 'smoothed', not 'user-fedavg'"),
        ("threat.unit=instance", "threat.unit = 'instance' must be 'user' for mechanism.kind = 'smoothed'"),
        ("mechanism.rounds=2", "rounds = 2 is not used by kind = 'smoothed'"),
    ],
)
def test_what_does_not_go_with_one_release_and_its_draws(change, message):
    changes = [change, *["mechanism.smoothing=2.0"] * ("kind" in change)]
    with pytest.raises(ValueError, match=message):
        parse_config(SMOOTHED, "test", changes)
    with pytest.raises(ValueError, match="smoothing is missing: kind = 'smoothed' needs it"):
        parse_config(SMOOTHED.replace("smoothing = 2.0\n", ""), "test")


def test_noise_on_whose_grid_nothing_is_left_is_refused():
    with pytest.raises(ValueError, match=r"must be at most 1.31e.05 for vectors of 4 numbers"):
        OneRound(upload=Ball(features=2, classes=2), noise_multiplier=2.0**20)
    with pytest.raises(ValueError, match=r"are more than .*, whose sum is exact beside noise_multiplier = 2"):
        check_units(OneRound(upload=Ball(features=2, classes=2), noise_multiplier=2.0), 2**40)


def test_a_release_answers_under_its_own_certificate_alone(tmp_path):
    """Scores count units of the release's own set, and what is taken for granted is that of its mechanism."""
    central = OneRound(upload=Rows(features=3, classes=2), noise_multiplier=2.0)
    local = Local(upload=Rows(features=3, classes=2), noise_multiplier=2.0, honest=5)
    inputs = np.eye(3)
    for made, certified in ((central, central), (local, central), (central, local)):
        release = Release(mechanism=made, total=np.array([[round(16 / made.grid.step), 0]] * 3))
        release.save(tmp_path / "release.npz")
        certificate = certify(release.scores(inputs)[None], mechanism=certified, method="exact")
        certificate = replace(certificate, models_sha256=replace(release, mechanism=certified).sha256)
        (tmp_path / "certificate.json").write_text(dumps(certificate))
        if made is certified:
            assert predict(tmp_path, inputs).certified_size == (3, 3, 3)
        else:
            with pytest.raises(
                ValueError, match=r"release\.npz has the digest \w+…, certificate.json is about"
            ):
                predict(tmp_path, inputs)
        (tmp_path / "certificate.json").write_text(dumps(replace(certificate, models_sha256=release.sha256)))
        if made is not certified:
            with pytest.raises(
                ValueError, match=r"release\.npz is of another mechanism than certificate\.json"
            ):
                predict(tmp_path, inputs)
