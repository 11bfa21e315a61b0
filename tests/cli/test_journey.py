"""A newcomer's way: own images, own network, a folder of her own, from data to verification."""

import gzip
import json
import os
import struct
import sys

import numpy as np
import pytest
import torch

from tests.commands import fedproof
from tests.patience import finished

NETWORK = """
from torch import nn


def cnn(federation):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(144, federation.num_classes),
    )
"""
EXPERIMENT = """
[data]
name = "idx/fashion"
data_dir = "data"
users = 30
partition = "dirichlet"
[model]
name = "network:cnn"
[mechanism]
kind = "partition"
groups = 10
rounds = 3
local_epochs = 5
batch_size = 8
[ensemble]
seed = 0
[certificate]
method = "vote"
"""


def write_images(folder):
    """600 training and 100 test images in Fashion-MNIST's files: ten classes, each a patch of its own."""
    generator, folder = np.random.default_rng(0), folder / "data" / "fashion"
    folder.mkdir(parents=True)
    for part, count in (("train", 600), ("t10k", 100)):
        labels = generator.integers(0, 10, count)
        images = generator.integers(0, 100, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            row, column = 14 * (label // 5), 5 * (label % 5)
            image[row : row + 14, column : column + 6] += 150
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            packed = gzip.compress(header + array.astype(np.uint8).tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(packed)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """`fresh(threads)`: a new folder with images, network and experiment, in which commands run."""
    before = torch.get_num_threads()

    def enter(threads):
        folder = tmp_path / f"on-{threads}"
        write_images(folder)
        (folder / "network.py").write_text(NETWORK)
        (folder / "experiment.toml").write_text(EXPERIMENT)
        monkeypatch.chdir(folder)
        sys.modules.pop("network", None)
        torch.set_num_threads(threads)
        return folder

    yield enter
    torch.set_num_threads(before)
    sys.modules.pop("network", None)


def journey(folder):
    """Every command of the way; what it left that must not depend on the machine."""
    dealt = ("--data-dir", "data", "--users", "30", "--partition", "dirichlet")
    users = json.loads(fedproof("data", "show", "idx/fashion", *dealt, "--json").stdout)
    assert users["summary"]["smallest"] < users["summary"]["largest"]
    told = fedproof("run", "experiment.toml", "--out", "runs/mine").stdout
    assert "of the test inputs keep their correct label whatever up to" in told
    (folder / "runs/mine/report.html").unlink()
    assert fedproof("report", "runs/mine").stdout.strip() == "runs/mine/report.html"
    assert 'data-figure="certified-accuracy"' in (folder / "runs/mine/report.html").read_text()
    np.save("new.npy", np.random.default_rng(1).random((20, 1, 28, 28), dtype=np.float32))
    predicted = fedproof("predict", "runs/mine", "--inputs", "new.npy", "--json").stdout
    assert "every number holds (100 inputs)" in fedproof("verify", "runs/mine/certificate.json").stdout
    return results(folder / "runs/mine") | {"predicted": predicted}


def results(run):
    return {name: (run / name).read_bytes() for name in ("certificate.json", "scores.npy", "metrics.csv")}


def test_the_way_is_the_same_on_any_number_of_threads(fresh):
    one, two, four = (journey(fresh(threads)) for threads in (1, 2, 4))
    certificate = json.loads(one["certificate.json"])
    assert np.mean([size is not None and size >= 1 for size in certificate["certified_size"]]) > 0.5
    assert one == two == four


def test_a_process_of_its_own_finds_the_network_and_trains_the_same(fresh):
    folder = fresh(1)
    fedproof("run", "experiment.toml", "--out", "runs/here")
    line = [sys.executable, "-m", "fedproof", "run", "experiment.toml", "--out", "runs/there"]
    done = finished(line, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "2"})
    assert (done.returncode, done.stderr) == (0, "")
    assert results(folder / "runs/there") == results(folder / "runs/here")
