"""CIFAR-10 and CIFAR-100 as published, binary version: records of labels and 3 x 32 x 32 colour bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, Scaling
from fedproof.data.files import MAX_BYTES, existing, reading
from fedproof.files import opened

PIXELS = 3 * 32 * 32
# What the paper's code uses, and so what its pretrained weights expect. These are not the deviations
# of all pixels (0.247, 0.243, 0.262) but the means of the single images' deviations. CIFAR-100 is scaled
# alike, so that weights pretrained on it fit.
SCALING = Scaling(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


@dataclass(frozen=True, kw_only=True)
class Version:
    """One of the two published sets: files in a `folder` of the archive, with the number of images in each.

    So many `label_bytes` stand in front of the pixels; the last one is the class.
    """

    name: str
    folder: str
    train: Mapping[str, int]
    test: Mapping[str, int]
    classes: tuple[str, ...]
    label_bytes: int
    archive: str
    sha256: str

    @property
    def record(self) -> int:
        """Bytes of one image with its labels."""
        return self.label_bytes + PIXELS

    @property
    def remedy(self) -> str:
        """What to do about a file that is not as published."""
        return f"remove it and run `fedproof data fetch {self.name}`"


CIFAR10 = Version(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train={f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
    test={"test_batch.bin": 10_000},
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_bytes=1,
    archive="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)

_FINE_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Version(
    name="cifar100",
    folder="cifar-100-binary",
    train={"train.bin": 50_000},
    test={"test.bin": 10_000},
    classes=tuple(_FINE_CLASSES.split()),
    label_bytes=2,  # the first is one of twenty superclasses
    archive="cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)

VERSIONS = {version.name: version for version in (CIFAR10, CIFAR100)}


def read(data_folder: Path, version: Version) -> Arrays:
    """50,000 training and 10,000 test images, `(instances, 3, 32, 32)`, red, green and blue.

    Pixels become [0, 1], then `(x - mean) / std` for each colour; no random crops or flips.
    """
    folder = data_folder / version.folder
    train, test = (
        read_batches([folder / name for name in part], version) for part in (version.train, version.test)
    )
    label, pixels = version.label_bytes - 1, slice(version.label_bytes, None)
    return Arrays(
        features=train[:, pixels].reshape(-1, 3, 32, 32),
        labels=train[:, label].astype(np.int64),
        test_features=test[:, pixels].reshape(-1, 3, 32, 32),
        test_labels=test[:, label].astype(np.int64),
        class_names=version.classes,
        name=version.name,
        encoding=SCALING,
    )


def read_batches(paths: Sequence[Path], version: Version) -> NDArray[np.uint8]:
    """Records of all files, `(instances, bytes)`; labels come first."""
    counts = [_count_records(path, version) for path in paths]
    records = np.empty((sum(counts), version.record), dtype=np.uint8)
    for path, rows in zip(paths, np.split(records, np.cumsum(counts)[:-1]), strict=True):
        with reading(path, version.remedy), opened(path) as stream:
            if stream.readinto(rows.data) != rows.size:
                raise ValueError(f"{path} was truncated while it was read; {version.remedy}")
        largest, last = rows[:, version.label_bytes - 1].max(), len(version.classes) - 1
        if largest > last:
            raise ValueError(f"{path} holds label {largest}, labels are 0 to {last}; {version.remedy}")
    return records


def _count_records(path: Path, version: Version) -> int:
    size, record = existing(path, name=version.name).stat().st_size, version.record
    if size == 0 or size % record or size > MAX_BYTES:
        raise ValueError(
            f"{path} is truncated: {size} bytes are no records of {record} bytes; {version.remedy}"
        )
    return size // record
