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
    *batches, test = (read_batch(folder / name) for name in FILES)
    return Arrays(
        features=_images(batches),
        labels=_labels(batches),
        test_features=_images([test]),
        test_labels=_labels([test]),
        class_names=NAMES,
        name="cifar10",
        encoding=SCALING,
    )


def read_batch(path: Path) -> NDArray[np.uint8]:
    """Records of one file, `(instances, 3073)`; the label comes first."""
    with reading(existing(path, name="cifar10"), REMEDY):
        size = path.stat().st_size
        if size == 0 or size % RECORD or size > MAX_BYTES:
            raise ValueError(f"{path} is truncated: {size} bytes are no records of {RECORD} bytes; {REMEDY}")
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise ValueError(f"{path} holds label {records[:, 0].max()}, labels are 0 to 9; {REMEDY}")
    return records


def _images(batches: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate([batch[:, 1:] for batch in batches]).reshape(-1, 3, 32, 32)


def _labels(batches: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
    return np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64)
