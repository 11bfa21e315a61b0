"""Engine `ray` on a cluster of two nodes, processes of this machine, one of which is killed in the middle."""

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedproof as fp
from fedproof.config import parse_config
from fedproof.ensemble import Task, train_ensemble
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models import build
from tests.commands import fedproof
from tests.tiny import TINY

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True)
class KilledOnce:
    """No attack: counts the rounds played, and kills the worker that plays the third one."""

    folder: str

    def __call__(self, contributions, state):
        log = Path(self.folder, "log")
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        killed = Path(self.folder, "killed")
        if len(log.read_text().splitlines()) == 3 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return contributions


def make_task(federation, attack):
    return Task(
        federation=federation,
        model=build("linear", federation),
        mechanism=UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.5)),
        local=LocalTraining(),
        attack=attack,
    )


@pytest.fixture
def federation():
    rng = np.random.default_rng(0)
    return Federation(
        features=rng.normal(size=(12, 4)).astype(np.float32),
        labels=rng.integers(0, 2, 12),
        offsets=np.arange(7) * 2,
        test_features=rng.normal(size=(5, 4)).astype(np.float32),
        test_labels=rng.integers(0, 2, 5),
        class_names=("a", "b"),
        name="random",
    )


@dataclass(frozen=True)
class Nodes:
    """A cluster of two nodes, and the folder in which a test asks the second one to be killed."""

    cluster: object
    second: object
    folder: Path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes of one core each on this machine, on ports that Ray finds free, and gone afterwards."""
    from ray.cluster_utils import Cluster

    folder, opened, real = tmp_path_factory.mktemp("nodes"), [], open

    def recorded(path, *how, **more):
        file = real(path, *how, **more)
        if path == os.devnull:
            opened.append(file)
        return file

    def settings(name):
        known = {"FEDPROOF_TEST_NODE": name, "FEDPROOF_TEST_FOLDER": str(folder)}
        # Nobody reads the logs, and no machine is added by itself: that would be a process more for each.
        return {"num_cpus": 1, "env_vars": known, "include_log_monitor": False, "no_monitor": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", recorded)
        head = settings("first") | {"include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        second = cluster.add_node(**settings("second"))
        ray.init(address=cluster.address, log_to_driver=False)
    yield Nodes(cluster, second, folder)
    ray.shutdown()
    cluster.shutdown()
    for file in opened:  # Ray gives its servers /dev/null and never closes it
        file.close()


def test_a_killed_worker_costs_only_its_part(federation, tmp_path, nodes):
    (tmp_path / "flags").mkdir()
    task = make_task(federation, KilledOnce(str(tmp_path / "flags")))
    told = []
    found = train_ensemble(
        task,
        12,
        tmp_path / "ray",
        engine="ray",
        part_size=2,
        progress=lambda done, total: told.append(done),
    )
    assert (tmp_path / "flags" / "killed").exists()
    # Six parts of one block and one round each; the killed one is played twice.
    assert len((tmp_path / "flags" / "log").read_text().splitlines()) == 7
    assert sorted(told) == [0, 2, 4, 6, 8, 10, 12]

    expected = train_ensemble(make_task(federation, None), 12, tmp_path / "local", part_size=2)
    np.testing.assert_array_equal(found.scores(), expected.scores())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_clear_line(address):
    from fedproof.ensemble.engines import check_reachable

    with pytest.raises(ValueError, match=r"Ray at .*127\.0\.0\.1:1 cannot be reached") as caught:
        check_reachable(address)
    assert "\n" not in str(caught.value)


def test_secure_noise_on_a_cluster_is_kept_when_finished_and_fresh_when_not(federation, tmp_path, nodes):
    task = replace(make_task(federation, None), secure_noise=True)
    first = train_ensemble(task, 6, tmp_path / "a", part_size=2, engine="ray").scores()
    for path in (tmp_path / "a").rglob("part-00001.*"):
        path.unlink()
    resumed = train_ensemble(task, 6, tmp_path / "a", part_size=2, engine="ray").scores()
    assert len({replica.tobytes() for replica in first}) == 6
    kept = [0, 1, 4, 5]
    np.testing.assert_array_equal(resumed[kept], first[kept])
    assert not np.allclose(resumed[2:4], first[2:4])


def test_a_run_without_its_cluster_ends_in_one_line(tmp_path, monkeypatch):
    config = tmp_path / "tiny.toml"
    config.write_text("[mechanism]\ncohort = 10\n[ensemble]\nreplicas = 2\n")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests have started
    done = fedproof("run", config, "--out", tmp_path / "run", "--engine", "ray", status=1)
    assert "Ray at 127.0.0.1:1 cannot be reached" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


class Linear(nn.Module):
    """A linear model: on a node to be killed it never ends, on others it waits until that one works."""

    def __init__(self, federation):
        super().__init__()
        self.layer = nn.Linear(64, 2)

    def forward(self, inputs):
        folder, node = (os.environ.get(f"FEDPROOF_TEST_{name}", "") for name in ("FOLDER", "NODE"))
        kill, busy = Path(folder, "kill"), Path(folder, "busy")
        while node and kill.exists() and (node == "second" or not busy.exists()):
            if node == "second":
                busy.touch()
            time.sleep(0.05)
        return self.layer(inputs.flatten(1))


KINDS = {
    "user-fedavg": TINY,
    "partition": """
        [data]
        name = "digits"
        classes = [0, 1]
        users = 24
        [mechanism]
        kind = "partition"
        batch_size = 4
        learning_rate = 0.5
        [ensemble]
        seed = 0
        part_size = 4
        """,
    "one-round": """
        [data]
        name = "digits"
        classes = [0, 1]
        users = 24
        public = 40
        [mechanism]
        kind = "one-round"
        upload = "anchors"
        anchors = 16
        noise_multiplier = 2.0
        batch_size = 4
        learning_rate = 0.5
        [ensemble]
        seed = 0
        [certificate]
        observed = true
        """,
}


@pytest.mark.parametrize("kind", ["partition", "one-round"])
def test_certificates_of_two_nodes_are_those_of_the_local_engine(kind, tmp_path, nodes):
    both_engines(kind, tmp_path)


def test_a_node_killed_in_the_middle_changes_no_byte_of_a_certificate(tmp_path, nodes):
    (nodes.folder / "kill").touch()

    def kill():
        while not (nodes.folder / "busy").exists():
            time.sleep(0.01)
        nodes.cluster.remove_node(nodes.second, allow_graceful=False)
        (nodes.folder / "kill").unlink()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    both_engines("user-fedavg", tmp_path)
    killer.join()


def both_engines(kind, folder):
    config = parse_config(f'{KINDS[kind]}\n[model]\nname = "{__name__}:Linear"\n', "tiny")
    for engine in ("ray", "local"):
        fp.run(config, folder / engine, engine=engine)
    found, expected = (contents(folder / engine) for engine in ("ray", "local"))
    assert found == expected
    assert "certificate.json" in found


def contents(folder):
    """What the files of a run hold, but for how long it took."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != "summary.json"}
