"""A folder of one's own for data and features, and a module of one's own with inputs and encoders."""

import sys
from importlib import import_module

import numpy as np
import pytest

MODULE = '''
import numpy as np
import torch
from torch import nn
from fedproof.data import Arrays
from fedproof.federation import Federation

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 1, 20, 20)).astype(np.float32) / 255
LABELS = np.arange(40) % 2
CALLS = []

def images(): return IMAGES[:30], LABELS[:30], IMAGES[30:], LABELS[30:]

def untested(): return IMAGES[:30], LABELS[:30], IMAGES[:0], LABELS[:0]
def small(): return IMAGES[:30, :, :14, :14], LABELS[:30], IMAGES[30:, :, :14, :14], LABELS[30:]

def grown():
    """Arrays whose owners are 0, 1, ..., 9, three instances each."""
    return Arrays(features=IMAGES[:30], labels=LABELS[:30], test_features=IMAGES[30:],
        test_labels=LABELS[30:], class_names=("a", "b"), name="grown", owners=np.arange(30) // 3,
        test_owners=np.arange(10))

def federation():
    return Federation(features=IMAGES[:30], labels=LABELS[:30], offsets=np.arange(0, 31, 3), name="made",
        test_features=IMAGES[30:], test_labels=LABELS[30:], class_names=("a", "b"),
        public_features=IMAGES[:8] * 0.5)

def halves():
    def features(rows):
        CALLS.append(len(rows))
        return rows.reshape(len(rows), -1)[:, :200] - 0.5
    return features

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(400, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
    def forward(self, rows):
        return self.dropout(self.norm(self.layer(rows.flatten(1))))

def network(): return Net().train()
def random():
    return lambda rows: np.random.default_rng().random((len(rows), 3))
def learning():
    module = Net()
    module.eval = lambda: module
    return module.train()
def leaking(): return lambda rows: (flat := rows.reshape(len(rows), -1)) - flat.mean(axis=0)
def writing():
    def features(rows):
        rows += 1
        return rows.reshape(len(rows), -1)
    return features
def uneven(): return lambda rows: np.ones((len(rows), 2 + int(rows[0, 0, 0, 0] == IMAGES[30, 0, 0, 0])))
def infinite(): return lambda rows: np.full((len(rows), 3), np.inf)
def huge(): return lambda rows: np.full((len(rows), 3), 1e300)
def rare(): return lambda rows: np.where(np.arange(len(rows))[:, None] == 5, np.nan, np.ones((len(rows), 3)))
def flat(): return lambda rows: np.ones(len(rows))
def deep(): return lambda rows: rows
def short(): return lambda rows: np.ones((1, 3))
def words(): return lambda rows: np.array([["a"]] * len(rows))
def nothing(): return None
def burning(): raise RuntimeError('disk on fire')
def pair():
    class Two(nn.Module):
        def forward(self, rows): return rows, rows
    return Two()
value = 3
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of all data sets; nothing is written to the cache of whoever runs the tests."""
    monkeypatch.setenv("FEDPROOF_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def module(folder, monkeypatch):
    """The name of a module with data and encoders."""
    (folder / "my_encoders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    import_module("my_encoders")
    yield "my_encoders"
    sys.modules.pop("my_encoders", None)


@pytest.fixture
def cifar(folder):
    """CIFAR-10's files with ten images each, all random."""
    rng = np.random.default_rng(1)
    (folder / "cifar-10-batches-bin").mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        records = rng.integers(0, 256, (10, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        records.tofile(folder / "cifar-10-batches-bin" / f"{name}.bin")
    return folder
