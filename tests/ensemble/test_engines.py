"""Engine `ray` on a real cluster of two workers, one of which is killed in the middle."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedproof.ensemble import Task, train_ensemble
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models import build

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


def test_a_killed_worker_costs_only_its_part(federation, tmp_path):
    from fedproof.ensemble.engines import train_on_cluster

    (tmp_path / "flags").mkdir()
    task = make_task(federation, KilledOnce(str(tmp_path / "flags")))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    told = []
    try:
        found = train_on_cluster(
            task, 12, tmp_path / "ray", part_size=2, progress=lambda done, total: told.append(done)
        )
    finally:
        ray.shutdown()
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


def test_secure_noise_on_a_cluster_is_kept_when_finished_and_fresh_when_not(federation, tmp_path):
    from fedproof.ensemble.engines import train_on_cluster

    task = replace(make_task(federation, None), secure_noise=True)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        first = train_on_cluster(task, 6, tmp_path / "a", part_size=2).scores()
        (tmp_path / "a" / "part-00001.json").unlink()
        resumed = train_on_cluster(task, 6, tmp_path / "a", part_size=2).scores()
    finally:
        ray.shutdown()
    assert len({replica.tobytes() for replica in first}) == 6
    kept = [0, 1, 4, 5]
    np.testing.assert_array_equal(resumed[kept], first[kept])
    assert not np.allclose(resumed[2:4], first[2:4])


def test_a_run_without_its_cluster_ends_in_one_line(tmp_path):
    (tmp_path / "tiny.toml").write_text("[mechanism]\ncohort = 10\n[ensemble]\nreplicas = 2\n")
    command = [sys.executable, "-m", "fedproof", "run", "tiny.toml", "--out", "run", "--engine", "ray"]
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == 1
    assert "Ray at 127.0.0.1:1 cannot be reached" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
