"""Whatever happens to a run, nothing wrong is certified and no finished part is lost."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedproof import files
from fedproof.config import parse_config
from fedproof.experiment import run
from tests.commands import fedproof
from tests.patience import finish, finished, until
from tests.tiny import FRESH, TINY, outputs, seeded, tiny

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("FEDPROOF_KILLED_RUNS", "5"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return outputs(run(tiny(), tmp_path_factory.mktemp("straight") / "run").folder)


@pytest.fixture
def config(tmp_path):
    """The file with the tiny configuration."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def start(config):
    """Start `fedproof run` on the tiny configuration, in a process that can be killed."""

    def started(folder, *, prepare=None, replicas=40, text=TINY):
        config.write_text(text.replace("replicas = 40", f"replicas = {replicas}"))
        command = [sys.executable, "-m", "fedproof", "run", str(config), "--out", str(folder), "--resume"]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=prepare,
            env=ENVIRONMENT,
        )  # fmt: skip

    return started


@pytest.fixture
def small_files():
    """`small_files(limit)`: no file may grow beyond so many bytes from now on, until the test is over."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def one_line(errors):
    lines = [line for line in errors.splitlines() if line.strip()]
    assert len(lines) == 1, errors
    return lines[0]


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("private/parts/part-*.json")}


@pytest.mark.slow
def test_runs_killed_at_random_moments_resume_to_the_same_bytes(tmp_path):
    command = [sys.executable, "-m", "tests.faults.killing", str(KILLS), str(tmp_path)]
    done = finished(command, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["identical"] == found["runs"] == KILLS, found
    assert found["lost"] == found["wrong"] == 0
    assert found["killed"] >= KILLS // 2
    assert found["parts_kept"] > 0


def test_a_full_disk_ends_with_one_line_and_keeps_the_parts(config, small_files, straight, tmp_path):
    folder, unlimited = tmp_path / "full", resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    small_files(12_000)  # room for a part (5 kB) but not for the scores of all of them (23 kB)
    done = fedproof("run", config, "--out", folder, "--resume", status=1, columns=200)
    small_files(unlimited)
    message = one_line(done.stderr)
    assert message.startswith("error: ")
    assert "cannot be written (File too large)" in message
    assert "scores.npy" in message
    assert len(stamps(folder)) == 10
    assert not (folder / "certificate.json").exists()
    assert not (folder / "scores.npy").exists()
    assert not list(folder.rglob("*.tmp"))
    before = stamps(folder)
    run(tiny(), folder, resume=True)
    assert stamps(folder) == before
    assert outputs(folder) == straight


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 31, 33, 35, 37])
def test_a_disk_that_fills_at_any_moment(straight, tmp_path, monkeypatch, writes):
    real, seen = os.fsync, []

    def full(handle):
        seen.append(handle)
        if len(seen) > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    folder = tmp_path / "run"
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises((OSError, ValueError), match=r"cannot be written.*No space left on device"):
        run(tiny(), folder, resume=True)
    monkeypatch.undo()
    assert not (folder / "summary.json").exists()
    before = stamps(folder)
    run(tiny(), folder, resume=True)
    assert {name: stamps(folder)[name] for name in before} == before
    assert outputs(folder) == straight


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 4, 6, 33])
def test_a_fresh_seed_is_drawn_once_whenever_the_disk_fills(tmp_path, monkeypatch, writes):
    real, seen, folder = os.fsync, [], tmp_path / "run"

    def full(handle):
        seen.append(handle)
        if len(seen) > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises((OSError, ValueError), match=r"cannot be written.*No space left on device"):
        run(parse_config(FRESH, "tiny"), folder, resume=True)
    monkeypatch.undo()
    kept, drawn = folder / "private" / "seed", None
    if kept.exists():
        drawn = kept.read_text()
    assert drawn is not None or not stamps(folder)
    before = stamps(folder)
    run(parse_config(FRESH, "tiny"), folder, resume=True)
    assert drawn in (None, kept.read_text())
    assert {name: stamps(folder)[name] for name in before} == before
    assert not list(folder.rglob("*.tmp"))
    again = run(seeded(folder), tmp_path / "again").folder
    assert (again / "scores.npy").read_bytes() == (folder / "scores.npy").read_bytes()


def test_a_killed_run_goes_on_with_the_seed_it_drew(start, tmp_path):
    folder = tmp_path / "killed"
    process = start(folder, text=FRESH)
    until(lambda: len(stamps(folder)) >= 2, process, every=0.001)
    process.kill()
    process.communicate()
    before = stamps(folder)
    assert before
    run(parse_config(FRESH, "tiny"), folder, resume=True)
    assert {name: stamps(folder)[name] for name in before} == before
    again = run(seeded(folder), tmp_path / "again").folder
    for name in ("scores.npy", "metrics.csv", "ledger.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_place_that_cannot_be_written_to(config):
    done = fedproof("run", config, "--out", "/proc/fedproof-run", "--resume", status=1)
    assert "--out /proc/fedproof-run: cannot be written to" in one_line(done.stderr)
    with pytest.raises(ValueError, match="--out /dev/null/run: cannot be written to"):
        run(tiny(), Path("/dev/null/run"))


def test_a_folder_without_permission_is_left_as_it_is(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot be written to"):
        run(tiny(), tmp_path / "run")
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_control_c_keeps_the_parts(start, tmp_path):
    folder = tmp_path / "run"
    # A shell that starts tests in the background has them ignore Ctrl-C; here it must be heard.
    process = start(folder, replicas=4000, prepare=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    until(lambda: len(stamps(folder)) >= 3, process)
    process.send_signal(signal.SIGINT)
    errors = finish(process)[1]
    assert process.returncode == 130
    assert one_line(errors) == "interrupted: finished parts are kept, continue with --resume"
    assert 3 <= len(stamps(folder)) < 1000
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize("moment", [0, 2**33], ids=["past", "future"])
def test_clocks_decide_nothing(straight, tmp_path, monkeypatch, moment):
    folder = tmp_path / "run"
    run(tiny(), folder)
    for path in folder.rglob("*"):
        os.utime(path, (moment, moment))
    (folder / "parts" / "part-00003.safetensors").unlink()
    ticks = iter(range(10**9, 0, -1))
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: float(next(ticks)))
    run(tiny(), folder, resume=True)
    monkeypatch.undo()
    assert outputs(folder) == straight
    parts = {path.stat().st_mtime_ns for path in folder.glob("private/parts/part-*.json")}
    assert len(parts) == 2  # nine of the old moment, and the one that was missing


def test_what_a_killed_process_left_behind_is_removed(straight, tmp_path):
    folder = tmp_path / "run"
    (folder / "parts").mkdir(parents=True)
    (folder / ".config.toml.123.tmp").write_text("[da")
    with pytest.raises(ValueError, match="holds other files"):
        run(tiny(), folder)
    (folder / "parts").rmdir()
    run(tiny(), folder)
    assert outputs(folder) == straight
    (folder / "parts" / ".part-00000.npz.123.tmp").write_bytes(b"half")
    run(tiny(), folder, resume=True)
    assert not list(folder.rglob("*.tmp"))
