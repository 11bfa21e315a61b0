"""Who works is waited for, who does not is ended; and cores that are kept busy are free afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import patience

BUSY = Path(__file__).parents[1] / "tools" / "busy.py"
SLEEPS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(999)'])"
COUNTS = "while True: pass"


@pytest.mark.parametrize(("code", "limit"), [(SLEEPS, {"IDLE": 0.5}), (COUNTS, {"CPU": 0.5})])
def test_who_neither_works_nor_ends_is_given_up_with_its_children(monkeypatch, code, limit):
    for name, value in (limit | {"EVERY": 0.1}).items():
        monkeypatch.setattr(patience, name, value)
    process = subprocess.Popen([sys.executable, "-c", code])
    found, end = [], patience.end
    monkeypatch.setattr(patience, "end", lambda one: (found.extend(patience.family(one)), end(one)))
    with pytest.raises(AssertionError, match="s of work"):
        patience.finish(process)
    assert found
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in found)


def test_who_works_is_waited_for():
    done = patience.finished([sys.executable, "-c", "import sys; print(sum(range(10**6))); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "499999500000\n", "")


def test_cores_are_busy_as_long_as_the_command_runs():
    code = "import os, psutil; print(*(one.pid for one in psutil.Process(os.getppid()).children()))"
    done = patience.finished([sys.executable, BUSY, sys.executable, "-c", f"{code}; raise SystemExit(7)"])
    assert done.returncode == 7, done.stderr
    counting = [int(pid) for pid in done.stdout.split()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert len(counting) == cores + 1  # and the command itself
    assert not any(psutil.pid_exists(pid) for pid in counting)
