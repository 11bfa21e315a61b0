"""The example app, in Flower's simulation and as a real deployment, against the local engine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import fedproof as fp
from fedproof.accounting.ledger import load_ledger
from fedproof.certificates import loads
from fedproof.data import load
from fedproof.ensemble import Task, train_replicas
from fedproof.folder import kept_seed
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models.networks import linear

FALSE_ALARM = 1e-6
USERS, REPLICAS, SEED = 24, 200, 5
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
    command = [sys.executable, str(example_path / script), *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | (environment or {}),
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The folder of one simulation, shared by the tests."""
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
    options = [*sizes, "--out", str(folder / "run")]
    run_script(example, folder, "simulate.py", *options, environment=quiet)
    return folder / "run"


@pytest.mark.slow
def test_a_simulation_ends_in_a_certificate_that_can_be_checked(simulated):
    certificate = loads((simulated / "certificate.json").read_text())
    assert certificate.sound
    assert certificate.mechanism == MECHANISM
    assert certificate.num_replicas == REPLICAS
    assert not fp.verify((simulated / "certificate.json").read_text(), simulated / "scores.npy")
    ledger = json.loads((simulated / "ledger.json").read_text())
    assert ledger["epsilon"] == fp.ensemble_account(MECHANISM, 0.005, REPLICAS)


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
def test_a_finished_run_is_not_trained_again(simulated, example_path, flower, make_grid):
    server_app = import_module("digits_app.server_app")
    settings = server_app.Settings(
        out=str(simulated),
        users=USERS,
        replicas=REPLICAS,
        part_size=REPLICAS,
        connect_timeout=0.0,
        timeout=1.0,
    )
    before = (simulated / "certificate.json").read_bytes()
    os.environ["FEDPROOF_SEED"] = str(SEED)
    try:
        server_app.run(make_grid({}), settings)
    finally:
        del os.environ["FEDPROOF_SEED"]
    assert (simulated / "certificate.json").read_bytes() == before


def test_settings_are_those_of_the_project_file(example_path):
    import tomllib

    server_app = import_module("digits_app.server_app")
    project = tomllib.loads((example_path / "pyproject.toml").read_text())
    assert server_app.Settings.of(project["tool"]["flwr"]["app"]["config"]) == server_app.Settings()


@pytest.mark.slow
def test_a_deployment_survives_a_killed_node(example_path, tmp_path):
    deploy = import_module("deploy")
    out = deploy.trial_of_node(tmp_path, 4, deploy.SETTINGS, seconds=170)
    certificate = loads((out / "certificate.json").read_text())
    assert certificate.sound
    assert certificate.num_replicas == 60
    assert not fp.verify((out / "certificate.json").read_text(), out / "scores.npy")
    states = [json.loads(path.read_text()) for path in sorted(out.glob("part-*/private/state.json"))]
    first, *middle, last = [state["metrics"][0] for state in states]
    assert first["faults"] == 0
    assert any(metrics.get("faults-silent") for metrics in middle)
    assert last["faults"] == 0  # with its key the node is the same user as before
    assert all(state["users"] == states[0]["users"] for state in states)
    assert "could not be activated" in (tmp_path / "superlink.log").read_text()


@pytest.mark.slow
def test_a_deployment_goes_on_after_its_superlink_was_killed(example_path, tmp_path):
    deploy = import_module("deploy")
    seen = {}

    def look(out):
        kept = [path for path in (out / "part-00000").rglob("*") if path.is_file()]
        seen.update({path: path.read_bytes() for path in kept})
        seen["rounds"] = deploy.rounds_done(out)
        seen["ledger"] = load_ledger(out / "ledger.json")

    # Nodes look for the SuperLink less and less often while it is away: the next round has to wait for them.
    settings = deploy.SETTINGS | {"rounds": 2, "replicas": 24, "part-size": 8, "timeout": 90.0}
    out = deploy.trial_of_superlink(tmp_path, 4, settings, seconds=240, meanwhile=look)
    # Killed in the middle: one part was finished, another begun, and both were counted.
    rounds, counted = seen.pop("rounds"), seen.pop("ledger")
    assert 3 <= rounds < 6
    assert counted.replicas * counted.queries[0].count >= 8 * rounds
    assert all(path.read_bytes() == content for path, content in seen.items())
    # All nodes came back as who they were: the replicas are those of a training that nobody stopped.
    states = [json.loads(path.read_text()) for path in sorted(out.glob("part-*/private/state.json"))]
    assert [metrics["faults"] for state in states for metrics in state["metrics"]] == [0] * 6
    assert all(state["users"] == states[0]["users"] for state in states)
    mechanism = replace(MECHANISM, noise_multiplier=1.0, sampling=Poisson(probability=0.5))
    scores, labels = local_scores(4, mechanism, 24, kept_seed(out))
    kept = np.load(out / "scores.npy")
    np.testing.assert_allclose(kept, scores, atol=2e-4)
    certificate = loads((out / "certificate.json").read_text())
    assert certificate.sound
    # From the kept scores: bets are ordered by a hash of their bits, which a local training does not share.
    assert certificate.prediction == fp.certify(kept, labels, mechanism=mechanism).prediction
    assert load_ledger(out / "ledger.json") == fp.Ledger.of(mechanism, 0.005).spend(24)


@pytest.mark.slow
def test_a_node_without_a_registered_key_is_turned_away(example_path, tmp_path):
    deploy = import_module("deploy")
    with deploy.Deployment(folder=tmp_path, nodes=1) as deployment:
        deploy.make_keys(2, tmp_path / "others")
        stranger = tmp_path / "keys" / "node-1"
        stranger.write_bytes((tmp_path / "others" / "node-1").read_bytes())
        deployment.start_node(1)
        assert deployment.processes["node-1"].wait(timeout=60) != 0
        assert deployment.processes["node-0"].poll() is None
