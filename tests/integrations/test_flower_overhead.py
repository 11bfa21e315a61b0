"""The strategy costs little beside what Flower itself does in a round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_overhead_is_at_most_a_tenth_of_a_round_that_does_nothing():
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    script = Path(__file__).with_name("overhead.py")
    best: dict[str, float] = {"share": 1.0}
    for _ in range(3):  # other tests share the cores: the least disturbed of three
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=os.environ | quiet, timeout=180
        )
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith('{"exchange"'))
        best = min(best, json.loads(line), key=lambda found: found["share"])
        if best["share"] <= 0.1:
            break
    assert best["share"] <= 0.1, best
