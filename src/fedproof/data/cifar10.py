"""CIFAR-10 as published, binary version: records of one label byte and 3 x 32 x 32 colour bytes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, Scaling
from fedproof.data.files import MAX_BYTES, existing, reading

FOLDER = "cifar-10-batches-bin"
REMEDY = "remove it and run `fedproof data fetch cifar10`"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
RECORD = 1 + 3 * 32 * 32
# What the paper's code uses, and so what its pretrained weights expect. These are not the deviations
# of all pixels (0.247, 0.243, 0.262) but the means of the single images' deviations.
SCALING = Scaling(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


def read(data_folder: Path) -> Arrays:
    """50,000 training and 10,000 test images, `(instances, 3, 32, 32)`, red, green and blue.

    Pixels become [0, 1], then `(x - mean) / std` for each colour; no random crops or flips.
    """
    folder = data_folder / FOLDER
    *batches, test_batch = (folder / name for name in FILES)
    train, test = read_batches(batches), read_batches([test_batch])
    return Arrays(
        features=train[:, 1:].reshape(-1, 3, 32, 32),
        labels=train[:, 0].astype(np.int64),
        test_features=test[:, 1:].reshape(-1, 3, 32, 32),
        test_labels=test[:, 0].astype(np.int64),
        class_names=NAMES,
        name="cifar10",
        encoding=SCALING,
    )


def read_batches(paths: list[Path]) -> NDArray[np.uint8]:
    """Records of all files, `(instances, 3073)`; the label comes first."""
    counts = [_count_records(path) for path in paths]
    records = np.empty((sum(counts), RECORD), dtype=np.uint8)
    for path, rows in zip(paths, np.split(records, np.cumsum(counts)[:-1]), strict=True):
        with reading(path, REMEDY), path.open("rb") as stream:
            if stream.readinto(rows.data) != rows.size:
                raise ValueError(f"{path} was truncated while it was read; {REMEDY}")
        if rows[:, 0].max() > 9:
            raise ValueError(f"{path} holds label {rows[:, 0].max()}, labels are 0 to 9; {REMEDY}")
    return records


def _count_records(path: Path) -> int:
    size = existing(path, name="cifar10").stat().st_size
    if size == 0 or size % RECORD or size > MAX_BYTES:
        raise ValueError(f"{path} is truncated: {size} bytes are no records of {RECORD} bytes; {REMEDY}")
    return size // RECORD
