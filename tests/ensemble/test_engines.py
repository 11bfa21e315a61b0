"""Engine `ray` on a real cluster of two workers, one of which is killed in the middle."""

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedproof.ensemble import Task, train_ensemble
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models import build
from tests.patience import finished

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


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers on this machine, on ports that Ray finds free, and gone afterwards."""
    opened, real = [], open

    def recorded(path, *how, **more):
        file = real(path, *how, **more)
        if path == os.devnull:
            opened.append(file)
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", recorded)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    for file in opened:  # Ray gives its servers /dev/null and never closes it
        file.close()


def test_a_killed_worker_costs_only_its_part(federation, tmp_path, cluster):

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


def test_secure_noise_on_a_cluster_is_kept_when_finished_and_fresh_when_not(federation, tmp_path, cluster):

    task = replace(make_task(federation, None), secure_noise=True)
    first = train_ensemble(task, 6, tmp_path / "a", part_size=2, engine="ray").scores()
    (tmp_path / "a" / "part-00001.json").unlink()
    resumed = train_ensemble(task, 6, tmp_path / "a", part_size=2, engine="ray").scores()
    assert len({replica.tobytes() for replica in first}) == 6
    kept = [0, 1, 4, 5]
    np.testing.assert_array_equal(resumed[kept], first[kept])
    assert not np.allclose(resumed[2:4], first[2:4])


def test_a_run_without_its_cluster_ends_in_one_line(tmp_path):
    (tmp_path / "tiny.toml").write_text("[mechanism]\ncohort = 10\n[ensemble]\nreplicas = 2\n")
    command = [sys.executable, "-m", "fedproof", "run", "tiny.toml", "--out", "run", "--engine", "ray"]
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    done = finished(command, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert "Ray at 127.0.0.1:1 cannot be reached" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
