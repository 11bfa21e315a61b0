"""The example app, in Flower's simulation and as a real deployment, against the local engine."""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import fedproof as fp
from fedproof.accounting.ledger import load_ledger, load_site_ledger
from fedproof.certificates import loads
from fedproof.data import load
from fedproof.ensemble import Task, train_replicas
from fedproof.folder import kept_seed
from fedproof.integrations.site import begin, load_site
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models.networks import linear
from fedproof.report.certificate_page import write_certificate_report
from fedproof.serving import predict
from fedproof.statements import Statement
from tests.integrations.conftest import use_example
from tests.patience import finished

# One worker has the simulation and the deployment.
FALSE_ALARM = 1e-6
USERS, REPLICAS, SEED = 24, 200, 5
TOGETHER = (Statement.of("attended-together"),)  # why replicas in one message make a certificate heuristic
STRATEGIES = ("user-fedavg", "cohort-once", "bagging", "groups", "partition", "one-round", "anchors", "local")
MECHANISM = UserFedAvg(rounds=2, noise_multiplier=3.0, sampling=Poisson(probability=0.25))


def local_scores(users, mechanism, replicas, seed):
    """Scores of the local engine with the settings of the example."""
    federation = load("digits", classes=[0, 1], users=users)
    model = linear((64,), 2)
    local = LocalTraining(epochs=10, batch_size=int(federation.sizes.max()), learning_rate=0.5)
    task = Task(
        federation=federation,
        model=replace(model, start=torch.zeros(model.layout.dim)),
        mechanism=mechanism,
        local=local,
        seed=seed,
    )
    return train_replicas(task, range(replicas)).scores, federation.test_labels


def run_script(example_path, folder, script, *options, environment=None):
    command = [sys.executable, example_path / script, *options]
    done = finished(command, cwd=folder, env=os.environ | (environment or {}))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def all_simulated(tmp_path_factory):
    """The folder of one simulation, in which one strategy followed the other."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    folder = tmp_path_factory.mktemp("simulation")
    example = Path(__file__).parents[2] / "examples" / "flower"
    quiet = {
        "FEDPROOF_SEED": str(SEED),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(example), os.environ.get("PYTHONPATH")])),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    sizes = ["--users", str(USERS), "--replicas", str(REPLICAS), "--part-size", str(REPLICAS)]
    options = [*sizes, "--groups", "5", "--out", str(folder), "--strategy", " ".join(STRATEGIES)]
    run_script(example, folder, "simulate.py", *options, environment=quiet)
    return folder


@pytest.fixture(scope="module")
def simulated(all_simulated):
    """The folder of user-level DP-FedAvg."""
    return all_simulated / "user-fedavg"


@pytest.mark.slow
def test_a_simulation_ends_in_a_certificate_that_can_be_checked(simulated):
    certificate = loads((simulated / "certificate.json").read_text())
    assert certificate.unmet == TOGETHER
    assert certificate.mechanism == MECHANISM
    assert certificate.num_replicas == REPLICAS
    assert not fp.verify((simulated / "certificate.json").read_text(), simulated / "scores.npy")
    ledger = json.loads((simulated / "ledger.json").read_text())
    assert ledger["epsilon"] == fp.ensemble_account(MECHANISM, 0.005, REPLICAS)
    page = write_certificate_report(simulated).read_text()
    assert f"{100 * certificate.accuracy:.1f}" in page
    assert f"ε of all {REPLICAS} models" in page


@pytest.mark.slow
def test_flower_and_the_local_engine_train_the_same_replicas(simulated):
    # Same seed: cohorts and noise are the same numbers, so the scores agree to rounding, replica by replica.
    scores, _ = local_scores(USERS, MECHANISM, REPLICAS, SEED)
    np.testing.assert_allclose(np.load(simulated / "scores.npy"), scores, atol=2e-4)


def disagreement(left, right):
    """Smallest p-value over inputs that two ensembles' class confidences come from one distribution."""
    pairs = range(left.shape[1])
    return min(ks_2samp(left[:, i, 0], right[:, i, 0], method="exact").pvalue for i in pairs)


