"""MNIST as published, four gzip files in the idx format, and other data sets in such files."""

import gzip
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, Scaling, say_untested
from fedproof.data.files import MAX_BYTES, MAX_RATIO, existing, reading, sha256_of
from fedproof.files import opened

FOLDER = "mnist"
FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""What the publisher's files are called, and the SHA-256 of each."""
REMEDY = "remove it and run `fedproof data fetch mnist`"
UNSIGNED_BYTE = 8  # the idx format's number for the type of the entries


def read(data_folder: Path) -> Arrays:
    """60,000 training and 10,000 test images, `(instances, 1, 28, 28)`.

    Pixels become [0, 1] and nothing else is done to them: so does the code of the paper. Other data sets come
    in files of the same names (Fashion-MNIST, KMNIST): none of them is taken for MNIST.
    """
    found = read_folder(data_folder / FOLDER, name=FOLDER)
    for file, published in FILES.items():
        path = data_folder / FOLDER / file
        if sha256_of(path) != published:
            raise ValueError(
                f"{path} is not what MNIST's publisher published; if it belongs to another data set, put its "
                f'four files into a folder FOLDER and set data.name = "idx/FOLDER", else {REMEDY}'
            )
    return found


def read_folder(folder: Path, *, name: str) -> Arrays:
    """Training and test images `(instances, 1, height, width)` of a folder with files like MNIST's.

    Their classes are the labels from 0 to the largest one of the test images: users decide none.
    """
    images, labels = _read_part(folder, "train", name)
    test_images, test_labels = _read_part(folder, "t10k", name)
    if images.shape[1:] != test_images.shape[1:]:
        raise ValueError(
            f"{folder}: training images have {images.shape[2:]} pixels, test images {test_images.shape[2:]}"
        )
    classes = 10 if name == FOLDER else 1 + int(test_labels.max())
    arrays = Arrays(
        features=images,
        labels=np.where(labels < classes, labels, -1),
        test_features=test_images,
        test_labels=test_labels,
        class_names=tuple(map(str, range(classes))),
        name=name,
        encoding=Scaling(),
    )
    return arrays if name == FOLDER else say_untested(arrays)  # MNIST's ten classes are published


def read_idx(path: Path, *, dimensions: int, remedy: str = REMEDY) -> NDArray[np.uint8]:
    """The array of bytes in a gzip idx file.

    The sizes in the header are checked against what the file can hold before anything is
    allocated, and not a byte more than they promise is unpacked.
    """
    with reading(path, remedy), opened(path) as file, gzip.open(file) as stream:
        header = stream.read(4 + 4 * dimensions)
        if header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]) or len(header) < 4 + 4 * dimensions:
            raise ValueError(
                f"{path} is no idx file of {dimensions} dimensions (wrong magic number); {remedy}"
            )
        shape = np.frombuffer(header, dtype=">u4", offset=4).tolist()
        promised, most = math.prod(shape), min(MAX_BYTES, MAX_RATIO * path.stat().st_size)
        if promised > most:
            raise ValueError(f"{path} promises {promised} bytes, it can hold at most {most}; {remedy}")
        body = stream.read(promised + 1)  # one more: reaching the end checks the checksum of gzip
    if len(body) != promised:
        word = "fewer" if len(body) < promised else "more"
        raise ValueError(f"{path} holds {word} bytes than the {promised} its header promises; {remedy}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_part(folder: Path, part: str, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    mnist = name == FOLDER
    remedy = REMEDY if mnist else "replace it"
    image_file, label_file = (
        existing(folder / f"{part}-{kind}-ubyte.gz", name=FOLDER if mnist else None)
        for kind in ("images-idx3", "labels-idx1")
    )
    images = read_idx(image_file, dimensions=3, remedy=remedy)
    labels = read_idx(label_file, dimensions=1, remedy=remedy)
    if mnist and images.shape[1:] != (28, 28):
        raise ValueError(f"{image_file} holds images of {images.shape[1:]} pixels, not (28, 28); {remedy}")
    if len(images) != len(labels):
        raise ValueError(
            f"{image_file} holds {len(images)} images, {label_file} {len(labels)} labels; {remedy}"
        )
    if not len(labels) or (mnist and labels.max() > 9):
        raise ValueError(f"{label_file} must hold labels{' from 0 to 9' * mnist}; {remedy}")
    return images[:, None], labels.astype(np.int64)
