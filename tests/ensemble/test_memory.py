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
for number in map(int, sys.argv[1:]):
    with tempfile.TemporaryDirectory() as folder:
        train_ensemble(task, number, pathlib.Path(folder))
    print(peak_memory())
"""


def peaks(*replicas: int) -> list[int]:
    """Most memory that a process of its own ever had, after the first training, after the second, …"""
    command = [sys.executable, "-c", CODE, *map(str, replicas)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_memory_stays_below_the_cap_for_100_and_2000_replicas():
    few, many = peaks(100, 2000)
    assert many < CAP
    assert many < few + (64 << 20)