@pytest.mark.slow
def test_certificates_agree_within_monte_carlo_error(simulated):
    flower = np.load(simulated / "scores.npy")
    inputs = flower.shape[1]
    local, labels = local_scores(USERS, MECHANISM, 600, SEED + 1)
    assert disagreement(flower, local) > FALSE_ALARM / inputs
    # Hoeffding, for all inputs and both classes together: every class confidence is within the error.
    error = np.sqrt(np.log(4 * inputs / FALSE_ALARM) / 2 * (1 / len(flower) + 1 / len(local)))
    assert np.abs(flower.mean(axis=0) - local.mean(axis=0)).max() < error
    # Power: half the noise is another mechanism, and is seen; a hundred replicas would not be enough.
    wrong, _ = local_scores(USERS, replace(MECHANISM, noise_multiplier=1.5), 2400, SEED + 1)
    assert disagreement(flower, wrong) < FALSE_ALARM / inputs
    # What is certified for one ensemble, the other does not contradict.
    ours = loads((simulated / "certificate.json").read_text())
    theirs = fp.certify(local, labels, mechanism=MECHANISM)
    rows = zip(ours.prediction, theirs.prediction, strict=True)
    assert all(a == b for a, b in rows if a is not None and b is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_ends_in_a_certificate_that_can_be_checked_and_served(
    all_simulated, example_path, name
):
    out, data = all_simulated / name, import_module("digits_app.data")
    certificate = loads((out / "certificate.json").read_text())
    together = name in ("user-fedavg", "cohort-once")
    assert certificate.unmet == (TOGETHER if together else ())
    assert certificate.accuracy > 0.9
    assert not fp.verify((out / "certificate.json").read_text(), out / "scores.npy", out / "labels.npy")
    assert (out / "ledger.json").exists() == bool(certificate.mechanism.noise_multiplier)
    inputs = np.asarray(load("digits", classes=[0, 1], users=USERS).test_features)
    inputs = inputs.reshape(len(inputs), -1)
    if name in ("partition", "one-round", "anchors", "local"):
        inputs = data.encode(inputs)
    asked = len(inputs) - certificate.num_inputs  # public images come first
    served = predict(out, inputs[asked:])
    if name in ("user-fedavg", "cohort-once", "bagging"):  # bets are ordered by a hash of the scores' bits
        rows = zip(served.prediction, certificate.prediction, strict=True)
        assert all(a == b for a, b in rows if a is not None and b is not None)
    else:
        assert served.prediction == certificate.prediction
        assert served.certified_size == certificate.certified_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["partition", "one-round"])
def test_one_upload_from_everybody_is_that_of_the_local_engine(all_simulated, example_path, name):
    data, found = import_module("digits_app.data"), load("digits", classes=[0, 1], users=USERS)
    seen = {key: data.encode(getattr(found, key)) for key in ("features", "test_features")}
    certificate = loads((all_simulated / name / "certificate.json").read_text())
    task = Task(
        federation=replace(found, **seen),
        model=linear((392,), 2),
        mechanism=certificate.mechanism,
        local=LocalTraining(solver="ridge", penalty=1.0),
        seed=SEED,
    )
    local = fp.train(task)
    np.testing.assert_allclose(np.load(all_simulated / name / "scores.npy"), local.scores, atol=1e-5)
    assert certificate.certified_size == local.certify().certified_size
    metrics = json.loads((all_simulated / name / "private" / "state.json").read_text())["told"]["metrics"]
    assert [row["messages"] for row in metrics] == [USERS]  # each is asked once
    assert 0 < metrics[0]["upload-bytes"] <= 4 * 393 * 2 * USERS + 2 * 128 * USERS


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(all_simulated, example_path, flower, make_grid, monkeypatch):
    server_app = import_module("digits_app.server_app")
    settings = server_app.Settings(
        strategy=" ".join(STRATEGIES),
        out=str(all_simulated),
        users=USERS,
        replicas=REPLICAS,
        part_size=REPLICAS,
        groups=5,
        connect_timeout=0.0,
        timeout=1.0,
    )
    before = {path: path.read_bytes() for path in all_simulated.rglob("*.json")}
    monkeypatch.setenv("FEDPROOF_SEED", str(SEED))
    server_app.run(make_grid({}), settings)
    assert {path: path.read_bytes() for path in all_simulated.rglob("*.json")} == before


