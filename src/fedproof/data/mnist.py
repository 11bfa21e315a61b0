"""MNIST as published: four gzip files in the idx format."""

import gzip
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, Scaling
from fedproof.data.files import MAX_BYTES, MAX_RATIO, existing, reading

FOLDER = "mnist"
REMEDY = "remove it and run `fedproof data fetch mnist`"
UNSIGNED_BYTE = 8  # the idx format's number for the type of the entries


def read(data_folder: Path) -> Arrays:
    """60,000 training and 10,000 test images, `(instances, 1, 28, 28)`.

    Pixels become [0, 1] and nothing else is done to them: so does the code of the paper.
    """
    folder = data_folder / FOLDER
    images, labels = _read_part(folder, "train")
    test_images, test_labels = _read_part(folder, "t10k")
    return Arrays(
        features=images,
        labels=labels,
        test_features=test_images,
        test_labels=test_labels,
        class_names=tuple(str(digit) for digit in range(10)),
        name="mnist",
        encoding=Scaling(),
    )


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of bytes in a gzip idx file.

    The sizes in the header are checked against what the file can hold before anything is
    allocated, and not a byte more than they promise is unpacked.
    """
    with reading(path, REMEDY), gzip.open(path) as stream:
        header = stream.read(4 + 4 * dimensions)
        if header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]) or len(header) < 4 + 4 * dimensions:
            raise ValueError(
                f"{path} is no idx file of {dimensions} dimensions (wrong magic number); {REMEDY}"
            )
        shape = np.frombuffer(header, dtype=">u4", offset=4).tolist()
        promised, most = math.prod(shape), min(MAX_BYTES, MAX_RATIO * path.stat().st_size)
        if promised > most:
            raise ValueError(f"{path} promises {promised} bytes, it can hold at most {most}; {REMEDY}")
        body = stream.read(promised + 1)  # one more: reaching the end checks the checksum of gzip
    if len(body) != promised:
        word = "fewer" if len(body) < promised else "more"
        raise ValueError(f"{path} holds {word} bytes than the {promised} its header promises; {REMEDY}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_part(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    image_file = existing(folder / f"{part}-images-idx3-ubyte.gz", name=FOLDER)
    label_file = existing(folder / f"{part}-labels-idx1-ubyte.gz", name=FOLDER)
    images, labels = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{image_file} holds images of {images.shape[1:]} pixels, not (28, 28); {REMEDY}")
    if len(images) != len(labels):
        raise ValueError(
            f"{image_file} holds {len(images)} images, {label_file} {len(labels)} labels; {REMEDY}"
        )
    if not len(labels) or labels.max() > 9:
        raise ValueError(f"{label_file} must hold labels from 0 to 9; {REMEDY}")
    return images[:, None], labels.astype(np.int64)
