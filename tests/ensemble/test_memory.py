"""Memory of a run does not grow with the number of replicas, because parts are written and forgotten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAP = 1 << 30  # bytes of a whole process, torch included

GROWTH = 32 << 20  # bytes of a part that is full, where the first training had a smaller one

CODE = """
import sys, tempfile, pathlib
import torch
from benchmarks.engine import CASES
from fedproof.ensemble import store, train_ensemble
from fedproof.progress import peak_memory
torch.set_num_threads(1)
task = CASES["digits-linear"](True)
encode, kept = store.encode, []
for word in sys.argv[1:]:
    number = int(word.removeprefix("keeping-"))
    if word != str(number):
        store.encode = lambda part, trained: kept.append(trained) or encode(part, trained)
    with tempfile.TemporaryDirectory() as folder:
        train_ensemble(task, number, pathlib.Path(folder))
    print(peak_memory())
"""


def peaks(*trainings: str) -> list[int]:
    """Most memory that a process of its own ever had, after the first training, after the second, …

    Buffers go back to the system as soon as they are freed: otherwise the C library keeps them for later use,
    up to 65 MiB and as it happens, and the mark would say what it kept and not what the trainings held.
    """
    command = [sys.executable, "-c", CODE, *trainings]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_memory_stays_below_the_cap_for_100_and_2000_replicas():
    few, many, kept = peaks("100", "2000", "keeping-1000")
    assert many < CAP
    assert many < few + GROWTH
    assert kept > few + GROWTH  # an engine that forgets no part would be caught
