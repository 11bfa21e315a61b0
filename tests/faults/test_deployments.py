"""Whoever is killed in a Flower deployment, it ends in the certificate of an undisturbed one."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.patience import finished

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("FEDPROOF_KILLED_DEPLOYMENTS", "7"))
PROCESSES = int(os.environ.get("FEDPROOF_KILLED_PROCESSES", "0"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}


def printed(program, *words):
    command = [sys.executable, "-m", f"tests.faults.{program}", *words]
    done = finished(command, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What one program found, which imports Flower once: in honest deployments, and with each mistake."""
    planted = ("uncounted", "forgetful")
    words = [tmp_path_factory.mktemp("killed"), COUNT, *(f"2:{name}" for name in planted)]
    return dict(zip(("honest", *planted), printed("deployments", *words), strict=True))


@pytest.mark.slow
def test_killed_deployments_end_in_the_certificate_of_undisturbed_ones(killed):
    found = killed["honest"]
    assert found["equal"] + found["refused"] == found["deployments"] == COUNT, found
    assert found["counted_too_little"] == found["shown_twice"] == found["wrong"] == 0, found
    assert found["servers_killed"] >= COUNT // 2
    assert found["nodes_killed"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "noticed"), [("uncounted", "counted_too_little"), ("forgetful", "shown_twice")]
)
def test_a_server_that_does_not_count_or_does_not_remember_is_caught(killed, planted, noticed):
    assert killed[planted][noticed] > 0


@pytest.mark.slow
@pytest.mark.skipif(not PROCESSES, reason="a minute each: make faults")
def test_killed_processes_of_a_real_deployment_change_no_certificate(tmp_path):
    [found] = printed("processes", PROCESSES, tmp_path)
    assert found["equal"] + found["refused"] == found["deployments"] == PROCESSES, found
    assert found["counted_too_little"] == found["wrong"] == 0, found
    assert found["killed"] > 0
