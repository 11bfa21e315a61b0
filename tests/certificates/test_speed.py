"""Processor time and memory of certification, measured in a child process."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from fedproof.certificates import certify_means
from fedproof.mechanisms import Poisson, UserFedAvg

pytestmark = [pytest.mark.slow, pytest.mark.speed]
# Time and memory grow with the inputs: a quarter of a full size says as much. `make bench` takes all of it.
FULL = 10_000
INPUTS = int(os.environ.get("FEDPROOF_SPEED_INPUTS", FULL // 4))
SHAPE = (1000, INPUTS, 10)
CHILD = """
import json, sys, time
from fedproof.certificates import certify
from fedproof.progress import peak_memory
from fedproof.mechanisms import Poisson, UserFedAvg

mechanism = UserFedAvg(rounds=3, noise_multiplier=12.0, sampling=Poisson(probability=0.1))
start = time.process_time()
found = certify(sys.argv[1], mechanism=mechanism, method=sys.argv[2], bound="betting", max_size=60)
print(json.dumps({
    "seconds": time.process_time() - start,
    "gigabytes": peak_memory() / 1e9,
    "largest": max(size for size in found.certified_size if size is not None),
}))
"""


@pytest.fixture(scope="module")
def large_scores(tmp_path_factory):
    """1000 x INPUTS x 10 in half precision, from very confident to undecided, written replica by replica."""
    path = tmp_path_factory.mktemp("scores") / "scores.npy"
    generator = np.random.default_rng(0)
    out = np.lib.format.open_memmap(path, "w+", np.float16, SHAPE)
    strength = generator.uniform(0.5, 200, size=SHAPE[1])
    for replica in range(SHAPE[0]):
        draws = generator.gamma(0.6, size=SHAPE[1:])
        draws[:, 0] = generator.gamma(strength)
        out[replica] = draws / draws.sum(axis=1, keepdims=True)
    out.flush()
    return path


@pytest.mark.parametrize("method", ["mean", "margin"])
def test_a_large_certificate(large_scores, method):
    command = [sys.executable, "-c", CHILD, str(large_scores), method]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(method, result)
    assert result["largest"] == 60  # all sizes were walked
    assert result["seconds"] <= 60 * INPUTS / FULL  # of the processor, whoever else uses it
    assert result["gigabytes"] <= 0.2 + 1.8 * INPUTS / FULL  # the first is what libraries take


def test_means_take_seconds():
    top = np.random.default_rng(0).uniform(0.1, 1, size=10_000)
    means = np.column_stack([top, *[(1 - top) / 9] * 9])
    mechanism = UserFedAvg(rounds=3, noise_multiplier=3.9, sampling=Poisson(probability=0.1))
    start = time.process_time()
    found = certify_means(means, mechanism=mechanism, max_size=60)
    seconds = time.process_time() - start
    print("means", seconds)
    assert max(size for size in found.certified_size if size is not None) == 60
    assert seconds <= 2
