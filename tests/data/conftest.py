"""Tiny files in each publisher's format, and the real files where they are."""

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedproof import data
from fedproof.data import text
from fedproof.data.arrays import choose_classes, encoded

UNPACK = Path(__file__).parents[2].parent / "shared" / "data" / "unpack"
WORDS = ["the", "good", "bad", "day", "flight", "!"]


@pytest.fixture
def load_arrays():
    """Training and test arrays in their final form, before anybody holds them."""

    def load(name, *, classes=None, data_dir=None, length=text.LENGTH):
        return encoded(choose_classes(data._read(name, data_dir, None, length), classes))

    return load


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """Folder of the real data sets: FEDPROOF_DATA, or what `shared/data` beside the checkout unpacks to."""
    if named := os.environ.get("FEDPROOF_DATA"):
        yield Path(named)
        return
    if not UNPACK.is_file():
        pytest.skip("real data: neither FEDPROOF_DATA nor ../shared/data/unpack is there")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    base = tmp_path_factory.getbasetemp()
    with shared_folder((base.parent if worker else base) / "real", worker or "main") as folder:
        yield folder


@contextmanager
def shared_folder(folder, worker):
    """The unpacked data, one copy for all processes of the test run; the last one removes the 450 MB."""
    from fcntl import LOCK_EX, flock

    members = folder / "workers"
    with folder.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        members.mkdir(parents=True, exist_ok=True)
        (members / worker).touch()
        subprocess.run([sys.executable, str(UNPACK), str(folder)], check=True, stdout=subprocess.DEVNULL)
    try:
        yield folder
    finally:
        with folder.with_suffix(".lock").open("w") as lock:
            flock(lock, LOCK_EX)
            (members / worker).unlink()
            if not any(members.iterdir()):
                shutil.rmtree(folder)


@pytest.fixture
def needs(real_data):
    """The real data folder, if it holds what the test needs."""

    def folder_with(*names):
        missing = [name for name in names if not (real_data / name).exists()]
        if missing:
            pytest.skip(f"real data: {real_data} does not hold {', '.join(missing)}")
        return real_data

    return folder_with


def idx(array):
    """Bytes of an array in the idx format, as LeCun's page describes it."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_folder(tmp_path):
    """Data folder with 40 training and 20 test images; image i has pixels i and label i % 10."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 40), ("t10k", 20)):
        images = np.broadcast_to(np.arange(count)[:, None, None], (count, 28, 28))
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array), mtime=0))
    return tmp_path


@pytest.fixture
def cifar_folder(tmp_path):
    """Data folder with 20 images in each file: label i % 10, red i, green 100, blue 200."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = np.empty((20, 3073), np.uint8)
        records[:, 0] = np.arange(20) % 10
        records[:, 1:1025] = np.arange(20)[:, None]
        records[:, 1025:2049] = 100
        records[:, 2049:] = 200
        records.tofile(folder / f"{name}.bin")
    return tmp_path


@pytest.fixture
def cifar100_folder(tmp_path):
    """Data folder with 200 images in each file: superclass 19, label i % 100, red i, green 100, blue 200."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train", "test"):
        records = np.full((200, 3074), 200, np.uint8)
        records[:, 0] = 19
        records[:, 1] = np.arange(200) % 100
        records[:, 2:1026] = np.arange(200)[:, None]
        records[:, 1026:2050] = 100
        records.tofile(folder / f"{name}.bin")
    return tmp_path


@pytest.fixture
def glove_folder(tmp_path):
    """Data folder with vectors of six words in four dimensions: word i has entries i + 0.5."""
    folder = tmp_path / "glove"
    folder.mkdir()
    lines = [f"{word} " + " ".join([f"{i + 0.5}"] * 4) for i, word in enumerate(WORDS)]
    (folder / "glove.6B.50d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def write_leaf(tmp_path):
    """Function that writes users (name -> list of (x, y)) as a LEAF folder and returns the data folder."""

    def content(users):
        return {
            "users": list(users),
            "num_samples": [len(rows) for rows in users.values()],
            "user_data": {u: {"x": [x for x, _ in r], "y": [y for _, y in r]} for u, r in users.items()},
        }

    def write(name, train, test, **changes):
        for part, users in (("train", train), ("test", test)):
            folder = tmp_path / "leaf" / name / part
            folder.mkdir(parents=True, exist_ok=True)
            data = {**content(users), **(changes if part == "train" else {})}
            (folder / "data.json").write_text(json.dumps(data))
        return tmp_path

    return write