def test_settings_are_those_of_the_project_file(example_path):
    import tomllib

    server_app = import_module("digits_app.server_app")
    project = tomllib.loads((example_path / "pyproject.toml").read_text())
    assert server_app.Settings.of(project["tool"]["flwr"]["app"]["config"]) == server_app.Settings()


# --- one real deployment, to which everything happens ----------------------------------------------------

NODES = 2  # one that is killed, and one that goes on
# The first of two parts loses a node; in the middle of the second, which has it back, dies the SuperLink.
PARTS, PART, ROUNDS = 2, 8, 2  # with so many replicas and rounds each


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """What was seen of a deployment: a node killed, then its SuperLink, and keys that nobody may use."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    folder, seen = tmp_path_factory.mktemp("deployment"), {}
    out = folder / "run"

    def look():
        kept = [path for path in (out / "part-00000").rglob("*") if path.is_file()]
        seen["files"] = {path: path.read_bytes() for path in kept}
        seen["rounds"] = rounds_done(out)
        seen["ledger"] = load_ledger(out / "ledger.json")

    with pytest.MonkeyPatch.context() as patch:
        use_example(patch)
        deploy = import_module("deploy")
        rounds_done = deploy.rounds_done
        # Nodes look for the SuperLink less and less often while it is away: a round waits for them.
        sizes = {"rounds": ROUNDS, "replicas": PARTS * PART, "part-size": PART, "timeout": 240.0}
        config = deploy.SETTINGS | sizes | {"out": str(out), "users": NODES}
        with deploy.Deployment(folder=folder, nodes=NODES) as running:
            running.run_app(config)
            # Until the dead node is missed a minute goes by, time enough for the others to knock.
            deploy.without_node(running, out, meanwhile=partial(turn_away, deploy, running, seen))
            deploy.without_superlink(running, config, after=ROUNDS + 1, meanwhile=look)
            running.wait((out / "certificate.json").exists, "the certificate is there")
            # The same federation is asked once by other servers, one of them curious.
            told = ask_sites(running)
            deploy.ask_once(running, folder / "once")
            running.wait(told.exists, "the sites have answered")
            seen["told"] = told.read_text()
    return folder, seen


def ask_sites(running):
    """Let a curious server ask the nodes of sites whose budgets pay for one update each: what it is told."""
    for node in range(NODES):
        path = running.folder / f"site-{node}.toml"
        path.write_text(
            f'ledger = "site-{node}/ledger.json"\nclip_norm = 1.0\nnoise_multiplier = 4.0\n'
            "delta = 1e-5\nmax_epsilon = 2.5\n"
        )
        begin(load_site(path))
    told = running.folder / "told.json"
    running.run_app({"out": str(told)}, Path(__file__).parent / "site_app")
    return told


def turn_away(deploy, running, seen):
    """Start a node whose key nobody registered, and another with the key of a node that is there."""
    deploy.make_keys(1, running.folder / "others")
    running.start_node(1, key=running.folder / "others" / "node-0", name="stranger")
    running.start_node(1, name="double")
    for name in ("stranger", "double"):
        process = running.processes[name]
        running.wait(lambda process=process: process.poll() is not None, f"the {name} is turned away")
        seen[name] = process.returncode
    seen["alive"] = running.processes["node-1"].poll() is None


@pytest.mark.slow
def test_sites_of_a_deployment_send_what_they_have_counted_and_nothing_else(deployed):
    folder, seen = deployed
    told = json.loads(seen["told"])
    assert "diagnosis" not in seen["told"]
    errors = sorted((row["node"], row["error"]) for row in told if row["error"])
    assert errors == [
        ("first", "the site has spent its privacy budget"),
        ("second", "the site does not answer this message"),
    ]
    assert sorted(row["node"] for row in told if not row["error"]) == ["first", "second"]
    for row in told:
        if not row["error"]:
            assert row["content"].keys() == {"arrays", "metrics"}
            assert row["content"]["metrics"] == {"num-examples": 1}
            assert len(row["content"]["arrays"]["weight"]) == 4
    for node in range(NODES):
        ledger = load_site_ledger(folder / f"site-{node}" / "ledger.json")
        assert [(query.count, query.noise_multiplier) for query in ledger.queries] == [(1, 2.0)]


def states_of(out):
    """What the server kept of each part."""
    return [json.loads(path.read_text())["told"] for path in sorted(out.glob("part-*/private/state.json"))]


@pytest.mark.slow
def test_a_deployment_survives_a_killed_node(deployed):
    out = deployed[0] / "run"
    certificate = loads((out / "certificate.json").read_text())
    assert certificate.unmet == TOGETHER
    assert certificate.num_replicas == PARTS * PART
    assert not fp.verify((out / "certificate.json").read_text(), out / "scores.npy")
    states = states_of(out)
    # It was asked again when it was back: with its key it is the same user as before, and missed no round.
    assert [metrics["faults"] for state in states for metrics in state["metrics"]] == [0] * PARTS * ROUNDS
    assert all(state["users"] == states[0]["users"] for state in states)


@pytest.mark.slow
def test_a_deployment_goes_on_after_its_superlink_was_killed(deployed):
    folder, seen = deployed
    out, counted = folder / "run", seen["ledger"]
    # Killed in the middle: one part was finished, another begun, and both were counted.
    assert ROUNDS < seen["rounds"] < ROUNDS * PARTS
    assert counted.replicas * counted.queries[0].count >= PART * seen["rounds"]
    assert all(path.read_bytes() == content for path, content in seen["files"].items())
    # All nodes came back as who they were: the replicas are those of a training that nobody stopped.
    mechanism = replace(MECHANISM, noise_multiplier=1.0, sampling=Poisson(probability=0.5))
    scores, labels = local_scores(NODES, mechanism, PARTS * PART, kept_seed(out))
    kept = np.load(out / "scores.npy")
    np.testing.assert_allclose(kept, scores, atol=2e-4)
    certificate = loads((out / "certificate.json").read_text())
    assert certificate.unmet == TOGETHER
    assert certificate.prediction == fp.certify(kept, labels, mechanism=mechanism, bound="levels").prediction
    assert load_ledger(out / "ledger.json") == fp.Ledger.of(mechanism, 0.005).spend(PARTS * PART)


@pytest.mark.slow
def test_nodes_with_keys_are_asked_once(deployed):
    out = deployed[0] / "once"
    for name in ("one-round", "anchors", "partition", "local"):
        text = (out / name / "certificate.json").read_text()
        assert loads(text).sound
        assert not fp.verify(text, out / name / "scores.npy", out / name / "labels.npy")
        record = json.loads((out / name / "private" / "state.json").read_text())["told"]
        assert (record["metrics"][0]["messages"], record["metrics"][0]["faults"]) == (NODES, 0)
        assert sorted(record["users"].values()) == list(range(NODES))
        assert record["users"] == states_of(deployed[0] / "run")[0]["users"]  # who they were before


@pytest.mark.slow
def test_a_node_without_a_registered_key_or_with_that_of_another_is_turned_away(deployed):
    folder, seen = deployed
    assert seen["stranger"] != 0
    assert seen["double"] != 0
    assert seen["alive"]
    assert "could not be activated" in (folder / "superlink.log").read_text()


def test_a_part_that_holds_the_models_of_two_rounds_has_done_the_later_one(example_path, tmp_path):
    for name in ("part-0/models-1", "part-0/models-2", "part-1/models-1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.npz").touch()
    assert import_module("deploy").rounds_done(tmp_path) == 3
