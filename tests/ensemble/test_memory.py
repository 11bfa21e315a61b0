"""Memory of a run does not grow with the number of replicas, because parts are written and forgotten."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAP = 1 << 30  # bytes of a whole process, torch included

CODE = """
import sys, tempfile, pathlib
import torch
from benchmarks.engine import CASES
from fedproof.ensemble import train_ensemble
from fedproof.progress import peak_memory
torch.set_num_threads(1)
task = CASES["digits-linear"](True)
with tempfile.TemporaryDirectory() as folder:
    train_ensemble(task, int(sys.argv[1]), pathlib.Path(folder))
print(peak_memory())
"""


def peak(num_replicas: int) -> int:
    command = [sys.executable, "-c", CODE, str(num_replicas)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


@pytest.mark.slow
def test_memory_stays_below_the_cap_for_100_and_2000_replicas():
    few, many = peak(100), peak(2000)
    assert many < CAP
    assert many < few + (64 << 20)
